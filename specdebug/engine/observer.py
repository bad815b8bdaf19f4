"""An engine tells its observers of steps, batches, stages, the forwards it launches, and work begun ahead of its step.

The probes' sites pass in between: ``async_probe.on_site`` hands over every call, and ``sites.py`` says whose rows a
site's tensor has. An engine that nobody observes pays for a loop over nothing, a few times a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.engine.batch import PrefillBatch
    from specdebug.engine.config import SpeculativeConfig
    from specdebug.engine.engine import Engine
    from specdebug.engine.request import Request
    from specdebug.engine.speculative.accept import Acceptance
    from specdebug.engine.speculative.tree import VerifyTree

BatchKind = Literal["prefill", "plain", "speculative"]
"""Prompt chunks; one token each by the target alone; or a speculative step."""

Stage = Literal["draft", "tree", "verify", "accept", "commit", "extend"]
"""The stages of a speculative step, in their order; each is a file of ``speculative/``."""

Forward = Literal["draft", "verify", "draft_extend", "decode"]
"""The forwards that have graph runners: three of a speculative step, and one token each by the target alone."""


@dataclass(frozen=True, eq=False)
class ObservedBatch:
    """Requests that are computed together, in their order. ``lens``: in a prefill, the rows that each has."""

    kind: BatchKind
    requests: Sequence[Request]
    lens: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Decision:
    """A verify decided this of its requests, in their order. Trees and logits [B·T, V] are those of this step,
    whatever was begun ahead. The logits' memory is the next verify's, too."""

    requests: Sequence[Request]
    tree: VerifyTree
    logits: Tensor
    acceptance: Acceptance
    spec: SpeculativeConfig


@dataclass(frozen=True, eq=False)
class DraftForward:
    """Forward ``step`` of a draft loop, from 0: what it reads and says, a row for each of K branches of each request,
    and maybe of padding behind them.

    tokens: int64 [B·K]. parents: int64 [B·K], the branch whose output of the forward before each row reads (at step 0:
    its own). logits: [B·K, Vd], over the draft's vocabulary. While a graph is captured these hold nothing yet.
    """

    step: int
    tokens: Tensor
    parents: Tensor
    logits: Tensor


@dataclass(frozen=True)
class LaunchedForward:
    """A forward over ``batch_size`` requests. ``captured``: the size that its graph runner padded them to, None where
    it runs eagerly."""

    forward: Forward
    batch_size: int
    captured: int | None


class EngineObserver:
    """Hears what one engine does. A subclass overrides what it wants to hear of; the rest does nothing."""

    def on_step_begin(self, step: int) -> None:
        """A step begins. An engine counts its steps from 1."""

    def on_step_end(self) -> None:
        """The step is over, or has failed."""

    def on_batch_begin(self, batch: ObservedBatch) -> None:
        """The engine computes ``batch`` from now on. Batches nest: a draft prefills inside the target's prefill."""

    def on_batch_end(self, batch: ObservedBatch) -> None:
        """The engine computes it no longer; it may have failed."""

    def on_stage(self, stage: Stage) -> None:
        """A speculative step enters a stage, or comes back to it."""

    def on_ahead_begin(self) -> None:
        """The engine computes ahead: sites belong to the next step from now on."""

    def on_ahead_end(self) -> None:
        """Sites belong to this step again."""

    def on_ahead_dropped(self) -> None:
        """Work that was begun ahead will not be used: this step computes another batch."""

    def on_draft_forward(self, forward: DraftForward) -> None:
        """A forward of the draft loop is computed, or captured in a graph. Of a graph's replays nothing is told."""

    def on_launched(self, launch: LaunchedForward) -> None:
        """A forward is launched. One that was prepared and is not wanted any more is never launched."""

    def on_decided(self, decision: Decision) -> None:
        """The nodes to accept are chosen; rows still store what their trees were drafted from."""

    def on_prompt(self, batch: PrefillBatch, hidden: Tensor) -> None:
        """The target has computed prompt chunks: hidden states [Σext, H], a row for each token, before its head."""

    def on_sampled(self, requests: Sequence[Request], logits: Tensor, ids: Tensor) -> None:
        """The target has chosen a token for each request without a draft: ids [B] by logits [B, V]. After a chunk that
        does not end its prompt the token is not used. The logits' memory is the next step's, too."""

    def on_prefilled(self, engine: Engine, request: Request) -> None:
        """The whole prompt has KV, which can be looked at; the first token is sampled."""

    def on_finishing(self, engine: Engine, request: Request) -> None:
        """The last token is out; the request's slots can be looked at, and are released right after."""


class Observers:
    """The observers of one engine. Each hears everything, in the order in which they were added."""

    def __init__(self) -> None:
        self._all: tuple[EngineObserver, ...] = ()

    def __iter__(self) -> Iterator[EngineObserver]:
        return iter(self._all)

    def add(self, observer: EngineObserver) -> None:
        """Tell ``observer`` what the engine does from now on."""
        self._all = (*self._all, observer)

    def remove(self, observer: EngineObserver) -> None:
        """Tell it nothing more. Harmless for one that is not there."""
        self._all = tuple(each for each in self._all if each is not observer)

    @contextmanager
    def computing(self, kind: BatchKind, requests: Sequence[Request], lens: tuple[int, ...] = ()) -> Iterator[None]:
        """Tell of a batch that is computed meanwhile."""
        batch = ObservedBatch(kind, requests, lens)
        for each in self._all:
            each.on_batch_begin(batch)
        try:
            yield
        finally:
            for each in self._all:
                each.on_batch_end(batch)

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Tell that what is computed meanwhile belongs to the next step."""
        for each in self._all:
            each.on_ahead_begin()
        try:
            yield
        finally:
            for each in self._all:
                each.on_ahead_end()

    def draft_forward(self, forward: DraftForward) -> None:
        """Tell of a forward of the draft loop."""
        for each in self._all:
            each.on_draft_forward(forward)

    def launched(self, forward: Forward, batch_size: int, captured: int | None) -> None:
        """Tell of a launch."""
        for each in self._all:
            each.on_launched(LaunchedForward(forward, batch_size, captured))

    def decided(self, decision: Decision) -> None:
        """Tell of a decision."""
        for each in self._all:
            each.on_decided(decision)

    def prompt(self, batch: PrefillBatch, hidden: Tensor) -> None:
        """Tell of prompt chunks."""
        for each in self._all:
            each.on_prompt(batch, hidden)

    def sampled(self, requests: Sequence[Request], logits: Tensor, ids: Tensor) -> None:
        """Tell of tokens that the target chose alone."""
        for each in self._all:
            each.on_sampled(requests, logits, ids)

    def stage(self, stage: Stage) -> None:
        """Tell of a stage."""
        for each in self._all:
            each.on_stage(stage)
