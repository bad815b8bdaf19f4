"""An engine on several ranks: its schedulers, unedited, each in a process of its own, one step at a time. The worker is
rank 0, and the others are forked from it; requests pass between them as the engine has it."""

from __future__ import annotations

import dataclasses
import time
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from torch import Tensor

from specdebug import async_probe
from specdebug.base.abilities import Ability
from specdebug.events import Decided, Prefilled, RanksBegin, RankStepped, Stepped
from specdebug.patching.hits import add_hits, take_hits
from specdebug.targets.base import Session, StoredDrafts
from specdebug.targets.ranks.collectives import Board, FlightRecorder
from specdebug.targets.ranks.crew import Crew, hear, messages, tell
from specdebug.targets.ranks.layout import RankLayout
from specdebug.targets.ranks.told import Noted, RankedRequest, RankReport, other_part, retold
from specdebug.targets.requests import Lost, NotShown, RequestView, Sampling, SessionFailed

HIDDEN: frozenset[Ability] = frozenset({"set_back"})
"""What a session of several ranks does not show."""
_FLUSH_STEPS = 8
_PAUSE_S = 0.001

Calls = list[tuple[str, tuple[Any, ...]]]
"""Methods of a rank's session to call, with their arguments."""
Starts = Mapping[str | None, Any]
"""What engines are started with, by the role of a server."""
Make = Callable[[int, Callable[[], None] | None, Starts], "RankSession"]
"""Builds the session of a rank, which is watched meanwhile."""


class RankSession(Session):
    """A session that may be one of several ranks, and what those need of it beside."""

    @abstractmethod
    def admitted(self, rid: str, prompt_ids: Sequence[int], sampling: Sampling, speculative: bool) -> Sampling:
        """The sampling of a request as it is served. Raises CannotBeServed."""

    @abstractmethod
    def arrive(self, rid: str, prompt_ids: tuple[int, ...], sampling: Sampling, speculative: bool, room: int) -> None:
        """Take in a request that was admitted. ``room``: by which servers know what they hand over."""

    @abstractmethod
    def flushed(self) -> bool:
        """Flush the cache, unless the scheduler still waits for something."""

    @abstractmethod
    def idle(self) -> None:
        """One iteration in which nothing arrives, which is no step."""

    @abstractmethod
    def joined(self, rows: Sequence[Any]) -> StoredDrafts:
        """What requests store, each of which has told a row of it (``stored``)."""

    @abstractmethod
    def fall_behind(self) -> None:
        """Take in what arrives at the next step one step later: a rank out of step."""


class Transfers(Protocol):
    """Threads that hand over what a server has prefilled; ``wrong``: a fault's act upon the next of this process."""

    wrong: str | None

    @property
    def quiet(self) -> bool:
        """Return True if all that was begun is over."""


@dataclass(frozen=True)
class _Turn:
    """An order to a rank: calls between two steps, then a step, unless it is only to answer ``asked``."""

    calls: Calls
    tampering: str | None = None
    asked: str = ""


OTHER_ROWS = 0.05
"""Share of its norm that a handed key or value may be off. A request whose prompt begins as one prefilled beside it
hands over that one's rows, which rounding sets apart; what another text wrote is off by a good part."""


