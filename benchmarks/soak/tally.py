"""What is known of a soak: its workers' events, folded one by one, so that nothing is lost that a worker has told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.soak.memory import Sample, Trend, trend
from specdebug.base import interrupts
from specdebug.verdict.deaths import death_of
from specdebug.verdict.outcome import EXIT_CODES, Violation, merge_violations
from specdebug.workers.job import WorkerEnd

MOST_KEPT = 100
"""Violations of one workload whose details are kept; the others are counted."""


@dataclass
class Alarm:
    """A workload in which something was found although nothing was wrong. ``decoded``: decode steps that its engine had
    made before it."""

    worker: int
    engine: int
    decoded: int
    scenario: Mapping[str, Any]
    violations: list[Violation] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    """How much of each kind was found."""

    def add(self, violation: Violation) -> None:
        """One more thing that was found in it."""
        self.kinds[violation.kind] += 1
        if len(self.violations) < MOST_KEPT:
            self.violations.append(violation)

    @property
    def first(self) -> Violation:
        """What names it."""
        return merge_violations(self.violations)[0]

    def again(self, seed: int) -> str:
        """The command that runs its engine's life again, up to and with this workload."""
        engine, steps = f"{self.worker}.{self.engine}", self.decoded + 1
        return f"python -m benchmarks.soak --seed {seed} --engine {engine} --steps {steps}"

    def to_dict(self, seed: int) -> dict[str, Any]:
        """Plain data. ``scenario`` is a scenario file: replayed, it meets a fresh engine."""
        found = merge_violations(self.violations)
        return {
            "seed": seed,
            "engine": f"{self.worker}.{self.engine}",
            "signature": found[0].signature,
            "step": found[0].step,
            "detail": found[0].detail,
            "consequences": [violation.signature for violation in found[1:]],
            "again": self.again(seed),
            "scenario": dict(self.scenario),
        }


@dataclass
class WorkerTally:
    """What one worker has told."""

    number: int
    counts: Counter[str] = field(default_factory=Counter)
    decoded_by: dict[str, Counter[str]] = field(default_factory=dict)
    """Decode steps by engine option and its value."""
    seconds: float = 0.0
    rest: list[Sample] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)
    alarms: list[Alarm] = field(default_factory=list)
    done: bool = False
    _now: Mapping[str, Any] | None = None

    def fold(self, event: Mapping[str, Any]) -> None:
        """Take in one event."""
        getattr(self, f"_on_{event['event']}", lambda _: None)(event)

    def ended(self, end: WorkerEnd) -> None:
        """The process is gone. Unless it was done, that is an alarm as well."""
        if self.done:
            return
        name = "start" if self._now is None else self._now["scenario"]["name"]
        death = death_of(end, 0, name)
        if death is not None:
            told = end.log.strip().splitlines()[-1:]
            self._alarm().add(Violation(death.kind, death.site, None, "; ".join([death.detail, *told])))

    @property
    def trend(self) -> Trend | None:
        return trend(self.rest)

    def _alarm(self) -> Alarm:
        """That of the workload that is being served."""
        now = self._now or {"engine": 0, "decoded": 0, "scenario": {}}
        if not self.alarms or self.alarms[-1].scenario is not now["scenario"]:
            self.alarms.append(Alarm(self.number, now["engine"], now["decoded"], now["scenario"]))
        return self.alarms[-1]

    def _on_begin(self, event: Mapping[str, Any]) -> None:
        self._now = event

    def _on_violation(self, event: Mapping[str, Any]) -> None:
        facts = (event[key] for key in ("kind", "site", "step", "detail", "count"))
        self._alarm().add(Violation(*facts))

    def _on_workload(self, event: Mapping[str, Any]) -> None:
        assert self._now is not None  # every workload begins
        self.counts.update(event["counts"])
        self.counts["workloads"] += 1
        self.seconds += event["seconds"]
        for option, value in kinds_of(self._now["scenario"]["engine"]).items():
            self.decoded_by.setdefault(option, Counter())[value] += event["counts"].get("decode", 0)

    def _on_rest(self, event: Mapping[str, Any]) -> None:
        self.rest.append((event["steps"], event["rss_mb"]))

    def _on_coverage(self, event: Mapping[str, Any]) -> None:
        self.reached.update(event["reached"])

    def _on_done(self, _: Mapping[str, Any]) -> None:
        self.done = True


