"""Oracles, one file each: what it needs of a session, when it looks, what it finds."""
