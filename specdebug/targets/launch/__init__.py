"""A server that is started for a run, as a target: by a command, or our own with the scenario's engine options."""
