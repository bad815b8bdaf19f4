"""Sessions of several ranks: a process each, which computes together with the others by collectives."""
