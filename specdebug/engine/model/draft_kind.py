"""Tells what kind of draft a checkpoint holds, and refuses one that its algorithm has no use for.

Published EAGLE heads carry the architecture of their target, and often more of its ``config.json``, so that alone it
does not tell a head from anything else. The names of the tensors do: every kind has some that no other has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from specdebug.base.assets import name_of
from specdebug.base.errors import InvalidOption
from specdebug.engine.model.checkpoint import Checkpoint
from specdebug.engine.model.config import architecture_of, shown
from specdebug.engine.model.deepseek_config import DEEPSEEK_ARCHITECTURE, NEXTN_ARCHITECTURE


@dataclass(frozen=True)
class DraftKind:
    """``name``: in a message, with its article. ``algorithm``: the value of ``speculative.algorithm`` that drafts with
    it; None where none does."""

    name: str
    algorithm: str | None


EAGLE_HEAD = DraftKind("an EAGLE head", "EAGLE")
EAGLE3_HEAD = DraftKind("an EAGLE-3 head", "EAGLE3")
NEXTN_LAYERS = DraftKind("next-n layers of Llama's family", "MTP")
ASSISTANT = DraftKind("a frozen-KV assistant", "FROZEN_KV_MTP")
LATENT_NEXTN_LAYER = DraftKind("one next-n layer of a latent (MLA) model", "EAGLE")
WHOLE_MODEL = DraftKind("a whole model without next-n layers", None)

_FUSING = ".eh_proj.weight"
"""Only next-n layers have it."""
_WHOLE = {"model.embed_tokens.weight", "model.layers.0.input_layernorm.weight", "model.norm.weight"}
"""Without ``fc`` or next-n layers beside them, these are a target's."""


def kind_of(config: Mapping[str, Any], names: Collection[str]) -> DraftKind | None:
    """The kind of draft in a checkpoint of this ``config.json`` and these tensors. None where they do not tell for
    sure, as of a checkpoint that lacks tensors."""
    if any(_is_nextn_layer(name, names) for name in names if name.endswith(_FUSING)):
        return NEXTN_LAYERS
    if _has("midlayer.hidden_norm.weight", names) or _has("layers.0.hidden_norm.weight", names):
        return EAGLE3_HEAD  # no other layer norms the hidden that it is given
    if _has("fc.weight", names):
        if _has("layers.0.self_attn.k_proj.weight", names):
            return EAGLE_HEAD
        return ASSISTANT if _has("layers.0.self_attn.q_proj.weight", names) else None
    architecture, layers = architecture_of(config), config.get("num_nextn_predict_layers") or 0
    if architecture == NEXTN_ARCHITECTURE or (architecture == DEEPSEEK_ARCHITECTURE and layers):
        if layers == 1 or type(layers) is not int:  # what is no number is for the config's reader to refuse
            return LATENT_NEXTN_LAYER
        return DraftKind(f"{shown(layers)} next-n layers (num_nextn_predict_layers) of a latent (MLA) model", None)
    return WHOLE_MODEL if not layers and _WHOLE.issubset(names) else None


def _is_nextn_layer(fusing: str, names: Collection[str]) -> bool:
    """Return True if the layer around this ``eh_proj`` has keys by head and no experts."""
    prefix = fusing.removesuffix(_FUSING)
    return f"{prefix}.self_attn.k_proj.weight" in names and f"{prefix}.mlp.up_proj.weight" in names


def _has(name: str, names: Collection[str]) -> bool:
    return name in names or f"model.{name}" in names


def require_kind(checkpoint: Checkpoint, algorithm: str, *wanted: DraftKind) -> DraftKind | None:
    """Return the checkpoint's kind: one of those ``wanted`` for ``algorithm``, or None where it cannot be told.
    Raises InvalidOption for another: at the algorithm if there is one for it, else at the draft."""
    kind = kind_of(checkpoint.config, checkpoint.names)
    if kind is None or kind in wanted:
        return kind
    needed = " or ".join(each.name for each in wanted)
    holds = f"{name_of(checkpoint.folder)} holds {kind.name}"
    if kind.algorithm is None:
        problem = f"{holds}, with which no algorithm drafts; for {algorithm} give {needed}"
        raise InvalidOption(problem, ("speculative", "draft_model"))
    problem = f"{algorithm} drafts with {needed}, and {holds}; set {kind.algorithm}"
    raise InvalidOption(problem, ("speculative", "algorithm"))
