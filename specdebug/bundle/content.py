"""The content of a bundle, to and from the archive's members, which ``docs/bundles.md`` describes.

The manifest repeats how the run ended (verdict, signature, trace hash) and says what it ran on. Nothing here is
unpickled or executed; all of it is checked as a user's own files are.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdebug.base.abilities import DEFAULT
from specdebug.base.errors import ContentError, SpecDebugError
from specdebug.base.files import read_file
from specdebug.base.redaction import redacted_plain
from specdebug.base.yamlio import MAX_BYTES, Doc, one_line, parse_yaml
from specdebug.bundle.archive import read_archive, write_archive
from specdebug.bundle.requests import read_requests, write_requests
from specdebug.bundle.run import Recorded, Traced, recorded_of, steps_hash
from specdebug.bundle.trust import check_scenario_trusted, check_toggles_trusted
from specdebug.campaign.loops.replay import ArmRun
from specdebug.patching.toggles import Toggle, read_toggle
from specdebug.scenario.checks import check_scenario
from specdebug.scenario.grammar import Expectation, Scenario, merge
from specdebug.scenario.packs import ProbePack, read_pack
from specdebug.scenario.workload import Workload
from specdebug.targets.options import options_of
from specdebug.targets.settings import TargetChoice
from specdebug.verdict.outcome import EXIT_CODES

SCENARIO = "scenario.json"
REQUESTS = "requests.jsonl"
TRACE = "trace.jsonl"
REPORT = "report.json"
TOGGLES = "toggles"
PROBES = "probes"

_ROOM = {SCENARIO: 4 << 20, REQUESTS: 32 << 20, TRACE: 64 << 20}
_ROOM_FOR_CONTENT = MAX_BYTES  # as for a user's own files
MAX_STEPS = 1 << 20
MAX_STEP = 1 << 20
"""Lines of a trace, and bytes of one; a line of a real step has some 70 bytes at least."""


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
    members = {
        SCENARIO: _json(redacted_plain(resolved(run).to_dict())),
        REQUESTS: write_requests(requests),
        TRACE: "".join(step + "\n" for step in traced.steps),
        REPORT: _json(redacted_plain(report)),
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
    write_archive(path, facts, data | {name: _bytes_of(file) for name, file in files.items()}, force, room)


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
    requests = read_requests(texts[REQUESTS], f"{path}/{REQUESTS}", groups)
    return Bundle(
        path=str(path),
        run=ArmRun(arm.name, scenario, arm.name, scenario.seed, tuple(packs), tuple(toggles)),
        requests=Workload(requests, groups),
        recorded=recorded,
        versions=_versions(manifest.get("versions")),
    )


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, allow_nan=False)


def _bytes_of(file: Path) -> bytes:
    try:
        return read_file(file, _ROOM_FOR_CONTENT)
    except OSError as error:
        raise SpecDebugError(f"{file}: cannot be read: {error.strerror}") from None


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


def _versions(stated: object) -> dict[str, str]:
    found = stated.items() if isinstance(stated, dict) else ()
    return {one_line(name, 40): one_line(version, 80) for name, version in found if isinstance(version, str)}
