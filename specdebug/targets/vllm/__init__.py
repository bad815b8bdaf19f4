"""vLLM's own code as a target: a release that is installed here, before which a small server of ours stands.

``options.py`` maps a scenario's options to its arguments, ``checkpoints.py`` has draft heads as vLLM reads them, and
``inside/`` runs in its process: SGLang's HTTP interface before vLLM's engine, which tells what each verify accepted.
"""
