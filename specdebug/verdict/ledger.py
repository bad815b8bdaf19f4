"""The parent's knowledge of a run: a worker's events, folded one by one, then judged.

Workers send events only; the outcome is always put together here. So a worker that dies leaves the same kind of outcome
as one that finishes, just with fewer events behind it and its death among the violations.

Events are those that :meth:`Ledger.fold` names; ``arm.py`` emits most of them. ``claiming`` is of a
device, which ``stack`` ends. ``machine`` comes from the fork server, too, in a worker that dies of it. Of faults
there is one ``injected`` for each injection, and an ``unfired``, at the end, of each that never fired.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specdebug.base.abilities import DEFAULT, SHOWN, Ability
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.model import Injection
from specdebug.verdict.deaths import death_by_machine, death_of, explained
from specdebug.verdict.outcome import (
    Evidence,
    Metrics,
    Outcome,
    RequestResult,
    Tie,
    Violation,
    decide,
    mean,
    merge_violations,
)
from specdebug.workers.job import WorkerEnd
from specdebug.workers.machine_failure import MachineFailure

TRACED = ("step", "kind", "rids", "emitted", "accept", "cached", "finished", "retracted")
"""The facts of a step that enter the trace hash: everything it decides, nothing of how long it took."""

START = "start"  # the stage before the first that a worker reports

STANDS_STILL = 64  # steps in which a request that is computed advances, or else it stands still

LOG_TAIL = 4000  # characters of a worker's log kept in its outcome


@dataclass
class _Request:
    rid: str
    group: str
    prompt_tokens: int
    cached_tokens: int = 0
    output_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    accept_lengths: list[int] = field(default_factory=list)
    cold_accept_lengths: tuple[int, ...] | None = None
    ties: list[Tie] = field(default_factory=list)
    retractions: int = 0
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)

    def result(self) -> RequestResult:
        lists = {name: tuple(value) for name, value in vars(self).items() if isinstance(value, list)}
        return RequestResult(**{**vars(self), **lists})


@dataclass
class _Way:
    """The steps in which a request that has not ended was last ``computed``, and last ``advanced``: a part of its
    prompt was prefilled, or it got tokens. At first the step before which it arrived. ``again``: it was retracted, so
    that what is prefilled of it now it had before."""

    computed: int
    advanced: int
    again: bool = False


def _told(violations: Sequence[Violation], first: Violation) -> str:
    """The words of the violation that names the failure, and what became of the device if it was lost over it."""
    loss = next((found for found in violations if found.data and found.data.get("lost")), None)
    if loss is None or first.data == loss.data:
        return first.detail
    return f"{first.detail}; then the device was lost: {loss.detail}"


def accepted_in(step: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """By request the accept lengths that a ``step`` event tells of: ``accept`` has the one of a step's verify,
    ``verifies``, of a session without steps, all of a request that has ended."""
    one = {rid: (length,) for rid, length in step["accept"].items()}
    return one | {rid: tuple(lengths) for rid, lengths in step.get("verifies", {}).items()}


class Ledger:
    """The state of one arm's run, built from its worker's events. ``target``: the name of what it was asked for on.
    ``deadline``: a run that exceeds its limits has failed, also if it goes on."""

    def __init__(self, target: str = DEFAULT, *, deadline: bool = False) -> None:
        self.step = 0
        self.stage = START
        self.activity = ""  # the engine's work beside its steps, such as compiling a kernel; empty most of the time
        self.usage_error: str | None = None
        self.usage_option: tuple[str, ...] = ()  # the engine option that a usage error is about, if it is about one
        self._target = target
        self._deadline = deadline
        self._last: dict[str, Mapping[str, Any]] = {}  # the last event of each kind that tells of one thing
        self._requests: dict[str, _Request] = {}
        self._ways: dict[str, _Way] = {}
        self._violations: list[Violation] = []
        self._notes: list[str] = []
        self._impossible: str | None = None
        self._unavailable = False
        self._reverts: dict[str, dict[str, int]] = {}
        self._lost: dict[str, bool] = {}
        self._injections: list[Injection] = []
        self._unfired: dict[int, str] = {}
        self._engine_s = 0.0
        self._steps = 0
        self._trace = hashlib.blake2b(digest_size=16)

    @property
    def planned_requests(self) -> int:
        """Requests of the workload, once they are known."""
        return int(self._of("setup").get("requests", 0))

    @property
    def finished_requests(self) -> int:
        """Requests that have come to their end."""
        return sum(request.finish_reason is not None for request in self._requests.values())

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The violations found so far, in recorded order."""
        return tuple(self._violations)

    def fold(self, event: Mapping[str, Any]) -> None:
        """Take in one event. Events of kinds this ledger does not know change nothing."""
        facts = dict(event)
        match kind := facts.pop("event", None):
            case "step":
                self._step(facts)
            case "stage":
                self.stage, self.activity = facts["name"], ""
            case "progress":
                self.activity = facts["text"]
            case "arrive":
                self._requests[facts["rid"]] = _Request(facts["rid"], facts["group"], facts["prompt_tokens"])
                self._ways[facts["rid"]] = _Way(self.step, self.step)
            case "request":
                request = self._requests[facts["rid"]]
                request.text, request.finish_reason = facts["text"], facts["finish_reason"]
                request.logprobs = list(facts.get("logprobs", ()))
                tops = facts.get("top_logprobs", ())
                request.top_logprobs = [tuple((token, value) for token, value in top) for top in tops]
                self._ways.pop(facts["rid"], None)
            case "set_back":
                for rid in facts["rids"]:
                    self._requests[rid].retractions += 1
            case "tie":
                self._requests[facts.pop("rid")].ties.append(Tie(**facts))
            case "cold":
                self._requests[facts["rid"]].cold_accept_lengths = tuple(facts["accept_lengths"])
            case "impossible" | "usage":
                self._impossible, self._unavailable = facts.get("reason"), facts.get("unavailable", False)
                if kind == "usage":
                    self.usage_error = self._impossible = facts["message"]
                    self.usage_option = tuple(facts.get("option", ()))
            case "machine":  # what failed first
                self._last.setdefault(kind, facts)
            case "lost":
                self._lost[facts["text"]] = facts["stand_in"]
            case "injected":
                self._injections.append(Injection(**{**facts, "index": tuple(facts["index"])}))
            case "unfired":
                self._unfired[facts["number"]] = facts["why"]
            case "violation":
                self._violations.append(Violation(**facts))
            case "note":
                self._notes.append(facts["text"])
            case str():
                self._last[kind] = facts
                if kind in ("reverts", "coverage"):
                    self._reverts = {number: dict(edits) for number, edits in facts["hits"].items()}
                elif kind == "stack":
                    self._last.pop("claiming", None)

    def _of(self, kind: str) -> Mapping[str, Any]:
        return self._last.get(kind, {})

    @property
    def _done(self) -> Mapping[str, Any]:
        return self._of("done")

    @property
    def _machine(self) -> MachineFailure | None:
        told = self._of("machine")
        return MachineFailure(told["cause"], told["line"]) if told else None

    @property
    def _overrun(self) -> int | None:
        return self._of("overrun").get("steps")

    @property
    def _lacks(self) -> tuple[str, ...]:
        return tuple(self._of("target").get("lacks", ()))

    def outcome(self, end: WorkerEnd) -> Outcome:
        """Judge the run, now that its worker has ended."""
        stack, target, log = dict(self._of("stack")), self._of("target"), self._of("server_log")
        coredump, reached = stack.get("coredump"), dict(self._of("coverage").get("reached", {}))
        cannot_show = tuple(target.get("cannot_show", ()))
        violations = [explained(found, end.log, self.step, coredump) for found in self._violations]
        if self._deadline or self._stand_still():
            end = replace(end, going=False)
        death, machine = self._end_of(end)
        impossible = self._impossible or (machine.reason if machine is not None else self._not_for_this_target())
        if death is not None and impossible is None:
            violations.append(explained(death, "", self.step, coredump))
        ordered = merge_violations([self._naming_requests(each) for each in violations])
        requests = tuple(request.result() for request in self._requests.values())
        interrupted = end.kind == "interrupted" and not self._done
        # How often its edits ran, a worker takes with it when it dies; none of them is known to be idle then.
        reverts = self._reverts if "coverage" in self._last or death is None else {}
        evidence = Evidence(
            reverts=reverts,
            probes_enabled=self._of("setup").get("probes_enabled", 0),
            sites_reached=sum(count > 0 for count in reached.values()),
            generated=sum(len(request.output_ids) for request in requests),
            impossible=impossible,
            cut_short=self._cut_short(end, interrupted=interrupted, endless=death is not None),
            idle_faults=tuple(self._idle_faults()),
            blind=bool(cannot_show) and not target["looking"],
            lost=self._lost,
        )
        verdict, reasons = decide(ordered, evidence)
        first = ordered[0] if verdict == "fail" else None
        kept = [f"the server's log is {log['path']}"] if log and (log["lasts"] or verdict != "pass") else []
        return Outcome(
            verdict=verdict,
            signature=first.signature if first else None,
            site=first.site or None if first else None,
            detail=_told(violations, first) if first else "; ".join(reasons),
            where_step=first.step if first else None,
            violations=ordered,
            reasons=reasons,
            notes=(*self._notes, *kept),
            metrics=self._metrics(requests, end),
            trace_hash=self._trace.hexdigest(),
            reverted_hits={number: dict(edits) for number, edits in reverts.items()},
            reached_sites=reached,
            looks=dict(self._of("looked").get("counts", {})),
            rank_traces=dict(self._of("looked").get("rank_traces", {})),
            requests=requests,
            stack=stack,
            unavailable=verdict == "unknown" and (self._unavailable or machine is not None),
            machine=machine,
            injections=tuple(self._injections),
            complete=bool(self._done) and 0 < self.planned_requests == self.finished_requests,
            interrupted=interrupted,
            target=target.get("name", self._target),
            cannot_show=cannot_show,
            not_engine_code=tuple(self._of("not_engine_code").get("parts", ())),
            log_tail=end.log[-LOG_TAIL:],
            warm=self._done.get("warm", "cold"),
        )

    def drop_log(self, outcome: Outcome) -> None:
        """Remove the log of the arm's own server where the arm has passed, unless it is to stay."""
        log = self._of("server_log")
        if log and not log["lasts"] and outcome.verdict == "pass":
            with contextlib.suppress(OSError):
                os.unlink(log["path"])

    def _cut_short(self, end: WorkerEnd, *, interrupted: bool, endless: bool) -> str:
        """Return why the run was ended before it was done, if it was; nothing if it had come to no end by itself."""
        if interrupted:
            return "interrupted before it was done" if self.stage != START else "interrupted before it began"
        if self._overrun is not None and not endless:
            return f"not done after {self._overrun} steps, and it still went on: raise limits.max_steps in the scenario"
        if end.kind == "timeout" and end.going and not self._done:
            where = f"in stage {self.stage}, after step {self.step}"
            return (
                f"not done within {end.wall_s:.0f} s, {where}, and it still went on: raise limits.timeout_s in the "
                "scenario, or give --timeout"
            )
        return ""

    def _endless(self) -> Violation | None:
        """Return the hang that a run without end is; None if it ended, or if all that was computed went on."""
        if self._overrun is None:
            return None
        if self._deadline or self._stand_still():
            return Violation("hang", "", self.step, f"not done after {self._overrun} steps")
        return None

    def _stand_still(self) -> bool:
        """Return True if no request has advanced for long, or one that is computed has not."""
        since, ways = self.step - STANDS_STILL, self._ways.values()
        if not ways or "steps" in self._lacks:
            return False
        return max(way.advanced for way in ways) <= since or any(way.computed > since >= way.advanced for way in ways)

    def _naming_requests(self, violation: Violation) -> Violation:
        """Return a hang with the requests that advance no more, and since which step; any other violation as it is."""
        if violation.kind != "hang" or not self._ways or "steps" in self._lacks:
            return violation
        since = min(way.advanced for way in self._ways.values())
        rids = [rid for rid, way in self._ways.items() if way.advanced == since]
        named = ", ".join(rids[:3]) + f" and {len(rids) - 3} more" * (len(rids) > 3)
        have = "requests {} have" if len(rids) > 1 else "request {} has"
        told = f"{have.format(named)} not advanced since step {since}"
        if others := len(self._ways) - len(rids):
            told += f", {others} more not since a later one"
        data = {**violation.data, "rid": rids[0], "since": since}
        return replace(violation, detail=f"{violation.detail}; {told}", data=data)

    @property
    def unavailable(self) -> bool:
        """Return True if this machine was found to lack what the arm needs: then nothing is at fault."""
        return self._unavailable or self._machine is not None

    def lost(self, device: str, used: Collection[str]) -> MachineFailure | None:
        """The failure of a device that another arm had ``used`` and this one does not find. One that no arm has used is
        lacking, and has not failed."""
        if self.usage_error is not None and self._unavailable and device in used:
            return MachineFailure("device", self.usage_error)
        return None

    def _end_of(self, end: WorkerEnd) -> tuple[Violation | None, MachineFailure | None]:
        """Return what the worker's end amounts to: a violation, or a failure of the machine, by its own word first."""
        death = self._endless() if self._done else death_of(end, self.step, self.stage)
        machine = self._machine
        if machine is None and end.kind == "timeout" and "claiming" in self._last:
            device = self._last["claiming"]["device"]
            machine = MachineFailure("device", f"{device} did not answer within {end.wall_s:.0f} s")
        elif machine is None and not self._done:
            machine = death_by_machine(end)
        meant = any(CLASSES[each.fault].effect == "kills" for each in self._injections if each.fault in CLASSES)
        if meant and machine is not None and machine.cause == "memory":
            return Violation("oom", "", self.step, machine.line), None
        if meant and machine is not None and machine.cause == "killed":
            return death_of(replace(end, failure=None), self.step, self.stage), None
        return death, machine

    def _not_for_this_target(self) -> str | None:
        """Return what the arm is about and its target has no part in."""
        about: dict[Ability, bool] = {"reverts": bool(self._reverts), "faults": bool(self._of("setup").get("faults"))}
        missing = [SHOWN[ability] for ability, meant in about.items() if meant and ability in self._lacks]
        return (
            f"target {self._of('target').get('name', self._target)} cannot show {' or '.join(missing)}"
            if missing
            else None
        )

    def _idle_faults(self) -> Iterator[str]:
        """A sentence for each declared fault that did no damage."""
        for number, name in enumerate(self._of("setup").get("faults", ())):
            mine = [each for each in self._injections if each.number == number]
            if not mine:
                yield f"fault {name} was never injected: {self._unfired.get(number, 'the run ended before it was due')}"
            elif not any(each.changed for each in mine):
                yield f"fault {name} changed nothing: {mine[0].before} was there before"

    def _metrics(self, requests: tuple[RequestResult, ...], end: WorkerEnd) -> Metrics:
        generated = sum(len(request.output_ids) for request in requests)
        hit = [n for r in requests if r.cold_accept_lengths is not None for n in r.accept_lengths]
        cold = [n for r in requests for n in r.cold_accept_lengths or ()]
        return Metrics(
            steps=self._steps,
            generated_tokens=generated,
            cached_tokens=sum(request.cached_tokens for request in requests),
            accept_mean=mean([n for request in requests for n in request.accept_lengths]),
            accept_hit=mean(hit),
            accept_cold=mean(cold),
            tokens_per_s=generated / self._engine_s if self._engine_s > 0 else None,
            engine_s=self._engine_s,
            wall_s=end.wall_s,
            peak_rss_mb=max(self._done.get("peak_rss_mb", 0.0), end.peak_rss_mb),
            processor_s=self._done.get("processor_s", 0.0),
            stages_s=dict(self._done.get("stages_s", {})),
        )

    def _step(self, event: Mapping[str, Any]) -> None:
        self.step, self.activity = event["step"], ""
        self._steps += 1
        self._engine_s += event["s"]
        for rid, tokens in event["emitted"].items():
            self._requests[rid].output_ids.extend(tokens)
        for rid, lengths in accepted_in(event).items():
            self._requests[rid].accept_lengths.extend(lengths)
        for rid, cached in event["cached"].items():
            self._requests[rid].cached_tokens = cached
        for rid in event["retracted"]:
            self._requests[rid].retractions += 1
        for rid, way in self._ways.items():
            way.again = way.again or rid in event["retracted"]
            if rid in event["rids"]:
                way.computed = self.step
                if event["emitted"].get(rid) or (event["kind"] == "prefill" and not way.again):
                    way.advanced = self.step
        facts = [event[key] for key in TRACED]
        self._trace.update(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode())
