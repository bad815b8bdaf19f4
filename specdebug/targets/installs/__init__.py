"""Environments of other engines: a release of SGLang or vLLM in a virtual environment of its own, or the user's own."""
