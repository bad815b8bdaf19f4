"""Find where two arms part: fingerprints of what passes the probes' sites, laid side by side.

In a worker ``recorder.py`` listens, ``steplog.py`` and ``hashes.py`` make the file of ``recording.py``; another engine
writes a tape, which ``tape.py`` reads. ``align.py`` compares two recordings, ``rounding.py`` tells rounding from more,
``run.py`` runs the arms and puts the answer together, ``locate.py`` asks it where a failure began.
"""