@dataclass
class Tally:
    """All workers of a soak. ``judges_memory``: whether its memory is to be judged (not that of one engine alone)."""

    seed: int
    steps: int
    workers: list[WorkerTally]
    judges_memory: bool = True
    interrupted: bool = False
    wall_s: float = 0.0

    @property
    def counts(self) -> Counter[str]:
        return sum((worker.counts for worker in self.workers), Counter[str]())

    @property
    def alarms(self) -> list[Alarm]:
        return [alarm for worker in self.workers for alarm in worker.alarms]

    @property
    def seconds(self) -> float:
        """Processor time."""
        return sum(worker.seconds for worker in self.workers)

    @property
    def reached(self) -> set[str]:
        """Probe sites that had something to look at."""
        return set[str]().union(*(worker.reached for worker in self.workers))

    @property
    def decoded_by(self) -> dict[str, Counter[str]]:
        """Decode steps by engine option and its value."""
        total: dict[str, Counter[str]] = {}
        for worker in self.workers:
            for option, counts in worker.decoded_by.items():
                total.setdefault(option, Counter()).update(counts)
        return total

    @property
    def memory(self) -> str:
        """ "flat", "grows", or "unknown" when some worker was looked at too rarely."""
        trends = [worker.trend for worker in self.workers]
        if any(each is not None and not each.flat for each in trends):
            return "grows"
        return "unknown" if None in trends else "flat"

    @property
    def exit_code(self) -> int:
        """0 when nothing was found and memory is flat, 1 when not, 125 when too short to tell, 130 after a Ctrl-C."""
        if self.interrupted:
            return interrupts.exit_code()
        if self.alarms or (self.judges_memory and self.memory == "grows"):
            return EXIT_CODES["fail"]
        return EXIT_CODES["unknown" if self.judges_memory and self.memory == "unknown" else "pass"]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "exit_code": self.exit_code,
            "seed": self.seed,
            "asked_steps": self.steps,
            "interrupted": self.interrupted,
            "wall_s": round(self.wall_s, 1),
            "processor_s": round(self.seconds, 1),
            "counts": dict(self.counts),
            "decode_steps_by": {option: dict(counts) for option, counts in self.decoded_by.items()},
            "sites_reached": sorted(self.reached),
            "alarms": [alarm.to_dict(self.seed) for alarm in self.alarms],
            "memory": self.memory if self.judges_memory else None,
            "workers": [
                {
                    "rest_mb": [list(sample) for sample in worker.rest],
                    "trend": None if worker.trend is None else worker.trend.to_dict(),
                }
                for worker in self.workers
            ],
        }


def kinds_of(options: Mapping[str, Any]) -> dict[str, str]:
    """What kind of engine these options make, by what a reader wants to see covered."""
    spec, graph = options["speculative"], options["cuda_graph"]
    return {
        "plan": options["attention_backend"],
        "page size": str(options["page_size"]),
        "model": options["model"],
        "algorithm": f"{spec['algorithm']} {spec.get('worker', '')}".strip(),
        "topk": str(spec["eagle_topk"]),
        "graphs": "without" if not graph.get("enabled", True) else "one size" if "capture_bs" in graph else "sizes",
        "cache": "radix" if options["radix_cache"] else "none",
        "draft KV on a hit": spec.get("draft_kv_on_hit", "none"),
        "fill": options["memory"]["fill"],
    }
