"""Verdicts: violations, their signatures, and the outcome that a run's events add up to."""
