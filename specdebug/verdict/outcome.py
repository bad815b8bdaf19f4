"""The outcome of one run of one arm: a verdict, the signature that names its failure, and what was measured.

``fail`` when anything was found; ``unknown`` when nothing was found but the run could not have found it
(:func:`decide`); ``pass`` otherwise. All violations are ordered by their engine step, then by how far upstream in a
step such a thing happens (:data:`RANK`), then as recorded: the first names the failure, the rest are its consequences.
So a recorded probe violation names the failure even when the process dies of it two steps later, and a dying process is
the signature only when nothing was seen before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from specdebug import async_probe
from specdebug.base.trial import Warm
from specdebug.faults.model import Injection
from specdebug.workers.machine_failure import TOLD, MachineFailure

Verdict = Literal["pass", "fail", "unknown"]

EXIT_CODES: dict[str, int] = {"pass": 0, "fail": 1, "unknown": 125}
"""Exit code of a plain verdict. 125 is what ``git bisect run`` takes for "cannot be tested"."""

_ORDER = (
    ("guard",),  # read after the step, but whatever ran over a guard did so before the step used what it hit
    (*async_probe.KINDS, "unwritten", "stale"),
    ("assert", "illegal-address", "launch-failure", "error"),
    ("ranks",),  # they part before what they compute does
    ("pools",),
    ("graphs",),  # which forward ran comes before what it computed
    ("mismatch",),
    ("sampling",),
    ("ends",),
    ("work",),
    ("accept-drop",),
)
RANK: dict[str, int] = {kind: rank for rank, kinds in enumerate(_ORDER) for kind in kinds}
"""Place of a violation by its kind within its step; one not listed (``crash:...``, ``hang``, ``oom``) comes last."""

_LAST_RANK = len(_ORDER)

PASSED_ON = (*async_probe.KINDS, "illegal-address")
"""Kinds of what a tensor holds, which may have come to where it is seen from elsewhere."""


@dataclass(frozen=True)
class Violation:
    """One thing that is wrong. ``step`` is the engine step it belongs to, None when it belongs to no step."""

    kind: str
    site: str = ""
    step: int | None = None
    detail: str = ""
    count: int = 1
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def signature(self) -> str:
        """``kind@site``, or the bare kind for what has no site (``hang``, ``oom`` of the host, ``crash:SIGSEGV``)."""
        return f"{self.kind}@{self.site}" if self.site else self.kind

    def order(self) -> tuple[int, float]:
        """Sort key: deaths last, else by step (violations of no step after all steps), then by rank."""
        rank = RANK.get(self.kind, _LAST_RANK)
        if rank == _LAST_RANK or self.data.get("died"):
            return (1, 0.0)
        return (0, float("inf") if self.step is None else self.step + rank / (_LAST_RANK + 1))


@dataclass(frozen=True)
class Tie:
    """A greedy token that is as good as the reference's argmax: either is a legitimate continuation. ``margin``: how
    far its logit lies below the argmax's; ``allowed``: how far it might, given the dtype and the size of the logits
    there. ``position`` counts output tokens, ``token`` was emitted, ``preferred`` is the argmax."""

    position: int
    margin: float
    allowed: float
    token: int
    preferred: int

    @property
    def used(self) -> float:
        """The part of what is allowed that the margin takes; 1 is the edge."""
        return self.margin / self.allowed if self.allowed else 0.0


@dataclass(frozen=True)
class RequestResult:
    """One request as far as it came. Accept lengths count the bonus token, one entry a verify. ``logprobs``: log
    probabilities of its tokens, where they were asked for; ``top_logprobs``: at each those of the likeliest tokens."""

    rid: str
    group: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: str | None = None
    accept_lengths: tuple[int, ...] = ()
    cold_accept_lengths: tuple[int, ...] | None = None
    ties: tuple[Tie, ...] = ()
    retractions: int = 0
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()

    @property
    def accept_mean(self) -> float | None:
        """Mean accept length, None when the request never speculated."""
        return mean(self.accept_lengths)

    @property
    def cold_accept_mean(self) -> float | None:
        """Mean accept length of the same prompt served cold, None when that was not measured."""
        return mean(self.cold_accept_lengths or ())


@dataclass(frozen=True)
class Metrics:
    """The measurements of a run. Times in seconds, memory in MiB; ``engine_s`` is CPU time on a CPU, wall time on a
    GPU; ``processor_s``: processor time of the whole worker; ``accept_hit``/``accept_cold`` cover the requests that hit
    the cache and were served again cold."""

    steps: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    accept_mean: float | None = None
    accept_hit: float | None = None
    accept_cold: float | None = None
    tokens_per_s: float | None = None
    engine_s: float = 0.0
    wall_s: float = 0.0
    peak_rss_mb: float = 0.0
    processor_s: float = 0.0
    stages_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Located:
    """Where a failure began that was ``seen`` in outputs: the first thing computed otherwise than by its ``twin``.
    ``seen``: the signature of what was found. ``site``: the place of a probe, or :data:`SCHEDULE`. ``stage``: the stage
    whose forward it was in, where the site does not say. ``rid``: None for rows of several requests or of none.
    ``tensor``: what differs there."""

    step: int
    rid: str | None
    site: str
    tensor: str
    seen: str
    twin: str
    stage: str = ""

    @property
    def signature(self) -> str:
        """The kind of what was seen, at the stage and site where it began. What is passed on (a NaN, an index) differs
        there from the twin's and need not be bad yet: a ``mismatch``."""
        kind = self.seen.partition("@")[0]
        return f"{'mismatch' if kind in PASSED_ON else kind}@{self.place}"

    @property
    def place(self) -> str:
        """The site, behind its stage where stages share it."""
        return f"{self.stage}.{self.site}" if self.stage else self.site

    @property
    def text(self) -> str:
        """For a person."""
        owner = f", request {self.rid}" if self.rid else ""
        return f"began at {self.place}, step {self.step}{owner}: {self.tensor}; beside {self.twin}"


