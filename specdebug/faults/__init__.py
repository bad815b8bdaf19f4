"""Faults: damage done to an engine on purpose, at a place and a time that a scenario names.

A fault is a class (what is damaged) and an address (step, request, site). ``model.py``, ``catalogue.py`` and
``declare.py`` import no torch. ``injector.py`` works in a worker: it hands a ``Shot`` to the class's function in
``acts/`` when a fault is due, and every injection is written to a ledger with the values before and after.
"""
