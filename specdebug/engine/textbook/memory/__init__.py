"""KV slots: who holds which, and what is cached in them."""
