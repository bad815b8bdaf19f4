"""Faults: damage done to an engine on purpose, at a place and a time that a scenario names.

A fault is a class (what is damaged) and an address (step, request, site). Nothing of it is in the engine: faults act at
the probes' sites, on pools, rows and books between two steps, on a few functions from outside, and on the process.
Every injection is written to a ledger with the values before and after.

``model.py`` says what a fault is, ``catalogue.py`` which there are and which can act in an engine, ``declare.py`` reads
them from scenarios and command lines. These import no torch. ``injector.py`` works in a worker: it decides when a fault
is due and hands a ``Shot`` to the class's function, one of those in ``acts/``.
"""
