"""What EAGLE and EAGLE-3 heads have in common: their geometry, as the engine's pools and buffers need it."""

from __future__ import annotations

from specdebug.engine.model.config import LlamaConfig


class DraftHead:
    """Sizes of a head; see ``interface.DraftModel`` for what each one means."""

    def __init__(
        self,
        config: LlamaConfig,
        *,
        num_layers: int,
        vocab_size: int,
        feature_size: int,
        aux_layers: tuple[int, ...],
    ) -> None:
        self.config = config
        self.num_layers = num_layers
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.hidden_size = config.hidden_size
        self.vocab_size = vocab_size
        self.target_feature_size = feature_size
        self.aux_layers = aux_layers
