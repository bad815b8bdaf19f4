"""Environments of other engines: a release of SGLang or vLLM in a virtual environment of its own, or the user's own.

``release.py`` names a release, ``recipe.py`` says what it takes here, ``store.py`` keeps the record of what was
installed where, and ``steps.py`` installs. ``fit.py`` holds what is ours
against its files. What is done with one is a target's (``targets/sglang``).
"""
