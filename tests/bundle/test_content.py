"""What a bundle says is what was run, and a bundle that says something else is refused."""

import hashlib
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdebug.base import corpus, redaction
from specdebug.base.errors import SpecDebugError
from specdebug.bundle import content
from specdebug.bundle.archive import MANIFEST
from specdebug.bundle.content import Recorded, differences, read_bundle, recorded_of, steps_hash, write_bundle
from specdebug.scenario.library import Library
from specdebug.targets.settings import LaunchedServer
from specdebug.workers.job import WorkerEnd
from tests.bundle.bundles import CORPUS, MINI, arm_run, make_bundle, manifest_of, members_of, pack, traced


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "b.specdebug", reverts=(25015,), seed=11)


def edited(bundle: Path, **changes: Callable[[Any], Any]) -> str:
    """The refusal of a bundle with changed members, digests changed alike; ``__`` stands for a slash."""
    members = members_of(bundle)
    manifest = json.loads(members.pop(MANIFEST))
    for name, change in changes.items():
        name = name.replace("__", "/").replace("_json", ".json").replace("_yaml", ".yaml")
        if name == MANIFEST:
            manifest = change(manifest)
            continue
        data = members[name].decode()
        members[name] = (json.dumps(change(json.loads(data))) if name.endswith(".json") else change(data)).encode()
        manifest["members"][name]["sha256"] = hashlib.sha256(members[name]).hexdigest()
    bundle.write_bytes(pack({**members, MANIFEST: json.dumps(manifest).encode()}))
    with pytest.raises(SpecDebugError) as caught:
        read_bundle(bundle, None)
    message = str(caught.value)
    assert message.startswith(str(bundle))
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


def test_the_arm_is_read_as_it_was_run(bundle: Path) -> None:
    run = arm_run(reverts=(25015,), seed=11)
    again = read_bundle(bundle, None)
    assert again.run.seed == 11
    assert again.run.reverts == (25015,)
    assert [patch.edits[0].replacement for patch in again.run.toggles[0].patches] == [
        patch.edits[0].replacement for patch in run.toggles[0].patches
    ]
    assert [pack.entries[0].rule for pack in again.run.packs] == [pack.entries[0].rule for pack in run.packs]
    assert again.run.shape == run.shape
    assert again.requests == Library().workload(run.scenario, run.arm, 11)
    assert again.recorded.verdict == "pass"
    assert again.versions == {"specdebug": "0", "python": "3.99"}