@dataclass(frozen=True)
class Outcome:
    """Verdict, signature and evidence of one arm; survives a round trip through JSON. ``stack``: of device, versions,
    plan and who executed it, empty when that was never known. ``unavailable``: this machine lacks something that the
    arm needs, so its verdict says nothing of the code. ``machine``: the machine's failure, if it was that.
    ``injections``: the damage done on purpose, in order. ``complete``: every planned request came to its end, so that
    what was not found did not happen. ``looks``: by oracle, how often it compared something with the reference.
    ``rank_traces``: of several ranks, the hash of what each told of its steps: all that passed its sites, to the bit,
    and the collectives that it entered. ``interrupted``: its worker was ended before it was done. ``cannot_show``:
    oracles that were asked for and could not look, each with what the target does not show. ``not_engine_code``: what
    ran in the place of another engine's own code, as on a CPU: names of stand-ins, and what that engine lacks there.
    ``located``: where the failure began, if that was looked for and found; ``signature``, ``site`` and ``where_step``
    are then of that place.
    ``warm``: how its worker began."""

    verdict: Verdict
    signature: str | None
    site: str | None
    detail: str
    where_step: int | None
    violations: tuple[Violation, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    metrics: Metrics = Metrics()
    trace_hash: str = ""
    rank_traces: Mapping[str, str] = field(default_factory=dict)
    reverted_hits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    reached_sites: Mapping[str, int] = field(default_factory=dict)
    requests: tuple[RequestResult, ...] = ()
    log_tail: str = ""
    stack: Mapping[str, Any] = field(default_factory=dict)
    unavailable: bool = False
    injections: tuple[Injection, ...] = ()
    complete: bool = False
    machine: MachineFailure | None = None
    looks: Mapping[str, int] = field(default_factory=dict)
    interrupted: bool = False
    target: str = "embedded"
    cannot_show: tuple[str, ...] = ()
    not_engine_code: tuple[str, ...] = ()
    located: Located | None = None
    warm: Warm = "cold"

    @property
    def seen(self) -> str | None:
        """The signature of what was found of a failure that was located; None of any other."""
        return None if self.located is None else self.located.seen

    def began_at(self, place: Located) -> Outcome:
        """This outcome under the signature of the place where it began."""
        return replace(self, signature=place.signature, site=place.place, where_step=place.step, located=place)

    @property
    def ties(self) -> tuple[tuple[str, Tie], ...]:
        """Every near-tie that went the other way, with its request."""
        return tuple((request.rid, tie) for request in self.requests for tie in request.ties)

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 125 unknown."""
        return EXIT_CODES[self.verdict]

    @property
    def consequences(self) -> tuple[Violation, ...]:
        """Everything found after the violation that names the failure."""
        return self.violations[1:]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able data; derived means are included for readers that are not Python."""
        data = asdict(self)
        for violation, plain in zip(self.violations, data["violations"], strict=True):
            plain["signature"] = violation.signature
        for request, plain in zip(self.requests, data["requests"], strict=True):
            plain["accept_mean"] = request.accept_mean
            plain["cold_accept_mean"] = request.cold_accept_mean
            for name in ("logprobs", "top_logprobs"):
                if not plain[name]:
                    del plain[name]
        if self.located is not None:
            data["located"]["from"] = data["located"].pop("seen")
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Outcome:
        """Inverse of :meth:`to_dict`, also after a trip through JSON."""
        fields = dict(data)
        fields["violations"] = tuple(Violation(**_without(each, "signature")) for each in data["violations"])
        fields["requests"] = tuple(_request(each) for each in data["requests"])
        fields["metrics"] = Metrics(**data["metrics"])
        fields["injections"] = tuple(Injection(**_tuples(each, "index")) for each in data.get("injections", ()))
        fields["machine"] = MachineFailure(**data["machine"]) if data.get("machine") else None
        if place := data.get("located"):
            fields["located"] = Located(**_without(place, "from"), seen=place["from"])
        later = {"cannot_show": (), "not_engine_code": ()}
        return cls(**_tuples({**later, **fields}, "reasons", "notes", *later))


def not_engine_code(outcomes: Iterable[Outcome]) -> list[str]:
    """The parts of several runs that were not the engine's own code, each once."""
    return list(dict.fromkeys(part for outcome in outcomes for part in outcome.not_engine_code))


def not_run(failure: MachineFailure, target: str) -> Outcome:
    """The outcome of an arm that was not started on its target, because of what had failed of the machine."""
    reason = f"not run: {TOLD[failure.cause]}"
    return Outcome(
        "unknown", None, None, reason, None, reasons=(reason,), unavailable=True, machine=failure, target=target
    )


def _without(data: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in names}


def _tuples(data: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {**data, **{name: tuple(data[name]) for name in names if data[name] is not None}}


def _request(data: Mapping[str, Any]) -> RequestResult:
    fields = _tuples({"logprobs": (), **data}, "output_ids", "accept_lengths", "cold_accept_lengths", "logprobs")
    fields["ties"] = tuple(Tie(**tie) for tie in fields["ties"])
    tops = fields.get("top_logprobs", ())
    fields["top_logprobs"] = tuple(tuple((token, value) for token, value in top) for top in tops)
    return RequestResult(**_without(fields, "accept_mean", "cold_accept_mean"))


def mean(values: Sequence[int]) -> float | None:
    """Arithmetic mean, None of nothing."""
    return sum(values) / len(values) if values else None


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """First index at which two sequences differ, the shorter one's length when it is a prefix; None if equal."""
    end = None if len(left) == len(right) else min(len(left), len(right))
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (one, other) in pairs if one != other), end)


