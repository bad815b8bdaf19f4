"""One EAGLE iteration: draft, tree, verify, accept, commit, draft extend. The target's output decides every emitted
token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from specdebug.async_probe import maybe_detect_oob
from specdebug.engine.device import Readback, upload
from specdebug.engine.graph.runner import Runners, capture, launcher
from specdebug.engine.graph.tables import verify_table
from specdebug.engine.kernels.cache_locs import verify_cache_locs
from specdebug.engine.memory.arena import GuardViolation, Scratch
from specdebug.engine.textbook.attention.planner import SequenceLayout
from specdebug.engine.textbook.request import PrefillBatch, Request
from specdebug.engine.textbook.sampler import steered
from specdebug.engine.textbook.speculative.accept import Acceptance, Compacted, accept, commit_kv, compact_accepted
from specdebug.engine.textbook.speculative.draft import StateTable
from specdebug.engine.textbook.speculative.tree import TreeBuilder, VerifyTree
from specdebug.engine.textbook.speculative.verify import PreparedVerify, VerifyForward, VerifyStage
from specdebug.engine.workers.protocol import Drafter, DrafterParts, WorkerParts
from specdebug.engine.workers.registry import part_of
from specdebug.events import AheadDropped, Decided, StageEntered

AnyDrafter = TypeVar("AnyDrafter", bound=Drafter[Any])


class StagedWorker(Generic[AnyDrafter]):
    """A worker's parts, whatever drafts. ``drafts_ahead``: the next step may be begun before this one's tokens are
    read. ``ragged_extend``: the extend takes accepted rows only, which no graph of a fixed size can hold."""

    ragged_extend: ClassVar[bool] = False

    def __init__(self, parts: WorkerParts) -> None:
        spec, draft, device = parts.spec, parts.draft, parts.device
        self.drafts_ahead = False
        self._parts = parts
        self._scratch = Scratch(parts.fill, device)
        made_with = DrafterParts(parts, self._scratch, ragged_extend=self.ragged_extend)
        self.drafter: AnyDrafter = part_of(spec.algorithm, "drafter")(made_with)
        self._tree_builder = TreeBuilder(topk=spec.eagle_topk, tree_size=spec.tree_size, device=device)
        verify = VerifyForward(parts.target, parts.memory.target, draft.aux_layers, draft.target_feature_size)
        table = verify_table(parts, verify, spec.tree_size)
        verifies = launcher(parts, verify, parts.target_attention, self._scratch, table)
        self.runners = Runners(self.drafter.draft_runner, verifies.runner, self.drafter.extend_runner)
        capture(self.runners.all, device)
        self._verify = VerifyStage(parts, verifies)
        self._last_rows: tuple[tuple[int, ...], Tensor] | None = None

    @property
    def state(self) -> StateTable[Any]:
        return self.drafter.state

    def _rows_of(self, requests: Sequence[Request]) -> Tensor:
        """int64 [B]; the last batch's tensor when it had the same rows, as decode batches mostly do."""
        rows = tuple(request.row for request in requests)
        if self._last_rows is None or self._last_rows[0] != rows:
            self._last_rows = rows, upload(rows, self._parts.device)
        return self._last_rows[1]

    def prefill(self, batch: PrefillBatch, next_ids: Tensor, features: Tensor) -> None:
        self.drafter.prefill(batch, next_ids, features)
        self.state.store_lengths(batch.req_pool_indices, batch.prefix_lens + batch.extend_lens, next_ids)

    def _accept(self, requests: Sequence[Request], tree: VerifyTree, logits: Tensor) -> Acceptance:
        """Stage 4; tells what it has decided. logits: [B·T, V]."""
        spec, observers = self._parts.spec, self._parts.observers
        observers.tell(StageEntered, "accept")
        logits = steered(logits, requests, tree.paths)
        acceptance = accept(requests, tree, logits, spec, self._parts.config.seed)
        acceptance.probe_indices(spec.tree_size, self._parts.vocab_size)
        observers.tell(
            Decided,
            requests=requests,
            logits=logits,
            topk=spec.eagle_topk,
            num_steps=spec.num_steps,
            threshold_single=spec.threshold_single,
            threshold_acc=spec.threshold_acc,
            **vars(tree),
            **vars(acceptance),
        )
        return acceptance

    def check_guards(self) -> list[GuardViolation]:
        """Overruns of any runner's static buffers since the last call."""
        return [violation for runner in self.runners.all for violation in runner.check_guards()]

    def damage_seen(self) -> list[GuardViolation]:
        """Overruns that reached the host before the device was lost."""
        return [violation for runner in self.runners.all for violation in runner.damage_seen()]


def read_back(compacted: Compacted, *more: Tensor) -> Readback:
    """Queue a copy to the host of what each request accepted: a row for each of A, its T predictions, accepted ones
    first, and the columns of ``more`` ([B, n] each)."""
    lengths = compacted.accept_lengths.unsqueeze(1)
    return Readback(torch.cat([lengths, compacted.predict.view(lengths.shape[0], -1), *more], dim=1))


