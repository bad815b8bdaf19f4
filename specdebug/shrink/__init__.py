"""Take parts away from a scenario, and write what is left to a file.

A scenario is first written out: one arm, and every request (or conversation) a group of its own, so that each can be
dropped alone (``requests.py``). What is drawn for a request depends on the seed and its own name, so dropping some
leaves the others as they were, and a seed that fails tends to go on failing. Then numbers are made smaller
(``request_knobs.py``, ``engine_knobs.py``): first all that go down to the least the engine takes at once, then, for
those that the failure needs, half of the rest of the way, again and again. ``space.py`` is that order, ``trials.py``
runs what is left, and ``file.py`` writes it.
"""
