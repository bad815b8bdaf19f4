"""Triage: from the scan of a log (:mod:`specdebug.logs`) to the fixes that might explain its failure.

``candidates.py`` ranks the registry's fixes and tries the best of them; ``scenario.py`` makes a scenario of its flags.
"""
