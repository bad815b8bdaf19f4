"""The protocols between a model and the engine.

Shapes: n tokens of the batch, one after another; H target hidden size, Hd draft hidden size, V and Vd the two
vocabularies, Hq query heads, Hkv key-value heads, D the width of a query and a key, Dv that of a value. Models hold no
state between calls.
"""

from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from specdebug.engine.kernels.kv_cache import KVDestination


class LayerAttention(Protocol):
    """The engine's side of one layer: writes a batch's keys and values to the pool, then attends, or only attends."""

    def __call__(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [n, Hq, D]; k [n, Hkv, D], v [n, Hkv, Dv], q and k already rotated -> [n, Hq*Dv].

        They may be slices of one tensor, and v of k; they are valid during this call only. Each head of q and k
        interleaves the two halves that RoPE rotates against each other (0, R/2, 1, R/2+1, ... of its last R columns,
        ``Heads.rotary_dim``): dot products stay, but a pool's keys are not in Hugging Face order.
        """

    def attend(self, layer_id: int, q: Tensor) -> Tensor:
        """q [n, Hq, D], rotated -> [n, Hq*D], over keys and values that have been written; writes none."""


@runtime_checkable
class StoredAttention(LayerAttention, Protocol):
    """One that lets the model write keys and values itself, in the kernel that rotates them."""

    def destination(self, layer_id: int) -> KVDestination:
        """The place to write to before ``attend``."""


class Heads(Protocol):
    """The attention geometry of a model, as its pool, its executors and those who read its KV need to know it: its
    layout's name in ``memory.kv_pool.KV_POOLS``; Hq, Hkv, D and Dv; R, the last columns of a key that RoPE turns; the
    factor of attention's scores."""

    @property
    def kv_layout(self) -> str: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def value_dim(self) -> int: ...
    @property
    def rotary_dim(self) -> int: ...
    @property
    def softmax_scale(self) -> float: ...


class DecoderConfig(Heads, Protocol):
    """What the engine asks of a model's config, of whatever family."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def max_position_embeddings(self) -> int: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...


class PositionTable(Protocol):
    """A model's table of RoPE."""

    @property
    def max_positions(self) -> int:
        """Positions 0 .. max_positions-1 are in the table."""

    def at(self, positions: Tensor) -> Tensor:
        """Prepare positions [n] i64 for the layers of one forward.
        Raises IndexError if one is outside the table; on a GPU this is not checked."""


class Layer(Protocol):
    """A decoder layer; the norm before attention belongs to the model around it."""

    def forward(self, normed: Tensor, residual: Tensor, phases: Tensor, attn: LayerAttention) -> Tensor:
        """Normed input [n, in], residual [n, H], ``PositionTable.at``'s phases -> [n, H], in the residual's place."""


class TargetOutput(NamedTuple):
    """hidden [n, H] after the final norm; aux [n, len(aux_layers)*H], or None when no layer was asked for."""

    hidden: Tensor
    aux: Tensor | None


class DraftSizes(Protocol):
    """All that an engine has to know of a draft model, whatever way of drafting it is for."""

    num_layers: int  # that write draft KV, ``LayerAttention`` is called with 0 .. num_layers-1; 0: there is no draft KV
    lookahead: int  # n, where draft KV of slot p depends on tokens up to p+n
    num_heads: int  # this and the next six: its ``Heads``
    num_kv_heads: int
    head_dim: int
    value_dim: int
    rotary_dim: int
    softmax_scale: float
    kv_layout: str
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
