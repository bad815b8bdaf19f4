"""The engine's memory: arenas and guards, slots and rows, pools and the radix cache."""