class Ranks:
    """The processes of a session, of which this is rank 0. The others are forked now: on a GPU before this one takes
    it, and on a CPU once the engine is imported."""

    def __init__(self, layout: RankLayout, make: Make, limit_s: float, handovers: Transfers | None = None) -> None:
        """``limit_s``: the run's time limit. ``handovers``: of servers that hand requests over."""
        self.layout, self._make = layout, make
        board = Board(layout.world)

        def recorder(rank: int) -> FlightRecorder:
            return FlightRecorder(board, rank, layout.role(rank))

        self._recorder = recorder(0)
        self._handovers = handovers
        self._crew = Crew(board, lambda number, channel: self._live(recorder(number), channel), limit_s)

    def open(self, starts: Starts, heads: int) -> RankedSession:
        """Build all schedulers together, and return the session. Raises SessionFailed, and what the engine raises."""
        for rank in self._crew.numbers:
            self._crew.send(rank, starts)
        try:
            session = self._built(self._recorder, self._crew.watch, starts)
            self._crew.receive()
            self._crew.built()
        except BaseException as error:
            blamed = self._crew.blame(error)
            self._crew.end()
            raise blamed from None
        return RankedSession(session, self._crew, self.layout, heads, self._recorder, self._handovers)

    def _built(self, recorder: FlightRecorder, watch: Callable[[], None], starts: Starts) -> RankSession:
        recorder.begin()
        return self._make(recorder.rank, watch, starts)

    def _live(self, recorder: FlightRecorder, channel: Connection) -> None:
        take_hits()  # those from before the fork are the worker's
        session = self._built(recorder, _unwatched, hear(channel))
        _serve(self.layout, session, recorder, self._handovers, channel)


def _unwatched() -> None:
    """The worker watches its ranks, and these watch nothing."""


def _noted(layout: RankLayout, session: RankSession, rank: int) -> Noted:
    shows_kv, handed = "kv" in session.shows, layout.role(rank) == "decode"
    noted = Noted(session, leading=layout.leads(rank), shows_kv=shows_kv, handed=handed)
    session.observers.add(noted)
    session.record()
    session.inside.sites.also = noted.add
    return noted


def _serve(
    layout: RankLayout,
    session: RankSession,
    recorder: FlightRecorder,
    handovers: Transfers | None,
    channel: Connection,
) -> None:
    """Be a rank other than the worker's: do what each turn says, and tell of it."""
    noted = _noted(layout, session, recorder.rank)
    tell(channel, "built")
    for turn in messages(channel):
        if turn.asked:
            tell(channel, getattr(session, turn.asked)())
        else:
            stepped = _stepped(turn, session, recorder, handovers)
            report = noted.report(stepped, recorder.taken(), async_probe.drain())
            report.hits = take_hits()
            tell(channel, report)


def _stepped(turn: _Turn, session: RankSession, recorder: FlightRecorder, handovers: Transfers | None) -> Stepped:
    """A rank's step, once it has taken in what comes before it."""
    for name, given in turn.calls:
        getattr(session, name)(*given)
    if turn.tampering == "behind":
        session.fall_behind()
    elif handovers is not None and turn.tampering is not None and turn.tampering.startswith("transfer"):
        handovers.wrong = turn.tampering
    else:
        recorder.tampering = turn.tampering
    return session.advance()


