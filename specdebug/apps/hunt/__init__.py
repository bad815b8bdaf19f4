"""Hunt for failures in an engine: draw scenarios, judge each with every oracle, make small what fails.

``workload.py`` and ``draw.py`` draw, ``hunting.py`` runs (on a cluster by ``source.py``), ``record.py`` remembers,
``shrinking.py`` makes the first failure of each signature small, ``evidence.py`` keeps what shows it.
"""
