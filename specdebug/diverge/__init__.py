"""Find where two arms part: fingerprints of what passes the probes' sites, laid side by side.

``recorder.py`` and what it uses (``owners.py``, ``fingerprint.py``, ``values.py``) run in a worker. ``stream.py`` is
what workers write and the parent reads, ``align.py`` compares two of those, ``judge.py`` tells rounding from more (with
``values.py`` for values and ``choices.py`` for tokens), ``run.py`` runs the arms and puts the answer together.
"""
