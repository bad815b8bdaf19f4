"""Take parts away from a scenario, and write what is left to a file.

A scenario is first written out: one arm, and every request (or conversation) a group of its own, so that each can be
dropped alone. What is drawn for a request depends on the seed and its own name, so a seed that fails tends to go on
failing without others. Then numbers are made smaller: first all at once, down to the least the engine takes; then those
that the failure needs, by half of the rest of the way, again and again. ``space.py`` is that order.
"""
