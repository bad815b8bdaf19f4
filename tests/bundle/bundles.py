"""Bundles made without running an engine."""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specdebug.bundle.archive import MANIFEST
from specdebug.bundle.content import Traced, run_traced, write_bundle
from specdebug.campaign.loops.replay import ArmRun, Choices, Replay, plan
from specdebug.report.replay import replay_document
from specdebug.scenario.library import Library
from tests.run.fakes import FakePool, good_run

ROOT = Path(__file__).resolve().parents[2]
MINI = ROOT / "tests/cli/mini.yaml"
CORPUS = ROOT / "scenarios/topk_kv_indices.yaml"


def arm_run(file: Path = MINI, **choices: Any) -> ArmRun:
    """One arm of a scenario; the first unless ``arms`` names another."""
    library = Library()
    scenario = library.scenario(file)
    choices.setdefault("arms", (next(iter(scenario.arms)),))
    (run,) = plan(scenario, Choices(**choices), library)
    return run


def traced(run: ArmRun, script: Callable[[Any], Any] = good_run) -> Traced:
    """Pretend that it ran."""
    done = run_traced(FakePool(script), Library(), run)  # type: ignore[arg-type]
    assert done is not None
    return done


def make_bundle(path: Path, file: Path = MINI, **choices: Any) -> Path:
    """Write the bundle of an arm that one step of a fake engine is known of."""
    run = arm_run(file, **choices)
    done = traced(run)
    requests = Library().workload(run.scenario, run.arm, run.seed)
    report = replay_document(Replay(run.scenario, (done.result,), 0.5))
    write_bundle(path, done, requests, {"specdebug": "0", "python": "3.99"}, report)
    return path


def members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(members: Mapping[str, bytes]) -> bytes:
    """A zip archive of these members, as another program would make it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def repacked(path: Path, members: Mapping[str, bytes]) -> Path:
    """The bundle of these members, with a manifest that fits them, as a stranger would write it."""
    manifest = json.loads(members[MANIFEST])
    for name, data in members.items():
        if name != MANIFEST:
            manifest["members"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    path.write_bytes(pack({**members, MANIFEST: json.dumps(manifest).encode()}))
    return path


def manifest_of(path: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(members_of(path)[MANIFEST])
    return manifest
