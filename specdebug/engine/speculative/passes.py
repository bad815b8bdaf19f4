"""The part of a loop of draft passes that is the same whatever a pass attends."""

from __future__ import annotations

from torch import Tensor

from specdebug.async_probe import maybe_detect_nonfinite
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import DraftModel
from specdebug.engine.speculative.forward import Inputs, StepForward
from specdebug.engine.speculative.selection import DraftCandidates, Selection
from specdebug.events import DraftForward, Forward, Observers


class DraftPasses(StepForward[Inputs, DraftCandidates]):
    """One draft model's passes over one pool, and the selection of what goes on from one to the next."""

    name: Forward = "draft"

    def __init__(
        self,
        model: DraftModel,
        pool: KVPool,
        *,
        topk: int,
        num_steps: int,
        tree_size: int,
        target_vocab_size: int,
        observers: Observers,
    ) -> None:
        self.model = model
        self.pool = pool
        self.topk = topk
        self.num_steps = num_steps
        self.tree_size = tree_size
        self.target_vocab_size = target_vocab_size
        self._observers = observers
        self._selection = Selection(
            topk=topk,
            num_steps=num_steps,
            tree_size=tree_size,
            target_vocab_size=target_vocab_size,
            to_target_ids=model.to_target_ids,
            device=pool.device,
        )

    def _read_out(self, number: int, tokens: Tensor, parents: Tensor, hidden: Tensor) -> Tensor:
        """The logits [B·K, Vd] of pass ``number``, which computed hidden [B·K, Hd] of tokens (int64 [B·K]), whose
        parents (int64 [B, K]) are branches of the pass before."""
        logits = self.model.logits(hidden)
        maybe_detect_nonfinite(logits, "draft.forward.logits")
        self._observers.tell(DraftForward, number, tokens, parents.reshape(-1), logits)
        return logits
