"""specdebug: a debugging and fault-injection harness for speculative LLM serving."""

__version__ = "0.1.0"
