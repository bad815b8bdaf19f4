"""The content of a bundle, to and from the archive's members, which ``docs/bundles.md`` describes.

The manifest repeats how the run ended (verdict, signature, trace hash) and says what it ran on. Nothing here is
unpickled or executed; all of it is checked as a user's own files are.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from specdebug import __version__
from specdebug.base.abilities import DEFAULT
from specdebug.base.errors import ContentError, SpecDebugError
from specdebug.base.files import read_file
from specdebug.base.redaction import redacted_plain
from specdebug.base.yamlio import MAX_BYTES, Doc, one_line, parse_yaml
from specdebug.bundle.archive import read_archive, write_archive
from specdebug.bundle.requests import read_requests, write_requests
from specdebug.bundle.trust import check_scenario_trusted, check_toggles_trusted
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Progress, RunContent, run_through
from specdebug.campaign.loops.steplog import Recording
from specdebug.patching.toggles import Toggle, read_toggle
from specdebug.scenario.checks import check_scenario
from specdebug.scenario.grammar import Expectation, Scenario, TwinSpec, merge
from specdebug.scenario.packs import ProbePack, read_pack
from specdebug.scenario.workload import Workload
from specdebug.targets.options import options_of
from specdebug.targets.settings import TargetChoice
from specdebug.verdict.ledger import TRACED
from specdebug.verdict.outcome import EXIT_CODES
from specdebug.workers.pool import WorkerPool
from specdebug.workers.stack import driver_version, versions

SCENARIO = "scenario.json"
REQUESTS = "requests.jsonl"
TRACE = "trace.jsonl"
REPORT = "report.json"
TOGGLES = "toggles"
PROBES = "probes"

_ROOM = {SCENARIO: 4 << 20, REQUESTS: 32 << 20, TRACE: 64 << 20}
_ROOM_FOR_CONTENT = MAX_BYTES  # as for a user's own files
MAX_STEPS = 1 << 20
MAX_STEP = 1 << 20  # lines of a trace, and bytes of one; a line of a real step has some 70 bytes at least


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read: the arm as it will be run again, the recorded end of its run, and the versions that it
    ran on. It is a library, too: of its own requests."""

    path: str
    run: ArmRun
    requests: Workload
    recorded: Recorded
    versions: Mapping[str, str]

    def workload(self, scenario: Scenario, arm: str, seed: int) -> Workload:
        """The requests, whatever this Python's library would give."""
        return self.requests

    def packs(self, names: Sequence[str]) -> tuple[ProbePack, ...]:
        """The arm's packs of these names."""
        return tuple(pack for pack in self.run.packs if pack.name in names)

    def toggles(self, numbers: Sequence[int], target: TargetChoice = DEFAULT) -> tuple[Toggle, ...]:
        """The arm's reverted fixes of these numbers."""
        return tuple(toggle for toggle in self.run.toggles if toggle.pr in numbers)


def resolved(run: ArmRun) -> Scenario:
    """The scenario of an arm run with nothing left to look up or lay over: its only arm says it all."""
    scenario = run.scenario
    pinned = options_of(run.target).pinned(run.options) if run.target == DEFAULT else {}
    arm = replace(
        scenario.arms[run.arm],
        revert=run.reverts,
        engine=merge(pinned, scenario.engine_of(run.arm)),
        faults=scenario.faults_of(run.arm),
        probes=scenario.probes_of(run.arm),
        oracles=scenario.oracles_of(run.arm),
    )
    return replace(
        scenario,
        seed=run.seed,
        engine={},
        faults=(),
        arms={run.arm: arm},
        expect={run.arm: scenario.expectation_of(run.arm) or Expectation()},
        not_on={},
        expect_on={},
        twins=TwinSpec(),
        overrides={},
    )


def write_bundle(
    path: Path,
    traced: Traced,
    requests: Workload,
    versions: Mapping[str, str],
    report: Mapping[str, Any],
    force: bool = False,
) -> None:
    """Write the bundle of an arm run on ``versions``, with the ``report`` of its replay. Raises SpecDebugError."""
    run, recorded = traced.result.run, recorded_of(traced)
    documents = {SCENARIO: resolved(run).to_dict(), REPORT: report}
    members = {
        **{name: json.dumps(redacted_plain(each), indent=2, allow_nan=False) for name, each in documents.items()},
        REQUESTS: write_requests(requests),
        TRACE: "".join(step + "\n" for step in traced.steps),
    }
    files = {f"{TOGGLES}/{toggle.pr}.yaml": toggle.path for toggle in run.toggles}
    files |= {f"{PROBES}/{pack.name}.yaml": Path(pack.path) for pack in run.packs}
    facts = {
        "scenario": run.scenario.name,
        "arm": run.arm,
        "seed": run.seed,
        "reverted": list(run.reverts),
        "outcome": recorded.facts,
        "versions": dict(versions),
    }
    data = {name: text.encode() for name, text in members.items()}
    _steps(path, data[TRACE])  # what is too much to be read is not written
    for name, file in files.items():
        try:
            data[name] = read_file(file, _ROOM_FOR_CONTENT)
        except OSError as error:
            raise SpecDebugError(f"{file}: cannot be read: {error.strerror}") from None
    write_archive(path, facts, data, force, room)


