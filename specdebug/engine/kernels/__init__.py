"""Torch references of the speculative plumbing kernels. They write as device kernels do: by flat offset."""
