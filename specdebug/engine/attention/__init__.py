"""Attention: planners build the metadata a real kernel would get; executors run attention from it, nothing else."""
