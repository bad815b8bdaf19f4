"""The protocols between a model and the engine.

Shapes: n tokens of the batch, one after another; H target hidden size, Hd draft hidden size, V and Vd the two
vocabularies, Hq query heads, Hkv key-value heads, D head size. Models hold no state between calls.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from specdebug.engine.kernels.kv_cache import KVDestination


class LayerAttention(Protocol):
    """The engine's side of one layer: writes a batch's keys and values to the pool, then attends, or only attends."""

    def __call__(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [n, Hq, D]; k, v [n, Hkv, D], q and k already rotated -> [n, Hq*D].

        All three are slices of one [n, Hq + 2*Hkv, D] tensor, valid during this call only. Each head of q and k
        interleaves the two halves that RoPE rotates against each other (0, D/2, 1, D/2+1, ...): dot products stay, but
        a pool's keys are not in Hugging Face order.
        """

    def attend(self, layer_id: int, q: Tensor) -> Tensor:
        """q [n, Hq, D], rotated -> [n, Hq*D], over keys and values that have been written; writes none."""


@runtime_checkable
class StoredAttention(LayerAttention, Protocol):
    """One that lets the model write keys and values itself, in the kernel that rotates them."""

    def destination(self, layer_id: int) -> KVDestination:
        """The place to write to before ``attend``."""


class TargetOutput(NamedTuple):
    """hidden [n, H] after the final norm; aux [n, len(aux_layers)*H], or None when no layer was asked for."""

    hidden: Tensor
    aux: Tensor | None


class DraftSizes(Protocol):
    """All that an engine has to know of a draft model, whatever way of drafting it is for."""

    num_layers: int  # that write draft KV, ``LayerAttention`` is called with 0 .. num_layers-1; 0: there is no draft KV
    lookahead: int  # n, where draft KV of slot p depends on tokens up to p+n
    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_layout: str  # see ``memory.kv_pool``
    hidden_size: int  # Hd, of the hidden that it takes and returns
    vocab_size: int  # Vd, of its logits
    target_feature_size: int  # F, of the target features that it reads
    aux_layers: tuple[int, ...]  # to ask of ``TargetModel.forward``; () for its final hidden


class DraftModel(DraftSizes, Protocol):
    """A draft head: one recurrent pass over (token at p+1, feature at p)."""

    def project(self, target_features: Tensor) -> Tensor:
        """[n, F] features of the target -> [n, Hd], the hidden that forward() takes."""

    def forward(self, input_ids: Tensor, positions: Tensor, hidden: Tensor, attn: LayerAttention) -> Tensor:
        """Ids [n] i64 of the *target*, positions [n] i64, hidden [n, Hd] -> next hidden [n, Hd]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[m, Hd] as forward() returned it -> [m, Vd] in the model's dtype."""

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """Draft-vocabulary ids, any shape, i64 -> the target's ids."""