def bonus_of(compacted: Compacted, accept_lengths: Tensor) -> Tensor:
    """The last of each request's first accepted tokens, so many as ``accept_lengths`` (int64 [B]) says: int64 [B]."""
    predict = compacted.predict.view(accept_lengths.numel(), -1)
    return predict.gather(1, accept_lengths.unsqueeze(1) - 1).squeeze(1)


@dataclass(frozen=True)
class _Begun:
    """A decode step of ``requests`` up to its verify: drafted, its tree built, and prepared."""

    requests: tuple[Request, ...]
    tree: VerifyTree
    verify: PreparedVerify


class EagleWorker(StagedWorker[Drafter[Any]]):
    """SGLang's second worker: requests hold slots for two steps, and the host may lag behind the device."""

    def __init__(self, parts: WorkerParts) -> None:
        super().__init__(parts)
        self.drafts_ahead = parts.device.type == "cuda"  # a CPU has nothing to do meanwhile
        self._ahead: _Begun | None = None

    def decode(self, requests: Sequence[Request]) -> list[list[int]]:
        """One iteration; the tokens each request gained, at least one."""
        spec, observers = self._parts.spec, self._parts.observers
        lens_cpu = tuple(request.kv_len for request in requests)
        begun = self._take_begun(requests) or self._begin(requests, lens_cpu)
        inputs = begun.verify.inputs
        batch = SequenceLayout(inputs.req_pool_indices, inputs.seq_lens, lens_cpu)

        observers.tell(StageEntered, "verify")
        verified = self._verify.run(begun.verify, lens_cpu)

        acceptance = self._accept(requests, begun.tree, verified.logits)

        observers.tell(StageEntered, "commit")
        commit_kv(acceptance, inputs.out_cache_loc, spec, self._parts.memory.target, self._scratch)
        compacted = compact_accepted(acceptance, verified.features, spec)
        accepted, bonus = read_back(compacted), bonus_of(compacted, compacted.accept_lengths)
        self.state.store_lengths(batch.req_pool_indices, batch.seq_lens + compacted.accept_lengths, bonus)

        # Queued behind the read-back: a GPU extends, drafts for the next step and plans its verify while the host looks
        # at the tokens; the host then only launches it. The device knows enough for this, a request holds slots for
        # two steps, and if the next batch is another one, only the work is lost.
        observers.tell(StageEntered, "extend")
        self.drafter.extend(batch, compacted, inputs.out_cache_loc)
        with observers.ahead():
            self._ahead = self._begin_ahead(requests, lens_cpu)
        return [row[1 : row[0] + 1] for row in accepted.wait()]

    def _begin(self, requests: Sequence[Request], lens_cpu: tuple[int, ...], *, slack: int = 0) -> _Begun:
        """Draft by the device's state, build the tree, prepare the verify. Lengths are at most ``lens_cpu``, in all
        ``slack`` less."""
        observers, table = self._parts.observers, self._parts.req_to_token.table
        rows = self._rows_of(requests)

        observers.tell(StageEntered, "draft")
        state = self.state.gather(rows)
        slots = verify_cache_locs(table, rows, state.seq_lens, self._parts.spec.tree_size)
        maybe_detect_oob(slots, 0, self._parts.memory.target.size, "verify.out_cache_loc")
        candidates = self.drafter.draft(rows, state, slots, lens_cpu)

        observers.tell(StageEntered, "tree")
        tree = self._tree_builder.build(candidates, state.bonus, state.seq_lens)

        observers.tell(StageEntered, "verify")
        prepared = self._verify.prepare(tree, rows, state.seq_lens, slots, lens_cpu, slack)
        return _Begun(tuple(requests), tree, prepared)

    def _begin_ahead(self, requests: Sequence[Request], lens_cpu: tuple[int, ...]) -> _Begun | None:
        """Begin on a GPU the step after this one, whose lengths grow by one token to a whole tree. None where one could
        be past the context: its request ends with this step, and tables and buffers may be too."""
        nodes = self._parts.spec.tree_size
        longest = tuple(length + nodes for length in lens_cpu)
        if not self.drafts_ahead or max(longest) > self._parts.config.context_length:
            return None
        return self._begin(requests, longest, slack=len(longest) * (nodes - 1))

    def _take_begun(self, requests: Sequence[Request]) -> _Begun | None:
        """Take the step that was begun ahead, if it was for these requests in this order; else drop it."""
        if self._ahead is not None and self._ahead.requests != tuple(requests):
            self._drop_ahead()
        begun, self._ahead = self._ahead, None
        return begun

    def _drop_ahead(self) -> None:
        if self._ahead is None:
            return
        self._parts.observers.tell(AheadDropped)
        self._verify.abandon(self._ahead.verify)
        self._ahead = None

    def prefill(self, batch: PrefillBatch, next_ids: Tensor, features: Tensor) -> None:
        self._drop_ahead()  # a request may come back to other rows
        super().prefill(batch, next_ids, features)
