"""Speculative workers and ways of drafting: their contracts, who serves which algorithm, and those beside EAGLE v2."""
