"""Find where two arms part: fingerprints of what passes the probes' sites, laid side by side.

``recorder.py``, ``owners.py``, ``fingerprint.py`` and ``values.py`` run in a worker. ``stream.py`` holds the file that
workers write, ``align.py`` compares two of those, ``judge.py`` tells rounding from more (with ``values.py`` for values
and ``choices.py`` for tokens), ``run.py`` runs the arms and puts the answer together. Another engine writes a tape
(``targets/inside/tape.py``): ``tape.py`` reads it as such a file, ``sides.py`` has both ways to record, ``common.py``
cuts two engines' recordings down to what both have.
"""
