"""Draft heads as vLLM reads them.

vLLM 0.32.0 takes a head for EAGLE's by ``architectures: [EagleLlamaForCausalLM]`` alone. It takes ``bias: true`` of the
config, which is ``fc``'s in EAGLE's own format, for biases of attention, which no head has; and it skips ``fc.bias``:
drafts are worthless then, without a word (of ``tiny-eagle`` none of 186 was accepted; 2026-11-23). So a head with a
bias gets a folder: the config without the key, and the bias folded into an embedding of the head's own, ``e + W^-1 b``
with ``W`` the embedding's half of ``fc``, which gives the same ``fc`` output but for rounding.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CheckpointError
from specdebug.base.files import name_beside
from specdebug.targets.installed import config_of, remade

if TYPE_CHECKING:
    from torch import Tensor

ARCHITECTURE = "EagleLlamaForCausalLM"
_WEIGHTS = "model.safetensors"
_EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight")


def draft_folder(name: str, target: str, below: Path) -> Path:
    """The folder of a draft head for vLLM: its own, or one made ``below``. ``target``: whose embedding it shares.
    Raises SpecDebugError."""
    path, shared = checkpoint_path(name).resolve(), checkpoint_path(target).resolve()
    config = config_of(path)
    eagle3 = any("eagle3" in str(each).lower() for each in config.get("architectures") or ())
    if eagle3 or (config.get("architectures") == [ARCHITECTURE] and "bias" not in config):
        return path
    config = {**{key: value for key, value in config.items() if key != "bias"}, "architectures": [ARCHITECTURE]}
    below /= hashlib.sha256(str(shared).encode()).hexdigest()[:12]
    return remade(path, config, below, lambda made: _write_weights(path, shared, made / _WEIGHTS))


def with_bias_folded(weights: Mapping[str, Tensor], embedding: Tensor) -> dict[str, Tensor]:
    """A head's tensors without ``fc.bias``, and with an embedding that stands for it. ``embedding``: [V, H], the one
    that the head would have used. Raises CheckpointError where no embedding can stand for the bias."""
    import torch

    rest = dict(weights)
    bias = rest.pop("fc.bias", None)
    if bias is None:
        return rest
    half = rest["fc.weight"][:, : embedding.shape[1]].double()
    try:
        shift = torch.linalg.solve(half, bias.double())
    except RuntimeError:  # torch.linalg.LinAlgError
        raise CheckpointError(
            "the head's fc.bias cannot be folded into its embedding, and vLLM's fc has none"
        ) from None
    rest["embed_tokens.weight"] = (embedding.double() + shift).float()
    return rest


def _write_weights(head: Path, target: Path, into: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors, of_target = (
        {name: each for file in sorted(folder.glob("*.safetensors")) for name, each in load_file(file).items()}
        for folder in (head, target)
    )
    found = next((each[name] for each in (tensors, of_target) for name in _EMBEDDINGS if name in each), None)
    if found is None:
        raise CheckpointError(f"neither {head} nor {target} has an embedding")
    beside = name_beside(into)
    save_file({name: each.contiguous() for name, each in with_bias_folded(tensors, found).items()}, beside)
    os.replace(beside, into)
