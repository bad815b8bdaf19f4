"""Logs: the one place that knows what a line of a log means, whoever wrote it.

``engine.py`` compiles the patterns, ``hits.py`` and ``rules.py`` say what a line tells of, ``device.py`` what CUDA and
the driver say, ``facts.py`` what a log says of its setting, ``scan.py`` reads a log of any size once, in time linear in
its bytes, and ``naming.py`` names a command's failure by its output and its exit status. ``docs/triage.md`` lists
what is recognised.
"""
