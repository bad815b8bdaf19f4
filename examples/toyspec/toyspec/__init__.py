"""A speculative decoder small enough to read in five minutes, for docs/your-engine.md."""
