"""Scenarios: their grammar, their checks, the requests that they describe, and where they are found."""
