"""Baselines: what sound runs accepted, kept in a file, and whether a run of today loses some of it.

A file is JSON. It has an entry for each scenario, arm, seed, target, device, dtype and attention plan; fixes reverted
and faults injected on the command line are no part of that, so that damage is compared with what was sound.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

from specdebug import __version__
from specdebug.base.errors import ContentError, SpecDebugError
from specdebug.base.files import replace_file
from specdebug.base.schema import Item
from specdebug.base.yamlio import MAX_BYTES, load_yaml
from specdebug.campaign.loops.compare import SLOWER, Against, beside
from specdebug.campaign.loops.replay import ArmResult, ArmRun, as_it_should
from specdebug.scenario.grammar import merge
from specdebug.verdict.accept import AcceptSample, accept_drop, samples
from specdebug.verdict.outcome import Outcome, with_violations
from specdebug.workers.records import Lock, Record

FORMAT = "specdebug baseline"
VERSION = 1

_WAIT_S = 10.0  # seconds to wait for another run that saves in the same file


@dataclass(frozen=True)
class RunKey:
    """The run that an entry is of. ``options``: what the command line set of the engine besides what has a place of its
    own here."""

    scenario: str
    arm: str
    seed: int
    target: str
    device: str
    dtype: str
    backend: str
    options: str

    @classmethod
    def of(cls, run: ArmRun) -> RunKey:
        asked, own = run.asked, ("device", "dtype", "attention_backend")
        options = ",".join(f"{name}={value}" for name, value in run.scenario.overrides.items() if name not in own)
        device, backend = asked.device.partition(":")[0], asked.attention_backend or ""
        return cls(run.scenario.name, run.arm, run.seed, str(run.target), device, asked.dtype, backend, options)

    def differences(self, other: RunKey) -> list[str]:
        pairs = ((each.name, getattr(self, each.name), getattr(other, each.name)) for each in fields(self))
        return [f"{name} {theirs!r}, not {ours!r}" for name, ours, theirs in pairs if ours != theirs]


@dataclass(frozen=True)
class Entry:
    """One arm's run. ``content``: a digest of its workload and engine; ``machine``: what it ran on, in words."""

    key: RunKey
    content: str
    machine: str
    tokens_per_s: float | None
    groups: Mapping[str, AcceptSample]

    @classmethod
    def of(cls, run: ArmRun, outcome: Outcome) -> Entry:
        groups = samples(outcome, _speculative(run))
        return cls(RunKey.of(run), _content(run), machine_of(outcome), outcome.metrics.tokens_per_s, groups)

    def to_dict(self) -> dict[str, Any]:
        speed = self.tokens_per_s
        told = None if speed is None else {"mean": speed, "low": speed / SLOWER, "high": speed * SLOWER}
        return {
            **asdict(self.key),
            "content": self.content,
            "machine": self.machine,
            "tokens_per_s": told,
            "groups": {name: sample.to_dict() for name, sample in self.groups.items()},
        }

    @classmethod
    def read(cls, item: Item) -> Entry:
        names = [each.name for each in fields(RunKey)]
        table = item.table(required=(*names, "content", "machine", "tokens_per_s", "groups"))
        values = {name: table[name].text(empty=True) for name in names if name != "seed"}
        speed = table["tokens_per_s"]
        mean = None if speed.is_null else speed.table(required=("mean", "low", "high"))["mean"].number(low=0)
        return cls(
            RunKey(seed=table["seed"].integer(low=0, high=2**63 - 1), **values),
            table["content"].text(),
            table["machine"].text(empty=True),
            mean,
            {name: AcceptSample.read(each) for name, each in table["groups"].entries().items()},
        )


