"""A draft head in a folder of its own, where an engine reads its config otherwise than it was written."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specdebug.base.errors import CheckpointError, SpecDebugError
from specdebug.base.files import replace_file
from specdebug.workers.machine_failure import blamed

_CONFIG = "config.json"


def config_of(path: Path) -> dict[str, Any]:
    """The config of a checkpoint's folder. Raises CheckpointError."""
    try:
        config: dict[str, Any] = json.loads((path / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / _CONFIG} cannot be read: {error}") from None
    return config


def remade(path: Path, config: dict[str, Any], below: Path, weights: Callable[[Path], None] | None = None) -> Path:
    """The folder, made ``below`` unless it is there, of a checkpoint with another config and links to its other files.
    ``weights``: writes tensors into it in the place of the checkpoint's. Raises SpecDebugError."""
    text = json.dumps(config, indent=1) + "\n"
    made = below / f"{path.name}-{hashlib.sha256(f'{path}{text}'.encode()).hexdigest()[:12]}"
    if (made / _CONFIG).exists():
        return made
    try:
        made.mkdir(parents=True, exist_ok=True)
        if weights is not None:
            weights(made)
        for file in path.iterdir():
            if file.name != _CONFIG and (weights is None or file.suffix != ".safetensors"):
                with contextlib.suppress(FileExistsError):  # another process was quicker
                    (made / file.name).symlink_to(file)
        replace_file(made / _CONFIG, text.encode())  # last: it says that all is there
    except OSError as error:
        told = f"cannot write {error.filename or made}: {error.strerror}"
        raise blamed(SpecDebugError, told, error) from None
    return made
