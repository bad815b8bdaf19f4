"""A server that is started for a run, as a target: by a command, or our own with the scenario's engine options.

``command.py`` makes the command, ``process.py`` starts it, waits for it and ends it, ``log.py`` follows its log. What
it serves is asked for as of any other server (``targets/http``).
"""