class Controls:
    """The ranks as faults see them."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.due: dict[int, str] = {}
        self.arriving = False
        """Requests arrive at the step that is about to begin."""

    def tamper(self, rank: int, how: str) -> None:
        """Have this done by a rank in the step that is about to begin."""
        self.due[rank] = how


class RankedSession(Session):
    """An engine's schedulers, which serve together."""

    own = False

    def __init__(
        self,
        inner: RankSession,
        crew: Crew,
        layout: RankLayout,
        heads: int,
        recorder: FlightRecorder,
        handovers: Transfers | None,
    ) -> None:
        self._inner, self._crew, self._layout, self._heads = inner, crew, layout, heads
        self._recorder, self._handovers = recorder, handovers
        self.shows, self.asked, self.vocab_size = inner.shows - HIDDEN, inner.asked, inner.vocab_size
        self.cache = inner.cache if layout.dp == 1 else (0, 0)  # each part has its own
        self._noted = _noted(layout, inner, 0)
        self._requests: dict[str, RankedRequest] = {}
        self._calls: dict[int, Calls] = {rank: [] for rank in range(layout.world)}
        self._problems: list[str] = []
        self._findings: list[tuple[int, async_probe.ProbeFinding]] = []
        self._handed: dict[str, list[int]] = {}
        """By request, the tokens of a prefill elsewhere that what decodes has not told of yet."""
        self._stored: dict[str, tuple[Any, dict[str, Any]]] = {}
        """By request, what a prefill elsewhere has stored for the first draft, and its keys and values."""
        self._step = 0
        self._controls = Controls(layout.world)
        self._owed = Counter[int]()
        """By rank, the turns that it has not told of: a stage ends one once the stage before it is in a later one."""
        self._untold: dict[int, deque[RankReport]] = {rank: deque() for rank in range(layout.world)}

    @property
    def inside(self) -> Any:
        """Rank 0 as faults see it, and recorders, with controls of the other ranks."""
        inside = self._inner.inside
        inside.view.ranks = self._controls
        return inside

    @property
    def has_work(self) -> bool:
        return any(each.finish_reason is None for each in self._requests.values())

    def begin(self, seed: int) -> None:
        self._call("begin", seed)

    def add(self, rid: str, prompt_ids: Sequence[int], sampling: Sampling, *, speculative: bool) -> None:
        sampling = self._inner.admitted(rid, prompt_ids, sampling, speculative)
        part = self._layout.part_of(len(self._requests))
        self._requests[rid] = RankedRequest(rid, tuple(prompt_ids), sampling, speculative, part)
        room = len(self._requests) * self._layout.dp + part  # 0 is none
        self._call("arrive", rid, tuple(prompt_ids), sampling, speculative, room, part=part)

    def abort(self, rid: str) -> None:
        request = self._requests[rid]
        request.finish_reason = "abort"
        self._call("abort", rid, part=request.part)

    def _call(self, name: str, *given: Any, part: int | None = None) -> None:
        for rank, calls in self._calls.items():
            if part is None or self._layout.part(rank) == part:
                calls.append((name, given))

    def advance(self) -> Stepped:
        self._step += 1
        self._controls.arriving = any(name == "arrive" for calls in self._calls.values() for name, _ in calls)
        self._inner.observers.tell(RanksBegin, self._step)
        reports = self._turn()
        for part in range(self._layout.dp):
            if self._layout.disaggregation is not None:
                self._prefilled([reports[rank] for rank in self._layout.peers(self._layout.leader(part, "prefill"))])
            alike = [reports[rank] for rank in self._layout.peers(self._layout.leader(part))]
            self._compare_handed(alike[0])
            retold(alike, self._heads, self._requests, self.observers)
            for rid, facts in alike[0].requests.items():
                self._requests[rid].update(facts)
        self._tell_ranks(reports)
        parts = range(self._layout.dp)
        leading = [reports[self._layout.leader(part)].stepped for part in parts]
        if self._layout.disaggregation is not None:
            leading = [*map(self._without_handed, leading), *(self._prefill_of(part, reports) for part in parts)]
        return leading[0] if len(leading) == 1 else _merged(self._step, leading)

    def _tell_ranks(self, reports: Mapping[int, RankReport]) -> None:
        """Take in what ranks report, and tell of each step once all have."""
        for rank, report in reports.items():
            self._untold[rank].append(report)
            add_hits(report.hits)
            self._findings += [(rank, each) for each in report.findings]
            self._problems += report.problems if not rank else [f"{each} (rank {rank})" for each in report.problems]
        while all(self._untold.values()):
            for rank, untold in self._untold.items():
                report, same = untold.popleft(), tuple(self._layout.peers(rank))
                step = report.stepped.step
                self.observers.tell(RankStepped, step, rank, same, report.facts, report.collectives)

    def _prefill_of(self, part: int, reports: Mapping[int, RankReport]) -> Stepped:
        """The step of what prefills: of each request it gives the first token, and hands that over."""
        theirs = reports[self._layout.leader(part, "prefill")].stepped
        self._handed |= theirs.emitted
        return Stepped(theirs.step, theirs.kind, theirs.rids, theirs.emitted, cached=theirs.cached)

    def _without_handed(self, stepped: Stepped) -> Stepped:
        """The step of what decodes, whose first tokens of a request begin with those that it was handed."""
        emitted = dict(stepped.emitted)
        for rid in emitted.keys() & self._handed.keys():
            handed = self._handed.pop(rid)
            if (found := emitted[rid][: len(handed)]) != handed:
                self._problems.append(f"handed: {rid} goes on from the tokens {found}, and its prefill gave {handed}")
            emitted[rid] = emitted[rid][len(handed) :]
        return dataclasses.replace(stepped, emitted=emitted)

    def _prefilled(self, reports: list[RankReport]) -> None:
        """Tell what the server that prefills has done; how its part of a request ends is no end of that."""
        for report in reports:
            report.said = [said for said in report.said if said.kind is Prefilled]
        retold(reports, self._heads, self._requests, self.observers)
        for said in reports[0].said:
            self._stored |= {rid: (seen["stored"], seen.get("kv", {})) for rid, seen in said.requests.items()}

    def _compare_handed(self, report: RankReport) -> None:
        """The law ``handed``: what decodes goes on from what the prefill stored."""
        for said in report.said if self._stored else ():
            for rid in said.requests.keys() & self._stored.keys() if said.kind is Decided else ():
                (stored, kv), seen = self._stored.pop(rid), said.requests[rid]
                part = None if stored is None else other_part(stored, seen["stored"])
                found = f"drafts from another {part}, where its prefill stored it" if part else _other_kv(kv, seen)
                if found:
                    self._problems.append(f"handed: {rid} {found}")

    def _turn(self) -> dict[int, RankReport]:
        """One step of all ranks; their reports in order, of later stages those of earlier steps. Raises SessionFailed,
        RankFailed, and what the engine raises."""
        calls, self._calls = self._calls, {rank: [] for rank in self._calls}
        due, self._controls.due = self._controls.due, {}
        reports: dict[int, RankReport] = {}
        for ranks in self._layout.turns():
            others = [rank for rank in ranks if rank]
            for rank in others:
                self._crew.send(rank, _Turn(calls[rank], due.get(rank)))
                self._owed[rank] += 1
            if 0 in ranks:
                reports[0] = self._own_turn(_Turn(calls[0], due.get(0)))
            reports |= self._received([rank for rank in others if self._owed[rank] > self._layout.stage(rank)])
            self._come_to_rest()
        return dict(sorted(reports.items()))

    def _received(self, ranks: Sequence[int]) -> dict[int, Any]:
        self._owed.subtract(ranks)
        return self._crew.receive(ranks)

    def _own_turn(self, turn: _Turn) -> RankReport:
        try:
            stepped = _stepped(turn, self._inner, self._recorder, self._handovers)
            return self._noted.report(stepped, self._recorder.taken(), [])
        except SessionFailed as error:
            raise self._crew.blame(error) from None

    def _come_to_rest(self) -> None:
        """Wait until no thread of any rank hands anything over. Raises RankFailed."""
        while self._handovers is not None and not self._handovers.quiet:
            self._crew.watch()
            time.sleep(_PAUSE_S)

    def request(self, rid: str) -> RequestView:
        return self._requests[rid]

    def want_logprobs(self) -> None:
        self._call("want_logprobs")

    def logprobs(self, rid: str) -> Sequence[float]:
        return self._requests[rid].logprobs

    def top_logprobs(self, rid: str) -> Sequence[Mapping[int, float]]:
        return self._requests[rid].tops

    def clock(self) -> float:
        return self._inner.clock()

    def settle(self) -> bool:
        return self._inner.settle()

    def books(self) -> Mapping[str, Any]:
        return self._inner.books()

    def record(self, *, beside_ours: bool = False) -> None:
        """Rank 0's sites are recorded; facts of the ranks are compared without."""

    def lost(self) -> Sequence[Lost]:
        return self._inner.lost()

    def check_pools(self) -> Sequence[str]:
        problems, self._problems = self._problems, []
        return problems

    def findings(self) -> Sequence[tuple[int, async_probe.ProbeFinding]]:
        found, self._findings = self._findings, []
        return found

    def flush_cache(self) -> None:
        """Raises SessionFailed where a scheduler still waits for something although none serves a request."""
        self._drain()
        for _ in range(_FLUSH_STEPS):
            if all(self._ask("flushed")):
                return
            self._ask("idle")
        raise SessionFailed("a scheduler serves no request and does not come to rest", "scheduler.flush_cache")

    def _drain(self) -> None:
        """Let a pipeline end what is under way, and take in what its later stages owe."""
        rounds = 2 * self._layout.pp if self._owed.total() else 0
        for _ in range(rounds):
            for rank in self._crew.numbers:
                self._crew.send(rank, _Turn([], asked="idle"))
            self._inner.idle()
        for rank in self._crew.numbers:
            for _ in range(self._owed[rank]):
                self._tell_ranks(self._received([rank]))
            for _ in range(rounds):
                self._crew.receive([rank])

    def _ask(self, what: str) -> list[Any]:
        """The answers of all ranks, rank 0's first."""
        for rank in self._crew.numbers:
            self._crew.send(rank, _Turn([], asked=what))
        mine = getattr(self._inner, what)()
        others = self._crew.receive()
        return [mine, *(others[rank] for rank in self._crew.numbers)]

    def draft_kv(self, request: RequestView, start: int, stop: int) -> tuple[Tensor, Tensor]:
        return self._kv("draft", request, start, stop)

    def target_kv(self, request: RequestView, start: int, stop: int) -> tuple[Tensor, Tensor]:
        return self._kv("target", request, start, stop)

    def _kv(self, pool: str, request: RequestView, start: int, stop: int) -> tuple[Tensor, Tensor]:
        kept = self._requests[request.rid].kv.get(pool)
        if kept is None or kept[0].shape[1] < stop:  # they are told at a prefill's end and at the request's alone
            raise NotShown(request.rid)
        return kept[0][:, start:stop], kept[1][:, start:stop]

    def draft_state(self, requests: Sequence[RequestView]) -> StoredDrafts:
        rows = [self._requests[each.rid].stored for each in requests]
        if any(row is None for row in rows):
            raise NotShown(requests[0].rid)
        return self._inner.joined(rows)

    def close(self, sound: bool) -> None:
        self._crew.end()
        self._inner.close(sound)


