"""An EAGLE engine in reading order: see README.md."""
