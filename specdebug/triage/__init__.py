"""Triage: from a log of somebody's CI to a named failure, the fixes that might explain it, and what to run next.

``patterns.py`` says what a line of a log tells of, ``facts.py`` what it says of the setting, ``scan.py`` reads a log of
any size once, ``candidates.py`` ranks the registry's fixes, and ``run.py`` tries the best of them. ``docs/triage.md``
describes what is recognised.
"""