@dataclass(frozen=True)
class Baseline:
    """A baseline file's content."""

    path: Path
    entries: Mapping[RunKey, Entry]

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Read a file. Raises ContentError, with the line, for one that is no baseline."""
        doc = load_yaml(path)  # of which JSON is a part; it knows the place of every value
        if not isinstance(doc.data, dict) or doc.data.get("format") != FORMAT:
            raise ContentError("is no baseline; --save-baseline writes one", doc.where())
        table = doc.root.table(required=("format", "version", "entries"), optional=("specdebug",))
        if table["version"].integer(low=1) != VERSION:
            raise table["version"].error(f"is {table['version'].value}; this specdebug reads version {VERSION}")
        entries = dict[RunKey, Entry]()
        for item in table["entries"].items():
            entry = Entry.read(item)
            if entry.key in entries:
                raise item.error("is of the same run as one before it")
            entries[entry.key] = entry
        return cls(path, entries)

    def judge(self, run: ArmRun, outcome: Outcome) -> tuple[Outcome, Against]:
        if not outcome.complete:
            return outcome, Against(str(self.path), "not compared", "the run did not come to its end")
        key = RunKey.of(run)
        entry = self.entries.get(key)
        if entry is None:
            near = (key.differences(other) for other in self.entries if other.scenario == key.scenario)
            nearest = min(near, key=len, default=None)
            which = f"scenario {key.scenario}" if nearest else f"no scenario {key.scenario}"
            told = f" with {'; '.join(nearest)}" if nearest else ""
            return outcome, Against(str(self.path), "no baseline", f"{self.path} has {which}{told}")
        if entry.content != _content(run):
            why = f"the workload or the engine of arm {run.arm} changed since {self.path} was written"
            mend = f"write it again with --save-baseline {self.path}"
            return outcome, Against(str(self.path), "no baseline", f"{why}; {mend}")
        accept = run.scenario.oracles_of(run.arm).accept
        drop = None if accept is None else accept.drop
        now = samples(outcome, _speculative(run))
        groups = [beside(name, entry.groups[name], now[name], drop) for name in now]
        lost = []
        for group in (group for group in groups if group.status == "lost"):
            got = group.got or 0.0
            detail = (
                f"requests of group {group.group} accept {got:.2f} tokens a verify over {group.verifies} verifies, "
                f"{group.baseline:.2f} in the baseline: less than {group.wanted:.2f}"
            )
            lost.append(accept_drop(group.group, got, group.wanted, group.verifies, detail))
        speed, machine = outcome.metrics.tokens_per_s, entry.machine == machine_of(outcome)
        slower = bool(machine and speed and entry.tokens_per_s and speed * SLOWER < entry.tokens_per_s)
        against = Against(
            str(self.path), "lost" if lost else "kept", "", tuple(groups), speed, entry.tokens_per_s, machine, slower
        )
        return with_violations(outcome, lost), against

    def updated(self, results: Iterable[ArmResult]) -> Baseline:
        """This baseline with these results in the place of what it had of them."""
        found = (Entry.of(result.run, result.outcome) for result in results)
        return Baseline(self.path, {**self.entries, **{entry.key: entry for entry in found}})

    def text(self) -> str:
        """The file. Raises SpecDebugError where it would be larger than what is read again."""
        entries = [self.entries[key].to_dict() for key in sorted(self.entries, key=astuple)]
        document = {"format": FORMAT, "version": VERSION, "specdebug": __version__, "entries": entries}
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
        if len(text) > MAX_BYTES:
            raise SpecDebugError(f"{self.path} would be larger than {MAX_BYTES >> 20} MiB; save fewer scenarios in it")
        return text


def saveable(results: Sequence[ArmResult]) -> tuple[list[ArmResult], list[str]]:
    """The results that a baseline can be made of, and words for each of the others. Raises SpecDebugError where two
    scenarios have one name."""
    paths: dict[str, Path] = {}
    kept: list[ArmResult] = []
    left: list[str] = []
    for result in results:
        scenario = result.run.scenario
        if paths.setdefault(scenario.name, scenario.path) != scenario.path:
            both = f"{paths[scenario.name]} and {scenario.path}"
            raise SpecDebugError(f"{both}: both are named {scenario.name}, by which a baseline tells them apart")
        if not result.outcome.complete:
            left.append(f"{scenario.name}: arm {result.run.arm} did not come to its end")
        elif not as_it_should(result):
            left.append(f"{scenario.name}: arm {result.run.arm} came to {result.outcome.verdict}")
        else:
            kept.append(result)
    return kept, left


def save(path: Path, results: Sequence[ArmResult]) -> list[str]:
    """Put these results into the baseline file, and return words for what was done. Raises SpecDebugError."""
    kept, left = saveable(results)
    if kept:
        record = Record(path, "the baseline", "name another with --save-baseline")
        with Lock(record, wait_s=_WAIT_S):
            before = Baseline.read(path) if path.exists() else Baseline(path, {})
            try:
                replace_file(path, before.updated(kept).text().encode())
            except OSError as error:
                raise record.not_written(error) from None
    count = f"{len(kept)} {'arm' if len(kept) == 1 else 'arms'}"
    told = [*(f"baseline: not saved: {each}" for each in left), f"baseline: {count} saved in {path}"]
    if useless := [each for result in kept for each in _guards_nothing(result)]:
        shown = ", ".join(useless[:3]) + (f" and {len(useless) - 3} more" if len(useless) > 3 else "")
        told.append(
            f"baseline: too few verifies to guard anything if texts change: {shown}; ask for more or longer outputs"
        )
    return told


def _guards_nothing(result: ArmResult) -> Iterator[str]:
    """The groups of which no accept length would be a loss where every text is another one."""
    for name, sample in Entry.of(result.run, result.outcome).groups.items():
        if sample.accept is not None and sample.interval()[0] <= 1.0:
            yield f"{result.run.scenario.name}::{result.run.arm} {name} ({sample.verifies} verifies)"


def machine_of(outcome: Outcome) -> str:
    """Return the device of a run and, of a CPU, the processor, in plain ASCII, for files; of a server that is there
    its host."""
    stack = outcome.stack
    device = stack.get("machine") or stack.get("name", "unknown")  # of a server the name is its address and version
    names = [device, (stack.get("arithmetic") or {}).get("cpu", "")]
    return ", ".join(filter(None, names)).encode("ascii", "replace").decode()


def lines_of(results: Iterable[ArmResult]) -> Iterator[str]:
    """A line on all runs that were held against a baseline; none if there are none."""
    counts: dict[str, list[str]] = {}
    for result in results:
        if result.against is not None:
            named = f"{result.run.scenario.name}::{result.run.arm}"
            counts.setdefault(result.against.status, []).append(named)
    parts = [
        f"{len(names)} {status}" + ("" if status == "kept" else f" ({', '.join(names)})")
        for status, names in counts.items()
    ]
    if parts:
        yield f"against the baseline: {'; '.join(parts)}"


def _speculative(run: ArmRun) -> list[str]:
    return [group.id for group in run.scenario.workload if group.speculative] if run.asked.drafts else []


def _content(run: ArmRun) -> str:
    """A digest of what decides an arm's accept lengths besides its key: the workload and the file's engine."""
    scenario = run.scenario
    engine = merge(scenario.engine, scenario.arms[run.arm].engine)
    plain = json.dumps([[group.to_dict() for group in scenario.workload], engine], sort_keys=True, default=str)
    return hashlib.blake2b(plain.encode(), digest_size=8).hexdigest()
