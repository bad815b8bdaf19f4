"""What is done with one session in a worker: put the reverts in place, open the session, use it, name what fails.
Imported before any revert is in place, so it imports nothing of the engine. All is reported as it happens."""

from __future__ import annotations

import pickle
import re
import resource
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast

from specdebug.base.abilities import Ability
from specdebug.base.content import content_of
from specdebug.base.errors import InvalidOption, SpecDebugError
from specdebug.base.trial import Warm
from specdebug.patching.hook.ours import tell_hits
from specdebug.targets.base import Busy, OverThere, Session
from specdebug.targets.requests import SessionFailed
from specdebug.verdict.deaths import ENGINE, device_failure, device_lost, noticed_in, out_of_memory
from specdebug.verdict.outcome import EXIT_CODES, Violation
from specdebug.workers.device import DeviceUnavailable, leave_now, wait_for_coredump
from specdebug.workers.forkserver import start_over
from specdebug.workers.machine_failure import MachineFailed, machine_failure
from specdebug.workers.wire import Sink

if TYPE_CHECKING:
    from specdebug.patching import Applied, Patch
    from specdebug.patching.toggles import Toggle
    from specdebug.scenario.grammar import Scenario

SHARED = ("kernels.", "attention.", "gpu.", "memory.", "model.", "async_probe.")
"""Modules below the engine that every stage calls."""
_OUT_OF_RANGE = re.compile(r"out of (bounds|range)|illegal memory access", re.IGNORECASE)
_NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory", re.IGNORECASE)


def violation_of(error: BaseException, step: int) -> Violation:
    """Classify ``error``, raised during ``step``. In this order: the failure of a session's engine elsewhere, which
    says what it is; an asserting probe (its message names kind and site), the engine's own errors that carry a site, a
    failure of the device (see ``verdict/deaths.py``; ``data`` says whether the device is lost), memory exhausted, an
    index outside its tensor (on a GPU an illegal address), a failed ``assert``, anything else."""
    from specdebug.async_probe import parse_message
    from specdebug.engine.errors import IllegalAddress, PlanAssertion

    text = " ".join(str(error).split())
    detail = f"{type(error).__name__}: {text}" if text else type(error).__name__
    sites = _engine_sites(error.__traceback__)
    if isinstance(error, SessionFailed):
        return Violation(error.kind, error.site, step, text, data=dict(error.data))
    probe = parse_message(str(error))
    if probe is not None:
        return Violation(probe.kind, probe.site, step, probe.message(), count=probe.count or 1)
    if isinstance(error, IllegalAddress | PlanAssertion):
        kind = "assert" if isinstance(error, PlanAssertion) else "illegal-address"
        caller = next((site for site in reversed(sites) if not site.startswith(SHARED)), "")
        called = f"; called by {caller}" if caller else ""
        data = {"caller": caller, "arena": getattr(error, "arena", None)}
        known = {name: each for name, each in data.items() if each}
        return Violation(kind, error.site, step, f"{text}{called}", data=known)
    device = device_failure(error)
    if device is not None:
        memory = out_of_memory(error)
        where, told = ("cuda", memory) if memory else (noticed_in(error.__traceback__), device.line)
        return Violation(device.kind, where, step, told, data={"device": "cuda", "lost": device.lost})
    if _out_of_host_memory(error):
        return Violation("oom", "", step, detail)
    kind = "assert" if isinstance(error, AssertionError) else "error"
    if isinstance(error, IndexError | RuntimeError) and _OUT_OF_RANGE.search(text):
        kind = "illegal-address"
    return Violation(kind, sites[-1] if sites else "engine", step, detail)


def beyond_the_machine(error: BaseException) -> str | None:
    """One line for memory that this machine does not have; ask ``machine_failure`` first for what is used up."""
    if device_failure(error) is not None or not _out_of_host_memory(error):
        return None
    return f"the engine asks for more memory than this machine has: {' '.join(str(error).split())}"


def _out_of_host_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error))))


def _engine_sites(trace: TracebackType | None) -> list[str]:
    """``module.qualname`` of each engine frame, the innermost last."""
    frames = [frame for frame, _ in walk_tb(trace) if str(frame.f_globals.get("__name__", "")).startswith(ENGINE)]
    modules = [frame.f_globals["__name__"].removeprefix(ENGINE).removeprefix("textbook.") for frame in frames]
    return [f"{module}.{frame.f_code.co_qualname}" for module, frame in zip(modules, frames, strict=True)]


IN_PROCESS: Literal["inprocess"] = "inprocess"
AT_IMPORT: Literal["import"] = "import"
Hits = dict[str, dict[str, int]]  # by fix, and by edit, how often it has run


def _imported(payload: Mapping[str, Any]) -> bool:
    """Return True if this process had the engine of its home imported when it began."""
    return payload.get("engine") in sys.modules


