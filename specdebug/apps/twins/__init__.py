"""Twins: the same requests, served in two ways that must not matter, must come out the same."""
