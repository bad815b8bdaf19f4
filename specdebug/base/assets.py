"""Where the shipped checkpoints lie, and those that are made; how a user's word for one becomes a folder, and how many
steps a draft takes."""

import json
import os
from pathlib import Path

from specdebug.base.errors import CheckpointError, did_you_mean, one_line
from specdebug.base.files import read_file
from specdebug.base.made import MADE, made_checkpoint

CHECKPOINTS = Path(__file__).parents[1] / "_assets" / "checkpoints"
NAMES = ("tiny", "tiny-eagle", "tiny-eagle3", "tiny-mtp", "tiny-assistant", "tiny-mla", "tiny-mla-eagle")
_MAX_CONFIG_BYTES = 1 << 20


def checkpoint_path(name_or_path: str | Path) -> Path:
    """The checkpoint's folder, which holds a ``config.json``. Raises CheckpointError where there is none.

    A shipped name wins over a folder of the same name in the current directory (``./tiny`` is that one), and so does
    the name of one that is made, now if it is not there yet.
    """
    text = str(name_or_path)
    shipped = text in NAMES
    try:
        made = made_checkpoint(text, CHECKPOINTS / "tiny")
    except OSError as error:
        raise CheckpointError(f"'{text}' cannot be made: {error.filename}: {error.strerror}") from None
    path = made or (CHECKPOINTS / text if shipped else Path(os.path.expanduser(text)))
    if os.path.isfile(path / "config.json"):  # of os.path, nothing raises, whatever the name
        return path
    if shipped:
        raise CheckpointError(f"shipped checkpoint '{text}' is missing from {path}; reinstall specdebug")
    if os.path.isdir(path):
        raise CheckpointError(f"{path} holds no config.json; give a Hugging Face checkpoint folder")
    hint = did_you_mean(text, (*NAMES, *MADE))
    raise CheckpointError(f"no checkpoint '{one_line(text, 200)}': neither a folder nor a shipped name{hint}")


def name_of(folder: Path) -> str:
    """A checkpoint's folder as a user would write it: a shipped one by its name."""
    return folder.name if folder.parent == CHECKPOINTS and folder.name in NAMES else str(folder)


def nextn_layers(name_or_path: str) -> int | None:
    """The number of next-n layers that the checkpoint's ``config.json`` gives. None where it gives none, or cannot be
    read, which is for the checkpoint's loader to say."""
    try:
        config = json.loads(read_file(checkpoint_path(name_or_path) / "config.json", _MAX_CONFIG_BYTES))
    except (CheckpointError, OSError, ValueError, RecursionError):
        return None
    layers = config.get("num_nextn_predict_layers") if isinstance(config, dict) else None
    return layers if type(layers) is int and layers > 0 else None


def tokenizer_path(name_or_path: str | Path) -> Path:
    """The ``tokenizer.json`` of a target checkpoint. Raises CheckpointError when the folder has none."""
    path = checkpoint_path(name_or_path) / "tokenizer.json"
    if not os.path.isfile(path):
        raise CheckpointError(f"{path} is missing; the tokenizer lies beside the target's weights")
    return path
