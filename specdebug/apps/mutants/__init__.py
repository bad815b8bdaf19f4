"""Mutants of the engine: which small faults in its code some shipped scenario's verdict sees, and which none does."""
