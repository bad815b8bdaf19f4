"""``specdebug bundle`` and replaying what it wrote, with the real engine."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdebug.bundle.archive import MANIFEST
from specdebug.cli.main import run
from tests.bundle.bundles import MINI, arm_run, make_bundle, members_of, pack, traced


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a run that fails."""
    path = tmp_path_factory.mktemp("failing") / "b.specdebug"
    assert run(["bundle", str(MINI), "--arm", "positions", "-o", str(path)]) == 0
    return path


def with_toggle(bundle: Path, to: Path, old: str, new: str) -> Path:
    """The bundle with other code in its toggle, sealed as its maker would have."""
    members = members_of(bundle)
    manifest = json.loads(members[MANIFEST])
    name = "toggles/25015.yaml"
    assert old.encode() in members[name]
    members[name] = members[name].replace(old.encode(), new.encode())
    manifest["members"][name]["sha256"] = hashlib.sha256(members[name]).hexdigest()
    to.write_bytes(pack({**members, MANIFEST: json.dumps(manifest).encode()}))
    return to


def test_an_interrupted_run_is_shown_as_far_as_it_came_and_not_bundled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_short = replace(traced(arm_run()), interrupted=True)
    monkeypatch.setattr("specdebug.bundle.content.run_traced", lambda *given: cut_short)
    assert run(["bundle", str(MINI), "-o", str(tmp_path / "b.specdebug")]) == 130
    assert "mini: fixed pass" in " ".join(capsys.readouterr().out.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_document_is_that_of_the_run_and_of_the_file(
    interrupted: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = replace(traced(arm_run()), interrupted=interrupted)
    monkeypatch.setattr("specdebug.bundle.content.run_traced", lambda *given: ended)
    file, beside = tmp_path / "b.specdebug", tmp_path / "d.json"
    argv = ["bundle", str(MINI), "-o", str(file), "--json", "--json-file", str(beside)]
    assert run(argv) == (130 if interrupted else 0)
    document = json.loads(capsys.readouterr().out)
    assert [arm["verdict"] for arm in document["arms"]] == ["pass"]
    assert document["interrupted"] is interrupted
    assert file.exists() is beside.exists() is not interrupted
    if not interrupted:
        assert document["bundle"] == {"path": str(file), "bytes": file.stat().st_size}
        assert json.loads(beside.read_text()) == document


def test_a_run_that_this_machine_cannot_make_is_not_bundled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here = traced(arm_run())
    outcome = replace(run_here.result.outcome, verdict="unknown", detail="there is no CUDA", unavailable=True)
    lacking = replace(run_here, result=replace(run_here.result, outcome=outcome))
    monkeypatch.setattr("specdebug.bundle.content.run_traced", lambda *given: lacking)
    assert run(["bundle", str(MINI), "-o", str(tmp_path / "b.specdebug")]) == 125
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[-1]) == ("", "error: no bundle written: there is no CUDA")
    assert not list(tmp_path.iterdir())


def test_a_failing_run_replays_to_its_verdict_signature_and_hash(failing: Path, told: Callable[..., Any]) -> None:
    document = told("replay", str(failing), code=1)
    assert document["exit_code"] == 1
    assert document["bundle"]["reproduced"] is True
    assert document["bundle"]["differences"] == []
    (arm,) = document["arms"]
    assert arm["signature"] == document["bundle"]["recorded"]["signature"] == "oob@draft.forward.positions"
    assert arm["trace_hash"] == document["bundle"]["recorded"]["trace_hash"]


def test_a_strangers_toggle_needs_trust(
    failing: Path, tmp_path: Path, refused: Callable[..., str], told: Callable[..., Any]
) -> None:
    mark = tmp_path / "ran"
    line = "positions = inputs.positions + (step + 1)"
    strange = with_toggle(failing, tmp_path / "s.specdebug", line, f"{line}; open({str(mark)!r}, 'w').close()")
    error = refused("replay", str(strange))
    assert "its toggle 25015 holds code that this installation does not have" in error
    assert "--trust" in error
    assert not mark.exists()
    assert told("replay", str(strange), "--trust", code=1)["bundle"]["reproduced"] is True
    assert mark.exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["bundle", str(MINI)], "output"),
        (["bundle", str(MINI), "-o", "b.zip"], "ends in .specdebug"),
        (["bundle", str(MINI), "-o", "no/such/b.specdebug"], "no folder no/such"),
        (["bundle", str(MINI), "-o", "{there}"], "is there already; --force overwrites it"),
        (["bundle", str(MINI), "-o", "b.specdebug", "--arm", "fixt"], "did you mean 'fixed'"),
        (["bundle", str(MINI), "-o", "b.specdebug", "--revert", "1"], "no toggle reverts 1"),
        (["replay", "{there}", "--seed", "1"], "--seed does not go with it"),
        (["bundle", str(MINI), "-o", "b.specdebug", "--fault", "nan_kv_in_us"], "did you mean 'nan_kv_in_use'"),
        (["replay", "{there}", "--fault", "nan_logits"], "--fault does not go with it"),
        (["replay", "{there}", "--revert", "25015"], "--revert does not go with it"),
        (["replay", "{there}", "--device", "cpu"], "--device does not go with it"),
        (["replay", "none.specdebug"], "no such file"),
        (["replay", str(MINI), "--trust"], "--trust is for bundles"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value[2:]) or value[0],
)
def test_what_the_user_got_wrong_is_one_line(
    argv: list[str], words: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    there = make_bundle(tmp_path / "there.specdebug")
    before = there.read_bytes()
    assert words in refused(*(part.format(there=there) for part in argv))
    assert [*tmp_path.iterdir()] == [there]
    assert there.read_bytes() == before


def test_reverts_of_the_environment_are_not_mixed_in(
    failing: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_DEBUG_REVERT_PR", "27338")
    assert "unset SGLANG_DEBUG_REVERT_PR" in refused("replay", str(failing))
