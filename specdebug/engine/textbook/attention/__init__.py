"""What attention is planned from, and attention computed from a plan alone."""
