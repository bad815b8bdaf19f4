"""Attention: planners build the metadata a real kernel would get, executors attend from nothing else."""
