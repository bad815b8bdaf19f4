"""What runs inside any engine's own processes: reverts, and what is said of them to the harness.

Imported by an engine's environment, which has torch and little else of what specdebug needs: nothing here may import
more than that and this package's own modules of as little.
"""

VARIABLE = "SPECDEBUG_INSIDE"
"""Holds, as JSON, what is wanted inside."""
