"""Logs: the one place that knows the meaning of a line of a log, whoever wrote it.

``engine.py`` compiles patterns, ``hits.py`` and ``rules.py`` find failures in lines, ``device.py`` those of CUDA and
the driver, ``facts.py`` reads the setting, ``scan.py`` reads a log once, in time linear in its bytes, and ``naming.py``
names a command's failure by its output and its exit status. ``docs/triage.md`` lists all that is recognised.
"""
