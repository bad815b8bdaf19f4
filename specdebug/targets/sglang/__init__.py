"""SGLang's own code as a target: a release that is installed here, started with a scenario's engine options.

``flags.py`` maps the options, ``checkpoints.py`` has draft heads as SGLang reads them, ``import_folder.py`` makes
the folder by which its processes find ``inside/``, which is what runs in them. What it serves is asked for as of any
other server (``targets/http``), and it is started and ended as one (``targets/launch``).
"""
