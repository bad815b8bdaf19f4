"""What can happen in a run, as data: frozen records of requests, sites, tensors and numbers, and no engine's classes.

An engine tells its :class:`Observers` what it does. Each observer names the events that it ``hears`` and is handed
those by its one :meth:`Observer.on`. An event that no observer hears is never made: telling of it costs a look into a
table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, dataclass_transform

if TYPE_CHECKING:
    from torch import Tensor

BatchKind = Literal["prefill", "plain", "speculative"]
"""Prompt chunks; one token each by the target alone; or a speculative step."""

Stage = Literal["draft", "tree", "verify", "accept", "commit", "extend"]
"""The stages of a speculative step, in their order; each is a file of ``engine/textbook/speculative/``."""

Forward = Literal["draft", "verify", "draft_extend", "decode"]
"""The forwards that have graph runners: three of a speculative step, and one token each by the target alone."""


@dataclass_transform(frozen_default=True)
class Event:
    """Something that has happened, or is about to. Its subclasses are frozen dataclasses; those that hold tensors are
    compared by identity (``eq=False``)."""

    def __init_subclass__(cls, eq: bool = True) -> None:
        dataclass(frozen=True, eq=eq)(cls)


class StepBegan(Event):
    """A step begins. An engine counts its steps from 1."""

    step: int


class Scheduling(Event):
    """A step is about to choose what it computes, once all was done that was to be done as it began; ``over``: what it
    chose is computed and booked."""

    over: bool = False


class StepOver(Event):
    """The step is over. ``failed``: by an exception."""

    failed: bool = False


class BatchBegan(Event, eq=False):
    """These requests are computed together from now on, in this order. Batches nest: a draft prefills inside the
    target's prefill. ``lens``: in a prefill, the rows that each has; ``starts``: the position of the first, of what no
    batch is around."""

    kind: BatchKind
    requests: Sequence[Any]
    lens: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()


class BatchEnded(Event):
    """The innermost batch is computed no longer; it may have failed."""

    kind: BatchKind


class InVain(Event):
    """The batch of a step was computed ahead of what ended these requests: it counts for nothing of theirs."""

    step: int
    rids: tuple[str, ...]


class ShownNoMore(Event):
    """From here on nothing of a request is shown. ``why``: in words that follow its name."""

    rid: str
    why: str


class StageEntered(Event):
    """A speculative step enters a stage, or comes back to it."""

    stage: Stage


class AheadBegan(Event):
    """What is computed from now on belongs to the next step."""


class AheadEnded(Event):
    """What is computed from now on belongs to this step again."""


class AheadDropped(Event):
    """Work that was begun ahead will not be used: this step computes another batch."""


class Launched(Event):
    """A forward over ``batch_size`` requests is launched. One that was prepared and is not wanted any more never is.
    ``captured``: the size that its graph runner padded them to, None where it runs eagerly."""

    forward: Forward
    batch_size: int
    captured: int | None


class DraftForward(Event, eq=False):
    """Forward ``step`` of a draft loop, from 0, is computed, or captured in a graph, of whose replays nothing is told.
    It has a row for each of K branches of each request, and maybe of padding behind them. While a graph is captured
    the tensors hold nothing yet.

    tokens: int64 [B·K], what it reads. parents: int64 [B·K], the branch whose output of the forward before each row
    reads (at step 0: its own). logits: [B·K, Vd], over the draft's vocabulary.
    """

    step: int
    tokens: Tensor
    parents: Tensor
    logits: Tensor


class Decided(Event, eq=False):
    """A verify has chosen the nodes to accept of its requests' trees; rows still store what these were drafted from.

    Of the trees, which are those of this step, whatever was begun ahead:
        tokens, positions: int64 [B, T].
        mask: bool [B, T, T], [b, i, j] where j is i or an ancestor of i.
        retrieve_next_token, retrieve_next_sibling: int64 [B, T], first child and next sibling, -1 for none.
    Of the choice:
        logits: [B·T, V], the verify's; their memory is the next verify's, too.
        predict: int32 [B·T], at an accepted node the token that follows it.
        accept_index: int32 [B, S+1], flat nodes accepted, root first, -1 after.
        num_correct_drafts: int32 [B], drafts accepted.
        coins: float32 [B, S+2] on the host, where some were drawn.
        threshold_single, threshold_acc: below 1, drafts are accepted that the target's odds alone would not.
    Of the drafting: ``topk`` branches in ``num_steps`` steps, of which the tree takes T nodes.
    """

    requests: Sequence[Any]
    tokens: Tensor
    positions: Tensor
    mask: Tensor
    retrieve_next_token: Tensor
    retrieve_next_sibling: Tensor
    logits: Tensor
    predict: Tensor
    accept_index: Tensor
    num_correct_drafts: Tensor
    coins: Tensor | None
    topk: int
    num_steps: int
    threshold_single: float
    threshold_acc: float


class PromptComputed(Event, eq=False):
    """The target has computed prompt chunks, whose positions begin at ``starts``. hidden: [Σlens, H], a row for each
    token, before the head."""

    requests: Sequence[Any]
    starts: tuple[int, ...]
    lens: tuple[int, ...]
    hidden: Tensor


class TokensSampled(Event, eq=False):
    """The target has chosen a token for each request without a draft: ids [B] by logits [B, V]. After a chunk that does
    not end its prompt the token is not used. The logits' memory is the next step's, too."""

    requests: Sequence[Any]
    logits: Tensor
    ids: Tensor


class OfRequest(Event, eq=False):
    """Something has happened to a request, or is about to."""

    request: Any


class Queued(OfRequest, eq=False):
    """The request has arrived, and waits."""


class CacheFlushed(Event):
    """Every cached prefix that no request reads was forgotten, as the workload asks."""


class Prefilled(OfRequest, eq=False):
    """The request's whole prompt has KV, which can be looked at; the first token is sampled."""