def room(name: str) -> int:
    """The bytes of a member that may be held: of the report, which is not read again, and of strange ones none."""
    return _ROOM.get(name, _ROOM_FOR_CONTENT if name.startswith((f"{TOGGLES}/", f"{PROBES}/")) else 0)


def read_bundle(path: str | Path, known: Collection[Toggle] | None) -> Bundle:
    """Read and check a bundle; runs nothing of it. ``known``: the toggles of this installation; None trusts the bundle,
    whatever it asks for (``trust.py``). Raises SpecDebugError, and ContentError for a malformed member."""
    manifest, members = read_archive(path, room)
    for name in (SCENARIO, REQUESTS, TRACE, REPORT):
        if name not in manifest["members"]:
            raise SpecDebugError(f"{path}: lacks {name}")
    recorded = _recorded(path, manifest, _steps(path, members.pop(TRACE)))
    texts = {name: _text(path, name, data) for name, data in members.items()}
    scenario = _scenario(path, texts[SCENARIO], trusted=known is None)
    (arm,) = scenario.arms.values()
    toggles = []
    for pr in arm.revert:
        toggles.append(read_toggle(_parsed(path, texts, f"{TOGGLES}/{pr}.yaml")))
        if toggles[-1].pr != pr or not toggles[-1].patches:
            raise SpecDebugError(f"{path}: {TOGGLES}/{pr}.yaml reverts no fix {pr} in this engine")
    if known is not None:
        check_toggles_trusted(toggles, known, str(path))
    packs = [read_pack(_parsed(path, texts, f"{PROBES}/{name}.yaml")) for name in scenario.probes_of(arm.name)]
    groups = {group.id: group.arrive.after for group in scenario.workload}
    versions = manifest.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    requests = read_requests(texts[REQUESTS], f"{path}/{REQUESTS}", groups)
    return Bundle(
        path=str(path),
        run=ArmRun(arm.name, scenario, arm.name, scenario.seed, tuple(packs), tuple(toggles)),
        requests=Workload(requests, groups),
        recorded=recorded,
        versions={one_line(name, 40): one_line(each, 80) for name, each in versions.items() if isinstance(each, str)},
    )