class SessionRun(ABC):
    """One run of what ``replay.ArmRun.job_of`` packed. :meth:`run` only returns, or ends the process where that has
    lost its device; derived classes say by :meth:`_work` what the session is opened for."""

    def __init__(self, payload: Mapping[str, Any], sink: Sink, in_place: Callable[[], Hits] | None = None) -> None:
        """``in_place`` reads how often the edits have run where the reverts are in place already."""
        self._payload = payload
        self._in_place = in_place
        self._sink = _Noting(sink)
        self._busy = Busy(self._sink.emit)
        self._stages: dict[str, float] = {}
        self._coredump: str | None = None
        self._lost = False
        self._reverts: Sequence[Toggle] = ()
        self._session: Session | None = None
        self._warm: Warm = "imported" if in_place or _imported(payload) else "cold"

    @abstractmethod
    def _work(self, scenario: Scenario) -> None:
        """Open the session, as ``self._session``, and do with it what is to be done."""

    def _step(self) -> int:
        """The step in which what :meth:`_work` raises was met."""
        return 0

    @abstractmethod
    def _leave(self) -> None:
        """Free what :meth:`_work` has opened beside the session."""

    def run(self) -> None:
        """Do all of it. What the user has to mend is told as ``usage``."""
        try:
            self._run()
        except DeviceUnavailable as error:
            self._sink.emit("usage", message=str(error), option=["device"], unavailable=True)
        except InvalidOption as error:
            self._sink.emit("usage", message=error.reason, option=list(error.key_path))
        except SpecDebugError as error:
            self._sink.emit("usage", message=str(error))

    def _run(self) -> None:
        with self._stage("revert"):
            hits = self._revert()
        if hits is None:
            return
        scenario: Scenario = pickle.loads(self._payload["scenario"])
        try:
            self._work(scenario)
        except MachineFailed as error:
            self._sink.emit("machine", cause=error.failure.cause, line=error.failure.line)
        except SpecDebugError as error:
            from specdebug.engine.errors import FlashInferError  # a lack of this machine, not of other arms

            if error.exit_code == EXIT_CODES["unknown"] or isinstance(error, FlashInferError):
                self._sink.emit("impossible", reason=str(error), unavailable=True)
            elif error.exit_code == 2:
                raise
            else:
                self._fail(error)
        except Exception as error:
            self._fail(error)
        finally:
            self._leave()
            self._tell_end(hits())
            if self._session is not None:
                self._session.close(not self._sink.violated)
        spent = round(time.process_time() + _of_children(), 4)
        self._sink.emit("done", stages_s=self._stages, peak_rss_mb=_peak_rss_mb(), processor_s=spent, warm=self._warm)
        if self._lost:  # everything is reported: end here, while the engine still holds what it had on the device
            if self._coredump is not None:
                wait_for_coredump(self._coredump)
            leave_now()

    def _tell_end(self, hits: Hits) -> None:
        """Tell what was reached in the end, and which looks were lost."""
        from specdebug import async_probe, kernel_memory

        server = None if self._session is None else self._session.server
        for lost in () if self._session is None else self._session.lost():
            self._sink.emit("lost", text=str(lost), stand_in=lost.stand_in)
        here = {**async_probe.reached(), **kernel_memory.launches()}
        tell_hits(hits)
        self._sink.emit("coverage", reached=here if server is None else dict(server.reached()), hits=hits)

    def _fail(self, error: Exception) -> None:
        """Report an exception outside a step; one of a machine that is too small says nothing of the engine."""
        traceback.print_exc()
        machine = next(filter(None, map(machine_failure, _chain(error))), None)
        if machine is not None:
            self._sink.emit("machine", cause=machine.cause, line=machine.line)
            self._lost = machine.cause == "device"
            return
        memory = next(filter(None, map(out_of_memory, _chain(error))), None)
        self._lost = device_lost(error)
        beyond = beyond_the_machine(error)
        if memory is not None and not self._lost:
            beyond = f"{memory} (while loading or capturing graphs)"
        if beyond:
            self._sink.emit("impossible", reason=beyond, unavailable=True)
            return
        self._sink.emit("violation", **asdict(violation_of(error, self._step())))

    def _revert(self) -> Callable[[], Hits] | None:
        """Put the fixes' reverts in place; returns a reader of how often each edit has run, by fix, or None when they
        cannot be put in place, which makes the run impossible rather than the scenario wrong."""
        from specdebug.patching import PatchError

        self._reverts = pickle.loads(self._payload["toggles"])
        hits = self._in_place or self._hits_elsewhere
        if _reverted is not None and _reverted[0] == self._payload.get("patches"):
            hits = _reverted[1]
        elif not self._payload["elsewhere"] and self._in_place is None:
            patches = _beyond_those_in_force(self._patches())
            try:
                hits = put_in_place(patches)
            except PatchError as error:
                worker = self._payload.get("worker")  # of a home's, which may have imported what is to be patched
                if worker and any(patch.module in sys.modules for found in patches.values() for patch in found):
                    start_over(worker, self._payload, self._sink.inner)
                self._sink.emit("impossible", reason=str(error))
                return None
        # An engine elsewhere has its reverts in place once the target has started it.
        self._sink.emit("reverts", hits={} if self._payload["elsewhere"] else hits())
        return hits

    def _patches(self) -> Mapping[int, Sequence[Patch]]:
        """The patches by fix, of the engine that this worker is the home of, or of ours."""
        if (found := self._payload.get("patches")) is None:
            return {toggle.pr: toggle.patches for toggle in self._reverts}
        return cast(Mapping[int, Sequence["Patch"]], pickle.loads(found))

    def _hits_elsewhere(self) -> Hits:
        from specdebug.targets.settings import engine_of

        server = None if self._session is None else self._session.server
        told = {} if server is None else server.hits()
        engine = engine_of(pickle.loads(self._payload["scenario"]).target_of(self._payload["arm"]))
        # A fix that the engine lacks, and is given, need not run.
        wanted = {str(toggle.pr) for toggle in self._reverts if engine not in toggle.mends}
        return {number: dict(told.get(number, {})) for number in sorted(wanted)}

    def _over_there(self, mode: str | None = None, shows: frozenset[Ability] = frozenset()) -> OverThere:
        """The run's reverts and probes, and what its oracles look at, for an engine that is not ours; of ours, its
        kernels."""
        from specdebug.scenario.packs import kernel_rules

        packs = pickle.loads(self._payload["packs"])
        if not self._payload["elsewhere"] and "patches" not in self._payload:
            return OverThere(kernels=kernel_rules(packs, mode))
        return OverThere(
            tuple(self._reverts),
            tuple(pack.name for pack in packs),
            mode,
            content_of((*packs, *self._reverts)),
            self._payload.get("keeper"),
            kernel_rules(packs, mode),
            tuple(sorted(shows)),
        )

    def _say(self, event: str, **fields: Any) -> None:
        """Pass an event of the target on, and remember where a core dump would be written."""
        if event == "stack":
            self._coredump = fields.get("coredump")
        self._sink.emit(event, **fields)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._sink.emit("stage", name=name)
        self._busy.over()
        began = time.perf_counter()
        try:
            yield
        finally:
            self._stages[name] = round(time.perf_counter() - began, 4)


