"""Work: what is computed once is enough, and what can be done now is done, without any clock.

Each verify takes one forward of each stage; a decode step decodes all that runs; positions of a prompt are computed in
order, once; no step is idle while requests run; what has ended is computed no longer; and a prefix that is certain to
be cached is found. What breaks one of these gives the same tokens, only later.
"""

from collections import Counter
from typing import Any

from specdebug.events import (
    Aborting,
    AheadDropped,
    CacheFlushed,
    Event,
    InVain,
    Launched,
    PromptComputed,
    Queued,
    Stepped,
)
from specdebug.run.oracles.base import Bench, Oracle, OracleSettings
from specdebug.targets.http.request import ServedTexts
from specdebug.verdict.outcome import Violation

MOST_IDLE = 2
"""Idle steps on end while requests run: a schedule that overlaps has one between the last of a batch and the next."""
MOST_VAIN = 4
"""Batches with a request that has ended: one may be under way, and an abort is heeded by the next."""
LOOKAHEAD = 8
"""Most tokens behind a slot that its draft KV depends on."""


class WorkOracle(Oracle):
    """Adds up forwards, rows and turns. Each law is reported once a run: what breaks it does so in every step."""

    name = "work"
    needs = frozenset({"steps"})
    hears = (Queued, Aborting, CacheFlushed, Launched, AheadDropped, PromptComputed, InVain, Stepped)

    @classmethod
    def wanted(cls, settings: OracleSettings) -> bool:
        """Nothing is certain where a fault that is no bug changes by right what is served when."""
        return super().wanted(settings) and not settings.disturbed

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._told: set[str] = set()
        self._running: dict[str, Any] = {}
        """Requests that have output and go on, by name."""
        self._forwards: Counter[str] = Counter()
        self._ahead = int(bench.settings.target.device != "cpu")
        """Drafts that may have been made for a verify to come: a GPU begins the next step while the host looks."""
        self._computed: dict[str, int] = {}
        self._vain: dict[str, int] = {}
        """By request that has ended, the batches that it was in since."""
        self._idle = 0
        self._set_back: set[str] = set()
        self._texts = ServedTexts(*bench.session.cache)
        self._texts.flushed()

    def on(self, event: Event) -> None:
        match event:
            case Queued(request):
                self._texts.sent(request)
            case Aborting(request):
                self._running.pop(request.rid, None)
                self._vain[request.rid] = 0
            case CacheFlushed():
                self._texts.flushed()
            case Launched(forward):
                self._forwards[forward] += 1
            case AheadDropped():
                self._forwards["draft"] -= 1
            case PromptComputed(requests, starts, lens):
                for request, start, rows in zip(requests, starts, lens, strict=True):
                    self._prompt(request, start, rows)
            case InVain(_, rids):
                self._in_vain(rids)
            case Stepped():
                self._step(event)

    def _prompt(self, request: Any, start: int, rows: int) -> None:
        """A request that is set back computes anew what is not cached any more."""
        due = self._computed.get(request.rid, start)
        if start < due:
            self._report("rows", f"{request.rid}: positions from {start} are computed again, {due} were", request.rid)
        self._computed[request.rid] = start + rows

    def _in_vain(self, rids: tuple[str, ...]) -> None:
        for rid in self._vain.keys() & rids:
            self._vain[rid] += 1
            if self._vain[rid] > MOST_VAIN:
                self._report("vain", f"{rid} has ended, and {self._vain[rid]} batches since were computed with it", rid)

    def _step(self, report: Stepped) -> None:
        self.bench.looked(self.name)
        self._set_back.update(report.retracted)
        for rid in report.retracted:
            self._running.pop(rid, None)
            self._computed.pop(rid, None)
        if report.kind == "decode" and self.bench.settings.target.batches == 1:
            for rid in self._running.keys() - set(report.rids):
                self._report("turns", f"a decode step of {len(report.rids)} requests left out {rid}, which runs", rid)
        self._count_forwards(report)
        self._idle = self._idle + 1 if report.kind == "idle" and self._running else 0
        if self._idle > MOST_IDLE:
            self._report("idle", f"{self._idle} steps on end did nothing while {len(self._running)} requests run")
        for rid, found in self._first_found(report).items():
            if found < (owed := self._owed(rid)):
                self._report("hits", f"{rid} found {found} tokens in the cache, of which {owed} are certain", rid)
        for rid, tokens in report.emitted.items():
            if tokens:
                self._running[rid] = self.bench.session.request(rid)
        for rid in report.finished:
            self._vain[rid] = 0
            if (request := self._running.pop(rid, None)) is not None:
                self._texts.ended(request)

    def _first_found(self, report: Stepped) -> dict[str, int]:
        """By request whose first token this step gave, how much of its prompt was cached."""
        known = self._running.keys() | self._set_back
        fresh = [rid for rid, tokens in report.emitted.items() if tokens and rid not in known]
        return {rid: self.bench.session.request(rid).cached_tokens for rid in fresh}

    def _owed(self, rid: str) -> int:
        """An engine from elsewhere may leave out what its draft is to read, as vLLM does the last page; a slot of
        several next-n layers depends on several tokens behind it."""
        bench = self.bench
        exact = bench.session.own and bench.settings.target.algorithm != "MTP"
        return self._texts.owed(rid) - (0 if exact else max(bench.session.cache[0], LOOKAHEAD))

    def _count_forwards(self, report: Stepped) -> None:
        forwards, self._forwards = self._forwards, Counter()
        if not forwards:
            return
        for forward, count in forwards.items():
            most = 1 + (self._ahead if forward == "draft" else 0)
            if count > most:
                self._report("forwards", f"a step computed {count} forwards of {forward}, where {most} are due")
        if bool(report.accept_lengths) != bool(forwards["verify"]):
            verified = f"{len(report.accept_lengths)} requests were verified by {forwards['verify']} forwards"
            self._report("forwards", verified)

    def _report(self, site: str, detail: str, rid: str | None = None) -> None:
        if site not in self._told:
            self._told.add(site)
            data = {} if rid is None else {"rid": rid}
            self.bench.report(Violation("work", site, self.bench.step, detail, data=data))