def merge_violations(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """One violation a signature (its first in order, counts summed); the one that names the failure comes first."""
    merged: dict[str, Violation] = {}
    for violation in sorted(violations, key=Violation.order):  # a stable sort: recorded order breaks ties
        first = merged.get(violation.signature)
        both = violation if first is None else replace(first, count=first.count + violation.count)
        merged[violation.signature] = both
    return tuple(merged.values())


def with_violations(outcome: Outcome, found: Sequence[Violation]) -> Outcome:
    """The outcome of a run of which more was found once it was over."""
    if not found:
        return outcome
    violations = merge_violations((*outcome.violations, *found))
    first = violations[0]
    return replace(
        outcome,
        verdict="fail",
        signature=first.signature,
        site=first.site or None,
        detail=outcome.detail if first.signature == outcome.signature else first.detail,
        where_step=first.step,
        violations=violations,
        unavailable=False,
    )


@dataclass(frozen=True)
class Evidence:
    """The evidence that :func:`decide` weighs beside the violations. ``reverts``: per reverted fix (by number), how
    often each of its edits ran; empty where the target does not tell. ``probes_enabled``: probe sites that the packs
    switched on, ``sites_reached``: those of them that were evaluated. ``generated``: tokens emitted. ``impossible``:
    why the run could not take place, if so. ``idle_faults``: a sentence for each declared fault that did no damage.
    ``blind``: no oracle could look, though some were asked for. ``cut_short``: why it was ended before it was done, if
    neither by itself nor for what was found. ``lost``: what of ours did not fit another engine's release, a sentence
    each, and if that was a stand-in, of whose lack what was found may come."""

    reverts: Mapping[str, Mapping[str, int]]
    probes_enabled: int
    sites_reached: int
    generated: int
    impossible: str | None = None
    cut_short: str = ""
    idle_faults: tuple[str, ...] = ()
    blind: bool = False
    lost: Mapping[str, bool] = field(default_factory=dict)


def decide(violations: Sequence[Violation], evidence: Evidence) -> tuple[Verdict, tuple[str, ...]]:
    """Verdict of a run and, unless it is a plain pass or fail, the reasons. Unknown, in the absence of violations, is a
    run that was cut short, of which no more is said; that could not take place; in which none of a reverted fix's edits
    ever ran (of edits on exclusive paths one suffices); whose enabled probes were never evaluated; that generated
    nothing; or in which a declared fault was not injected or changed nothing; or in which a look of ours did not fit
    the engine. One that lacks a stand-in is unknown whatever was found."""
    reasons = [*filter(None, (evidence.impossible,)), *evidence.lost]
    if any(evidence.lost.values()):
        return "unknown", tuple(reasons)
    if evidence.cut_short:
        # What it had not come to by then says nothing of it.
        reasons.append(evidence.cut_short)
        return ("fail" if violations else "unknown"), tuple(reasons)
    if not evidence.impossible:
        for number, edits in evidence.reverts.items():
            if not edits:
                reasons.append(f"fix {number} was to be reverted, and nothing shows that its lines ran")
            elif not any(edits.values()):
                reasons.append(f"fix {number} was reverted, but its lines never ran")
        if evidence.probes_enabled and not evidence.sites_reached:
            reasons.append("none of the enabled probes was reached")
        if not evidence.generated:
            reasons.append("nothing was generated")
        reasons += evidence.idle_faults
    if evidence.blind:
        reasons.append("no oracle that was asked for could look")
    return "fail" if violations else "unknown" if reasons else "pass", tuple(reasons)
