"""Who owns which bytes: arenas and guards, slots and rows, pools and the radix cache."""