def _text(path: str | Path, name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SpecDebugError(f"{path}: {name} is not UTF-8 text") from None


def _parsed(path: str | Path, texts: Mapping[str, str], name: str) -> Doc:
    if name not in texts:
        raise SpecDebugError(f"{path}: lacks {one_line(name, 80)}, which its scenario names")
    return parse_yaml(texts[name], f"{path}/{name}")


def _scenario(path: str | Path, text: str, *, trusted: bool) -> Scenario:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise SpecDebugError(f"{path}: {SCENARIO} is not JSON") from None
    if not isinstance(data, dict):
        raise SpecDebugError(f"{path}: {SCENARIO} is not a scenario")
    scenario = Scenario.from_dict(data, f"{path}/{SCENARIO}")
    if not trusted:
        check_scenario_trusted(scenario, str(path))  # before any target is asked what it makes of its options
    check_scenario(scenario, None)
    if len(scenario.arms) != 1:
        raise ContentError(f"{path}/{SCENARIO}: has {len(scenario.arms)} arms; a bundle's has one")
    return scenario


def _steps(path: str | Path, trace: bytes) -> tuple[str, ...]:
    """The lines of a trace, measured before any is made: a short line takes far more room than its bytes."""
    lines = trace.count(b"\n") + 1
    if lines > MAX_STEPS + 1:
        raise SpecDebugError(f"{path}: {TRACE} has {lines - 1} lines, more than the {MAX_STEPS} it may have")
    steps = []
    for number, line in enumerate(io.BytesIO(trace), start=1):
        if len(line) > MAX_STEP:
            raise SpecDebugError(
                f"{path}: {TRACE}:{number}: has more than the {MAX_STEP >> 20} MiB that a step may have"
            )
        steps.append(_text(path, TRACE, line.removesuffix(b"\n")))
    return tuple(steps)


def _recorded(path: str | Path, manifest: Mapping[str, Any], steps: tuple[str, ...]) -> Recorded:
    outcome = manifest.get("outcome")
    stated = outcome if isinstance(outcome, dict) else {}
    verdict, signature, digest = stated.get("verdict"), stated.get("signature"), stated.get("trace_hash")
    typed = isinstance(verdict, str) and isinstance(digest, str) and isinstance(signature, str | None)
    if not typed or verdict not in EXIT_CODES:
        raise SpecDebugError(f"{path}: its manifest does not say how the run ended")
    if steps_hash(steps) != digest:
        raise SpecDebugError(f"{path}: {TRACE} does not hash to what its manifest says")
    return Recorded(verdict, signature, digest, steps)


MAX_SHOWN = 160  # characters of a step in a difference


@dataclass(frozen=True)
class Recorded:
    """The end of a run. ``steps``: one JSON line each, whose hash is ``trace_hash``."""

    verdict: str
    signature: str | None
    trace_hash: str
    steps: tuple[str, ...]

    @property
    def facts(self) -> dict[str, str | None]:
        return {"verdict": self.verdict, "signature": self.signature, "trace_hash": self.trace_hash}


@dataclass(frozen=True)
class Traced:
    """An arm that was run, and the decisions of each of its steps; cut short if it was ``interrupted``."""

    result: ArmResult
    steps: tuple[str, ...]
    interrupted: bool = False


def recorded_of(traced: Traced) -> Recorded:
    """The part of a run that is compared."""
    outcome = traced.result.outcome
    return Recorded(outcome.verdict, outcome.signature, outcome.trace_hash, traced.steps)


def run_traced(
    pool: WorkerPool,
    library: RunContent,
    run: ArmRun,
    progress: Progress | None = None,
    recording: Recording | None = None,
) -> Traced | None:
    """Run the arm in a worker of its own; None if a Ctrl-C came before. Raises as ``loops.replay.run_arms``."""
    trace = _Trace(page=recording)
    ran = run_through(pool, library, [run], progress=progress, recording=trace)
    if ran.trouble is not None:
        raise ran.trouble
    if run.key not in ran.spans and ran.interrupted:
        return None
    (result,) = ran.results
    return Traced(result, tuple(trace.lines), ran.interrupted)


def steps_hash(steps: Sequence[str]) -> str:
    """The trace hash of these steps, as the ledger of a run computes it."""
    total = hashlib.blake2b(digest_size=16)
    for step in steps:
        total.update(step.encode())
    return total.hexdigest()


def differences(recorded: Recorded, now: Recorded) -> tuple[str, ...]:
    """The differences from what was recorded, a line each; none if verdict, signature and trace hash are the same."""
    pairs = ((name.replace("_", " "), stated, now.facts[name]) for name, stated in recorded.facts.items())
    found = [f"{name}: recorded {old or 'none'}, now {new or 'none'}" for name, old, new in pairs if old != new]
    return (*found, *(_first_step(recorded.steps, now.steps) if recorded.trace_hash != now.trace_hash else ()))


def versions_here(stack: Mapping[str, Any]) -> dict[str, str]:
    """The versions that a run on this machine depends on. ``stack``: of the run's outcome."""
    found = {
        "specdebug": __version__,
        "python": platform.python_version(),
        **versions(),
        "os": platform.platform(),
        "machine": platform.machine(),
        **stack.get("arithmetic", {}),
        "dtype": stack.get("dtype"),
        "driver": driver_version(),
        "device": " ".join(str(stack[key]) for key in ("device", "name", "executor") if key in stack) or None,
    }
    return {name: str(version) for name, version in found.items() if version is not None}


def changed_versions(recorded: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, ...]:
    """Versions that are not as recorded, a line each."""
    pairs = ((name, recorded.get(name, "none"), here.get(name, "none")) for name in dict.fromkeys((*recorded, *here)))
    return tuple(f"{name}: recorded {before}, here {after}" for name, before, after in pairs if before != after)


def _first_step(before: Sequence[str], after: Sequence[str]) -> list[str]:
    for number, (one, other) in enumerate(zip_longest(before, after), start=1):
        if one is None or other is None:
            return [f"steps: recorded {len(before)}, now {len(after)}; equal as far as both go"]
        if one != other:
            shown = [step if len(step) <= MAX_SHOWN else step[: MAX_SHOWN - 3] + "..." for step in (one, other)]
            return [f"step {number}: recorded {shown[0]}", f"step {number}: now {shown[1]}"]
    return []


@dataclass
class _Trace(Recording):
    """The lines of a run's steps; a page's recording hears of them, too, if there is one."""

    lines: list[str] = field(default_factory=list)
    page: Recording | None = None

    def take(self, key: str, event: Mapping[str, Any]) -> None:
        """Keep an arm's event if it is a step."""
        if event["event"] == "step":
            self.lines.append(json.dumps([event[name] for name in TRACED], sort_keys=True, separators=(",", ":")))
        if self.page is not None:
            self.page.take(key, event)