class _Noting:
    """Passes events on to ``inner``, and notes if one was a violation."""

    def __init__(self, sink: Sink) -> None:
        self.inner: Any = sink
        self.violated = False

    def emit(self, event: str, **fields: Any) -> None:
        self.violated = self.violated or event == "violation"
        self.inner.emit(event, **fields)


_reverted: tuple[bytes, Callable[[], Hits]] | None = None
"""The patches, pickled, that are in force in a process that workers are forked from (:func:`revert`), and their
hits."""


def revert(payload: Mapping[str, Any]) -> None:
    """Put an arm's patches in force in this process, for workers that are forked from it, and for processes with more
    patches: what those may have to reach is looked up once. Raises PatchError."""
    from specdebug.patching.live import take_census

    global _reverted
    patches: bytes = payload["patches"]
    _reverted = patches, put_in_place(_beyond_those_in_force(pickle.loads(patches)))
    if payload["base"]:
        take_census("")


def _beyond_those_in_force(patches: Mapping[int, Sequence[Patch]]) -> dict[int, Sequence[Patch]]:
    """Patches without those of the fixes, and of none, that this process was forked with."""
    known = () if _reverted is None else pickle.loads(_reverted[0])
    return {number: found for number, found in patches.items() if number not in known}


def put_in_place(patches: Mapping[int, Sequence[Patch]]) -> Callable[[], Hits]:
    """Put patches in force in this process, in modules that are imported and in those that are not; returns a reader of
    how often each edit has run, by fix. Those under 0 are no fix's. Raises PatchError."""
    from specdebug.patching import apply
    from specdebug.patching.live import end_census

    every = [patch for found in patches.values() for patch in found]
    there = [patch for patch in every if patch.module in sys.modules]
    rest = [patch for patch in every if patch.module not in sys.modules]
    in_force = [apply(each, mode) for each, mode in ((there, IN_PROCESS), (rest, AT_IMPORT)) if each]
    end_census()
    edits = {str(number): [edit.id for patch in found for edit in patch.edits] for number, found in patches.items()}
    edits.pop("0", None)
    return partial(_hits_of, edits, in_force)


def _hits_of(edits: Mapping[str, Sequence[str]], in_force: Sequence[Applied]) -> Hits:
    counts = {name: count for applied in in_force for name, count in applied.hits().items()}
    return {number: {edit: counts[edit] for edit in found} for number, found in edits.items()}


def hits_of(toggles: Sequence[Toggle], applied: Applied) -> Hits:
    """By fix, how often each of its edits has run."""
    edits = {str(toggle.pr): [edit.id for patch in toggle.patches for edit in patch.edits] for toggle in toggles}
    return _hits_of(edits, [applied])


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those it was raised over: a capture that memory ran out in ends with an error of its own."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _of_children() -> float:
    """Processor time of this process's children that have ended: other ranks, compilers."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _peak_rss_mb() -> float:
    """Highest resident memory of this process so far, in MiB (macOS counts in bytes, Linux in KiB)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak / 2**20 if sys.platform == "darwin" else peak / 2**10)
