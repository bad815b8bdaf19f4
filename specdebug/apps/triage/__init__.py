"""Triage: from the scan of a log (:mod:`specdebug.logs`) to the fixes that might explain its failure.

``candidates.py`` ranks the registry's fixes, and ``run.py`` tries the best of them.
"""
