"""A soak as text: a line while it runs, a table at its end, and what was found, each with the command that shows it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from rich.console import Group, RenderableType
from rich.text import Text

from benchmarks.soak.memory import MAX_GROWTH_MB, MAX_SLOPE_MB, NOISE_MB, Trend, at_share
from benchmarks.soak.tally import Tally, WorkerTally
from specdebug.report.parts import Column, Table
from specdebug.report.progress import PlainLines
from specdebug.report.terminal import Listing
from specdebug.scenario.library import engine_sites
from specdebug.verdict.signatures import OUTPUTS

EVERY_S = 30.0
"""Between two lines of progress."""
SHARES = (0.1, 0.5, 1.0)
"""Of a process's steps, at which its memory is told."""
PROBES = ("nan", "inf", "oob", "page_aligned")


class Progress(PlainLines):
    """Where the soak stands, every so often."""

    def __init__(self, stream: IO[str], tally: Tally) -> None:
        super().__init__(stream)
        self._tally = tally
        self._began = self._said_at = time.monotonic()

    def look(self) -> None:
        """Say a line if it is time for one."""
        now = time.monotonic()
        if now - self._said_at >= EVERY_S:
            self._said_at = now
            self.say(standing(self._tally, now - self._began))


def standing(tally: Tally, seconds: float) -> str:
    """How far a soak is after so many seconds."""
    decoded = tally.counts["decode"]
    parts = [f"{decoded:,} of {tally.steps:,} decode steps", f"{decoded / seconds:.0f} a second"]
    resident = [f"{worker.rest[-1][1]:.0f}" for worker in tally.workers if worker.rest]
    if resident:
        parts.append(f"{' and '.join(resident)} MB at rest")
    if decoded and decoded < tally.steps:
        parts.append(f"{(tally.steps - decoded) * seconds / decoded / 60:.0f} min to go")
    parts.append(f"{len(tally.alarms)} alarms")
    return ", ".join(parts)


def render(tally: Tally) -> RenderableType:
    """The table, what was served, and every alarm."""
    names = ["all", *(f"process {worker.number}" for worker in tally.workers)]
    columns = [Column("", "key"), *map(Column, names)]
    table = Listing(Table(columns, _rows(tally)))
    lines = [f"{option}: {_shares(counts)}" for option, counts in tally.decoded_by.items()]
    served = Text("\nDecode steps by kind of engine\n" + "\n".join(f"  {line}" for line in lines))
    return Group(table, served, Text("\n".join(["", *_findings(tally), conclusion(tally)])))


def conclusion(tally: Tally) -> str:
    """The verdict, in a line."""
    steps = tally.counts["decode"] + tally.counts["prefill"]
    said = f"{steps:,} clean steps, no false alarm" if not tally.alarms else f"{len(tally.alarms)} false alarms"
    if tally.judges_memory:
        said += {"flat": "; memory is flat", "grows": "; memory grows"}.get(
            tally.memory, "; too short to tell whether memory is flat"
        )
    if tally.interrupted:
        said = f"interrupted: {said} so far"
    return said


def _rows(tally: Tally) -> Iterator[Sequence[str]]:
    """Label, of all processes together, of each."""

    def row(label: str, of: Callable[[WorkerTally | Tally], str]) -> Sequence[str]:
        return (label, of(tally), *(of(worker) for worker in tally.workers))

    def count(label: str, *names: str) -> Sequence[str]:
        return row(label, lambda each: f"{sum(each.counts[name] for name in names):,}")

    yield count("decode steps", "decode")
    yield count("prefill steps", "prefill")
    yield row("steps a second, a core", lambda each: _rate(each.counts, each.seconds))
    yield count("workloads", "workloads")
    yield count("requests", "length", "stop", "abort")
    for name, label in (("stop", "stopped by a token"), ("abort", "aborted"), ("retracted", "retractions")):
        yield count(f"  {label}", name)
    yield count("tokens", "tokens")
    yield count("prompt tokens from the cache", "cached tokens")
    sites = {site.name for site in engine_sites()}
    yield row(f"sites reached, of {len(sites)} with probes", lambda each: str(len(each.reached & sites)))
    yield row("findings of probes", lambda each: _found(each, lambda kind: kind in PROBES))
    yield row("damaged guards", lambda each: _found(each, lambda kind: kind == "guard"))
    yield row("broken laws of the pools", lambda each: _found(each, lambda kind: kind == "pools"))
    yield row("oracles", lambda each: _found(each, lambda kind: kind in OUTPUTS))
    others = (*PROBES, "guard", "pools", *OUTPUTS)
    yield row("errors, hangs and deaths", lambda each: _found(each, lambda kind: kind not in others))
    for share in SHARES:
        yield (f"MB at rest, {share:.0%} of the steps", "", *(_resident(each, share) for each in tally.workers))
    if tally.judges_memory:
        yield from _trends([worker.trend for worker in tally.workers])


def _trends(trends: Sequence[Trend | None]) -> Iterator[Sequence[str]]:
    def row(label: str, of: Callable[[Trend], str]) -> Sequence[str]:
        return (label, "", *("-" if each is None else of(each) for each in trends))

    yield row(
        f"slope, MB per 100,000 steps (at most {MAX_SLOPE_MB:g})",
        lambda each: f"{each.slope_mb:+.1f} ± {2 * each.error_mb:.1f}",
    )
    yield row(f"  rise of the line, MB (too little to tell up to {NOISE_MB:g})", lambda each: f"{each.rise_mb:+.1f}")
    yield row(f"  most above the warm-up, MB (at most {MAX_GROWTH_MB:g})", lambda each: f"{each.growth_mb:+.1f}")


def _rate(counts: Counter[str], seconds: float) -> str:
    return f"{(counts['decode'] + counts['prefill']) / seconds:.1f}" if seconds else "-"


def _found(each: WorkerTally | Tally, of_kind: Callable[[str], bool]) -> str:
    counts = [(kind, count) for alarm in each.alarms for kind, count in alarm.kinds.items()]
    return f"{sum(count for kind, count in counts if of_kind(kind)):,}"


def _resident(worker: WorkerTally, share: float) -> str:
    mb = at_share(worker.rest, share)
    return "-" if mb is None else f"{mb:.1f}"


def _shares(counts: Counter[str]) -> str:
    return ", ".join(f"{value} {count:,}" for value, count in sorted(counts.items()))


def _findings(tally: Tally) -> Iterator[str]:
    for alarm in tally.alarms:
        first = alarm.first
        where = f"workload {alarm.scenario['name']}, step {first.step}" if alarm.scenario else "before any workload"
        yield f"FALSE ALARM {first.signature}: {where}: {first.detail}"
        yield f"  again: {alarm.again(tally.seed)}"
