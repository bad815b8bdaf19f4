"""Reverts in any Python process under a command, by a path entry whose start-up module hangs an import hook.

``folder.py`` makes that entry and reads what the processes told; ``child.py``, and what it imports, is copied into it.
"""

REVERT_VARIABLE = "SGLANG_DEBUG_REVERT_PR"
"""Tells an engine by itself which fixes to leave out: SGLang takes one number, we take several."""