def test_prompts_do_not_depend_on_this_pythons_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another Python's library is another corpus; the bundle's requests stay those that were recorded."""
    bundle = make_bundle(tmp_path / "b.specdebug", CORPUS)
    run = arm_run(CORPUS)
    before = Library().workload(run.scenario, run.arm, run.seed)
    monkeypatch.setattr(corpus, "heldout_text", lambda: "def other():\n    return 'another library'\n" * 2000)
    here = Library().workload(run.scenario, run.arm, run.seed)
    again = read_bundle(bundle, None)
    assert again.workload(again.run.scenario, again.run.arm, again.run.seed) == before
    assert here != before


def test_the_manifest_says_how_it_ended_and_on_what(bundle: Path) -> None:
    manifest = manifest_of(bundle)
    assert manifest["outcome"]["verdict"] == "pass"
    assert (manifest["scenario"], manifest["arm"], manifest["seed"]) == ("mini", "fixed", 11)
    assert manifest["reverted"] == [25015]
    assert manifest["versions"]["python"] == "3.99"
    assert sorted(manifest["members"]) == [
        "probes/default.yaml", "report.json", "requests.jsonl", "scenario.json", "toggles/25015.yaml", "trace.jsonl",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scenario_json": lambda data: [data]}, "scenario.json is not a scenario"),
        ({"scenario_json": lambda data: {**data, "name": "Not A Name"}}, "does not fit the form"),
        ({"scenario_json": lambda data: {**data, "engine": {"pagesize": 3}}}, "did you mean 'page_size'"),
        ({"scenario_json": lambda data: {**data, "arms": {"a": {}, "b": {}}, "expect": {}}}, "has 2 arms"),
        ({"scenario_json": lambda data: {**data, "probes": [], "arms": {"a": {"revert": [1]}}, "expect": {}}},
         "lacks toggles/1.yaml, which its scenario names"),
        ({"scenario_json": lambda data: {**data, "arms": {"a": {"probes": ["../../etc"]}}, "expect": {}}},
         "lacks probes/../../etc.yaml, which its scenario names"),
        ({"toggles__25015_yaml": lambda text: text.replace("25015", "25016")}, "reverts no fix 25015"),
        ({"toggles__25015_yaml": lambda text: "pr: ["}, "toggles/25015.yaml:2:1: not valid YAML"),
        ({"toggles__25015_yaml": lambda text: text + "\n!!python/object/apply:os.system [id]"}, "toggles/25015.yaml"),
        ({"probes__default_yaml": lambda text: "name: x"}, "probes/default.yaml"),
        ({MANIFEST: lambda data: {**data, "outcome": None}}, "does not say how the run ended"),
        ({MANIFEST: lambda data: {**data, "outcome": {**data["outcome"], "verdict": []}}}, "does not say how"),
        ({MANIFEST: lambda data: {**data, "outcome": {**data["outcome"], "trace_hash": "0"}}}, "does not hash to"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_bundle_that_does_not_fit_together_is_one_line(
    changes: dict[str, Callable[[Any], Any]], words: str, bundle: Path
) -> None:
    assert words in edited(bundle, **changes)


@pytest.mark.parametrize("name", ["scenario.json", "requests.jsonl", "trace.jsonl", "report.json"])
def test_every_part_is_needed(name: str, bundle: Path) -> None:
    members = members_of(bundle)
    manifest = json.loads(members[MANIFEST])
    del members[name], manifest["members"][name]
    bundle.write_bytes(pack({**members, MANIFEST: json.dumps(manifest).encode()}))
    with pytest.raises(SpecDebugError, match=f"lacks {name}"):
        read_bundle(bundle, None)


def swollen(bundle: Path, name: str, data: bytes) -> str:
    """What is said of a bundle one member of which is ``data``; no more than 4 MiB may be held beside that."""
    members = members_of(bundle)
    manifest = json.loads(members.pop(MANIFEST))
    members[name] = data
    manifest["members"][name] = {"sha256": hashlib.sha256(data).hexdigest()}
    bundle.write_bytes(pack({**members, MANIFEST: json.dumps(manifest).encode()}))
    assert bundle.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(SpecDebugError) as caught:
            read_bundle(bundle, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    assert peak < 2 * len(data) + (4 << 20), f"{peak >> 20} MiB"
    return message


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("trace.jsonl", b"[1]\n", "trace.jsonl has 3145728 lines, more than the 1048576 it may have"),
        ("trace.jsonl", b"\n", "lines, more than the 1048576 it may have"),
        ("trace.jsonl", b"[1],", "trace.jsonl:1: has more than the 1 MiB that a step may have"),
        ("requests.jsonl", b"{}\n", "holds 4194304 requests, more than the 65536 it may hold"),
        ("requests.jsonl", b"1 ", "holds more tokens than the 4194304 it may hold"),
        ("scenario.json", b"[],", "scenario.json has 12 MiB, more than the 4 MiB it may have"),
        ("toggles/25015.yaml", b"- a\n", "toggles/25015.yaml has 12 MiB, more than the 1 MiB it may have"),
        ("probes/default.yaml", b"- a\n", "probes/default.yaml has 12 MiB, more than the 1 MiB it may have"),
    ],
)
def test_a_small_bundle_does_not_take_much_memory(name: str, line: bytes, words: str, bundle: Path) -> None:
    assert words in swollen(bundle, name, line * ((12 << 20) // len(line)))


@pytest.mark.parametrize("name", ["report.json", "strange"])
def test_what_nobody_reads_is_not_held(name: str, bundle: Path) -> None:
    data = b"[1]\n" * (1 << 22)
    members = members_of(bundle)
    manifest = json.loads(members.pop(MANIFEST))
    members[name] = data
    manifest["members"][name] = {"sha256": hashlib.sha256(data).hexdigest()}
    bundle.write_bytes(pack({**members, MANIFEST: json.dumps(manifest).encode()}))
    tracemalloc.start()
    try:
        read_bundle(bundle, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(data) / 2


def test_what_could_not_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "MAX_STEPS", 0)
    with pytest.raises(SpecDebugError, match="has 1 lines, more than the 0 it may have"):
        make_bundle(tmp_path / "b.specdebug")
    assert not list(tmp_path.iterdir())


def test_no_secret_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_known", set())
    monkeypatch.setenv("THEIR_NAME", "hunter-one")
    target = """{launch: "server {port} --hf-token hunter-two", api_key: THEIR_NAME, env: {A_SECRET: hunter-3, B: b}}"""
    file = tmp_path / "s.yaml"
    file.write_text(MINI.read_text() + f"target: {target}\n")
    run = arm_run(file)
    told = {"said": "hunter-one, hunter-two, hunter-3", "log": ["api_key='hunter-four'"]}
    path = tmp_path / "b.specdebug"
    write_bundle(path, traced(run), Library().workload(run.scenario, run.arm, run.seed), {}, told)
    members = members_of(path)
    assert b"hunter" not in b"".join(members.values())
    assert json.loads(members["report.json"]) == {"said": "***, ***, ***", "log": ["api_key='***'"]}
    written = json.loads(members["scenario.json"])["target"]
    assert written["env"] == {"A_SECRET": "***", "B": "b"}
    assert written["launch"] == "server {port} --hf-token ***"
    assert written["api_key"] == "THEIR_NAME"
    with pytest.raises(SpecDebugError, match=r"command holds \*\*\*, for a secret is left out of what is written"):
        read_bundle(path, None)


def test_a_variable_that_was_left_out_is_the_user_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    target = LaunchedServer(command="server {port}", env={"A_SECRET": "***", "B": "b"})
    monkeypatch.delenv("A_SECRET", raising=False)
    with pytest.raises(SpecDebugError, match=r"target\.env: A_SECRET is a secret, which is left out"):
        _ = target.variables
    monkeypatch.setenv("A_SECRET", "mine")
    assert target.variables == {"B": "b"}


BEFORE = Recorded("fail", "nan@a", "00", ("[1]", "[2]"))


def test_the_steps_hash_to_the_trace_hash() -> None:
    done = traced(arm_run())
    assert len(done.steps) == 1
    assert steps_hash(done.steps) == done.result.outcome.trace_hash
    assert differences(recorded_of(done), recorded_of(done)) == ()


@pytest.mark.parametrize(
    ("now", "lines"),
    [
        (Recorded("pass", None, "00", BEFORE.steps),
         ("verdict: recorded fail, now pass", "signature: recorded nan@a, now none")),
        (Recorded("fail", "nan@a", "11", ("[1]", "[3]")),
         ("trace hash: recorded 00, now 11", "step 2: recorded [2]", "step 2: now [3]")),
        (Recorded("fail", "nan@a", "11", ("[1]",)),
         ("trace hash: recorded 00, now 11", "steps: recorded 2, now 1; equal as far as both go")),
    ],
)  # fmt: skip
def test_what_differs_is_named(now: Recorded, lines: tuple[str, ...]) -> None:
    assert differences(BEFORE, now) == lines


def test_what_the_worker_finds_wrong_with_the_scenario_is_an_error() -> None:
    def at_fault(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        return [{"event": "usage", "message": "there is no CUDA"}], WorkerEnd("done", 0, 0.1, 1.0, "")

    with pytest.raises(SpecDebugError, match="there is no CUDA"):
        traced(arm_run(), at_fault)


def test_a_bundle_comes_to_the_verdict_it_recorded() -> None:
    bundle = Path(__file__).with_name("before.specdebug")
    command = [sys.executable, "-m", "specdebug", "replay", str(bundle), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    document = json.loads(done.stdout)
    recorded = document["bundle"]["recorded"]
    assert (recorded["verdict"], recorded["signature"]) == ("fail", "guard@draft.kv_indices->draft.kv_indptr")
    (arm,) = document["arms"]
    assert [arm["verdict"], arm["signature"]] == [recorded["verdict"], recorded["signature"]]
    assert document["bundle"]["status"] in ("exact", "rounding"), document["bundle"]["differences"]
