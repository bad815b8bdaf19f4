"""Checkpoints as SGLang reads them.

It deletes a draft head's embedding once the head has the target's, and then its ``lm_head``: with tied embeddings these
are one, and the second deletion fails. So a head whose config ties them is given to it by a folder of links, with a
config that does not; both are the target's from then on, either way.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CheckpointError, SpecDebugError
from specdebug.base.files import replace_file
from specdebug.workers.machine_failure import blamed

_CONFIG = "config.json"


def draft_folder(name: str, below: Path) -> Path:
    """The folder of a draft head for SGLang: its own, or one made ``below``. Raises SpecDebugError."""
    path = checkpoint_path(name).resolve()
    try:
        config = json.loads((path / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / _CONFIG} cannot be read: {error}") from None
    if not config.get("tie_word_embeddings"):
        return path
    text = json.dumps({**config, "tie_word_embeddings": False}, indent=1) + "\n"
    made = below / f"{path.name}-{hashlib.sha256(f'{path}{text}'.encode()).hexdigest()[:12]}"
    try:
        made.mkdir(parents=True, exist_ok=True)
        replace_file(made / _CONFIG, text.encode())
        for file in path.iterdir():
            link = made / file.name
            if file.name != _CONFIG and not link.is_symlink():
                link.symlink_to(file)
    except FileExistsError:
        pass  # somebody else was quicker
    except OSError as error:
        told = f"cannot write {error.filename or made}: {error.strerror}"
        raise blamed(SpecDebugError, told, error) from None
    return made
