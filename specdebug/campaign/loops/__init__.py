"""Loops over runs: replay, compare, verify and the fault matrix."""
