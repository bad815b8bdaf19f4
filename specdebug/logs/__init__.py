"""Logs: the one place that knows the meaning of a line of a log, of any process.

``patterns.py`` compiles patterns. ``rule.py`` says what a rule is, ``rules.py``, ``checks.py`` and ``raised.py`` have
them all, and ``device.py`` knows the words of CUDA and the driver. ``around.py`` looks at what stands around a line,
and ``wording.py`` makes a name of a message. ``scan.py`` reads a log once, in time linear in its bytes: into
``findings.py`` and, of the setting, ``facts.py``. ``naming.py`` names a command's failure by its output and its exit
status. ``docs/triage.md`` lists all that is recognised.
"""
