"""Logs: the one place that knows the meaning of a line of a log, of any process.

``rules.py`` and ``raised.py`` have all rules by which a line tells of a failure (``rule.py`` says what a rule is),
``device.py`` knows the words of CUDA and the driver, ``around.py`` looks at what stands around a line. ``scan.py``
reads a log once, in time linear in its bytes: into ``findings.py`` and, of the setting, ``facts.py``; and it names a
command's failure by its output and its exit status. ``docs/triage.md`` lists all that is recognised.
"""
