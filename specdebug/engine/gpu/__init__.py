"""Executors of attention on a GPU: our kernels, and libraries'."""