class Finishing(OfRequest, eq=False):
    """The request's last token is out; its slots can be looked at, and are released right after."""


class Aborting(OfRequest, eq=False):
    """The request is about to be ended where it is."""


class Going(OfRequest, eq=False):
    """A step that gave the request tokens is over, and it goes on. Told where requests are looked at in each step."""


class Stepped(Event):
    """A step is over, and this is what it decided.

    kind: ``prefill``, ``decode`` or ``idle``; ``served`` in a session without steps, which tells what has ended.
    emitted: new tokens by request. accept_lengths: tokens that each verify accepted, bonus included.
    cached: prompt tokens out of the prefix cache, of requests that were first admitted in this step.
    """

    step: int
    kind: Literal["prefill", "decode", "idle", "served"]
    rids: tuple[str, ...] = ()
    emitted: dict[str, list[int]] = field(default_factory=dict)
    accept_lengths: dict[str, int] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    finished: tuple[str, ...] = ()
    retracted: tuple[str, ...] = ()


class RanksBegin(Event):
    """The ranks of a session are about to begin a step together."""

    step: int


class RankStepped(Event, eq=False):
    """A rank's part in a step is over. ``alike``: the ranks that do the same as it, itself included. ``facts``: what
    they must agree in, in order, each what it is of and a tensor or plain data. ``collectives``: those that it entered
    (``targets/ranks/collectives.py``)."""

    step: int
    rank: int
    alike: tuple[int, ...]
    facts: Sequence[tuple[str, Any]]
    collectives: Sequence[Any]


class AfterStep(Event):
    """What a step left behind can be looked at. ``failed``: by an exception. ``last``: nothing follows, so wait for
    what is on its way."""

    step: int
    failed: bool = False
    last: bool = False


class AllServed(Event):
    """The workload, these requests, is served, and none of it is served again yet."""

    rids: tuple[str, ...]


class DeviceLost(Event):
    """The device is lost: what had reached the host by then can still be told."""

    step: int


class Observer(Protocol):
    """Is told, by :meth:`on`, of the events of the classes that it ``hears``, and of no others."""

    @property
    def hears(self) -> Collection[type[Event]]: ...

    def on(self, event: Any) -> None: ...


Facts = ParamSpec("Facts")


class Observers:
    """The observers of one engine, each told in the order in which they were added. True if there is any."""

    def __init__(self) -> None:
        self._all: tuple[Observer, ...] = ()
        self._hearing: dict[Any, tuple[Observer, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, observer: Observer) -> None:
        """Tell ``observer`` what happens from now on."""
        self._arrange((*self._all, observer))

    def remove(self, observer: Observer) -> None:
        """Tell it nothing more. Harmless for one that is not there."""
        self._arrange(tuple(each for each in self._all if each is not observer))

    def _arrange(self, observers: tuple[Observer, ...]) -> None:
        self._all = observers
        kinds = {kind for each in observers for kind in each.hears}
        self._hearing = {kind: tuple(each for each in observers if kind in each.hears) for kind in kinds}

    def tell(self, kind: Callable[Facts, Event], *facts: Facts.args, **named: Facts.kwargs) -> None:
        """Tell of an event of this class, which has these facts."""
        if hearing := self._hearing.get(kind):
            event = kind(*facts, **named)
            for each in hearing:
                each.on(event)

    @contextmanager
    def computing(
        self, kind: BatchKind, requests: Sequence[Any], lens: tuple[int, ...] = (), starts: tuple[int, ...] = ()
    ) -> Iterator[None]:
        """Tell of a batch that is computed meanwhile."""
        self.tell(BatchBegan, kind, requests, lens, starts)
        try:
            yield
        finally:
            self.tell(BatchEnded, kind)

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Tell that what is computed meanwhile belongs to the next step."""
        self.tell(AheadBegan)
        try:
            yield
        finally:
            self.tell(AheadEnded)
