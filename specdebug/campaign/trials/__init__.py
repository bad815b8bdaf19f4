"""Trials: run a thing again and again with some of its parts switched, remember every result, and search."""
