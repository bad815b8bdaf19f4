"""What every room stands on: errors, files, YAML with places, records of settings, random streams, signals, plugins."""
