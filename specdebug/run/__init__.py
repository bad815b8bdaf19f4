"""The part that runs inside a worker: one arm, its loop, its oracles."""