def _other_kv(wrote: Mapping[str, tuple[Tensor, Tensor]], seen: Mapping[str, Any]) -> str:
    """The first position whose target keys or values are not those that a prefill elsewhere wrote, in words."""
    ours, theirs = wrote.get("target"), seen.get("kv", {}).get("target")
    for name, one, other in zip(("key", "value"), ours or (), theirs or (), strict=False):
        off = (one.float() - other[:, : one.shape[1]].float()).norm(dim=(2, 3))
        far = ~(off <= OTHER_ROWS * one.float().norm(dim=(2, 3))).all(dim=0)  # written so that NaN is far
        if bool(far.any()):
            return f"has another target {name} at position {int(far.nonzero()[0])} than its prefill wrote"
    return ""


def _merged(step: int, parts: Sequence[Stepped]) -> Stepped:
    """The steps of all parts as one; it is a prefill if that of any part is."""
    kinds = [each.kind for each in parts]
    return Stepped(
        step,
        "prefill" if "prefill" in kinds else "decode" if "decode" in kinds else "idle",
        tuple(rid for each in parts for rid in each.rids),
        {rid: tokens for each in parts for rid, tokens in each.emitted.items()},
        {rid: length for each in parts for rid, length in each.accept_lengths.items()},
        {rid: count for each in parts for rid, count in each.cached.items()},
        tuple(rid for each in parts for rid in each.finished),
        tuple(rid for each in parts for rid in each.retracted),
    )
