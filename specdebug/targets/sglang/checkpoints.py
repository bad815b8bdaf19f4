"""Checkpoints as SGLang reads them.

It deletes a draft head's embedding once the head has the target's, and then its ``lm_head``: with tied embeddings these
are one, and the second deletion fails. So a head whose config ties them is given to it by a folder of links, with a
config that does not; both are the target's from then on, either way.
"""

from __future__ import annotations

from pathlib import Path

from specdebug.base.assets import checkpoint_path
from specdebug.targets.installs.checkpoints import config_of, remade


def draft_folder(name: str, below: Path) -> Path:
    """The folder of a draft head for SGLang: its own, or one made ``below``. Raises SpecDebugError."""
    path = checkpoint_path(name).resolve()
    config = config_of(path)
    return remade(path, {**config, "tie_word_embeddings": False}, below) if config.get("tie_word_embeddings") else path
