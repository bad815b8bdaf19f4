"""``specdebug engines``: what is there, what is not, and what is removed. Installing itself is in tests/engines."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specdebug.cli.main import run
from specdebug.targets.installs.store import Installed
from tests.patching.drift.releases import TOGGLE, sdist, tree, wheel


def engines(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run(["engines", *words])
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.fixture
def store(tmp_path: Path) -> Path:
    checked = {"plain": "pass", "drafts": "pass", "accept_length": 2.25}
    Installed(
        tmp_path / "a", "sglang", "0.5.13", "cpu", sys.executable, False, done=("installed",), checked=checked
    ).write()
    Installed(tmp_path / "b", "sglang", "0.5.9", "cpu", sys.executable, True, done=("environment",)).write()
    return tmp_path


def test_what_is_installed_and_what_can_be(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    code, out, _ = engines(capsys, "list", "--into", str(store))
    assert code == 0
    assert "serves, accept length 2.25" in out
    assert "not complete (1 steps done)" in out
    code, out, _ = engines(capsys, "list", "--into", str(store), "--json")
    document = json.loads(out)
    assert [each["release"] for each in document["installed"]] == ["sglang==0.5.13", "sglang==0.5.9"]
    assert document["installed"][0]["own"] is True
    assert "sglang==0.5.13" in [each["release"] for each in document["recipes"]]


def test_removing(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    code, _, err = engines(capsys, "remove", "sglang", "--into", str(store))
    assert (code, "may be any of sglang==0.5.13, sglang==0.5.9; name one" in err) == (2, True)
    code, out, _ = engines(capsys, "remove", "sglang==0.5.13", "--into", str(store))
    assert (code, out) == (0, f"sglang==0.5.13 is forgotten; {sys.executable} is as it was\n")
    code, out, _ = engines(capsys, "remove", "sglang", "--into", str(store))
    assert (code, out) == (0, "sglang==0.5.9 is removed\n")
    code, _, err = engines(capsys, "remove", "sglang", "--into", str(store))
    assert code == 2
    assert "sglang is not installed in" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("install", "sglang==0.0.1"), "no recipe installs sglang==0.0.1 for cpu; there are: "),
        (("install", "sgl"), "no engine 'sgl'"),
        (("install", "sglang==0.5.13", "--cpu", "--cuda"), "--cpu or --cuda, not both"),
        (("install", "sglang==0.5.13", "--python", "/nowhere"), "/nowhere does not run: No such file or directory"),
        (("check", "vllm"), "vllm is not installed in"),
    ],
)
def test_what_cannot_be_is_one_line(
    refused: Callable[..., str], tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    assert told in refused("engines", *words, "--into", str(tmp_path))


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A content folder with one toggle that fits the made-up engine, in versions up to 1."""
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "own" / "toggles").mkdir(parents=True)
    write(tmp_path / "own", 99001, "<2", "width = count * self.topk")
    return tmp_path / "own"


def write(content: Path, pr: int, versions: str, match: str) -> None:
    text = TOGGLE.format(
        pr=pr, versions=versions, target="toyserve.flow:Draft.rows", match=match, replacement="width = count"
    )
    (content / "toggles" / f"{pr}.yaml").write_text(text)


def check(content: Path, dist: Path, *more: str) -> int:
    return run(["toggles", "check", "--against", str(dist), "--content", str(content), *more])


@pytest.mark.parametrize("kind", [wheel, sdist])
def test_json_is_rows_and_nothing_else(content: Path, tmp_path: Path, capsys, kind) -> None:
    assert check(content, kind(tmp_path), "--json") == 0
    out, err = capsys.readouterr()
    rows = {(row["registry"], row["pr"]): row for row in json.loads(out)}
    assert err == ""
    assert rows["ours", 99001]["status"] == "fits"
    assert rows["ours", 27360]["status"] == "not-for-version"
    assert rows["upstream", 11]["status"] == "fits"
    assert rows["upstream", 12]["status"] == "stale"
    assert rows["upstream", 12]["nearest"] == "width = count * self.topk"


def test_a_tree_and_its_version(content: Path, tmp_path: Path, capsys) -> None:
    root = tree(tmp_path, {})
    assert check(content, root) == 2
    assert "does not state its version; give --version" in capsys.readouterr().err
    assert check(content, root, "--version", "1.0") == 0
    assert check(content, root, "--version", "2.0") == 125
    assert capsys.readouterr().out.endswith("; no patch of ours is for this release\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone.whl", "no such file or folder"),
        ("junk.whl", "is no wheel"),
        ("junk.tar.gz", "is no sdist"),
        ("x.md", "neither"),
    ],
)
def test_bad_input_is_one_line(content: Path, tmp_path: Path, capsys, name: str, said: str) -> None:
    if name != "gone.whl":
        (tmp_path / name).write_bytes(b"junk")
    assert check(content, tmp_path / name) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_a_wrong_range_names_its_line(content: Path, tmp_path: Path, capsys) -> None:
    write(content, 99003, "1.x", "a")
    assert check(content, wheel(tmp_path)) == 2
    assert "99003.yaml:8:5: '1.x' is no version range" in capsys.readouterr().err


def test_a_fix_of_another_engine_is_listed_but_not_run(content: Path, tmp_path: Path, capsys) -> None:
    assert run(["toggles", "list", "--content", str(content)]) == 0
    assert "│               in toyserve\n" in capsys.readouterr().out
    assert run(["toggles", "list", "--content", str(content), "--json"]) == 0
    rows = {row["pr"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows[99001]["detected_by"], rows[99001]["patches"]) == (None, [])
    assert run(["toggles", "show", "99001", "--content", str(content)]) == 0
    shown = capsys.readouterr().out
    line = "specdebug run --revert 99001 --content own -- COMMAND"
    assert line in " ".join(shown.split())
    assert "embedded engine" not in shown
    assert "reverted in toyserve.flow:Draft.rows:\n  - width = count * self.topk\n  + width = count" in shown
    for argv in (["toggles", "verify", "99001"], ["replay", "topk_page_table", "--revert", "99001"]):
        assert run([*argv, "--content", str(content)]) == 2
        told = capsys.readouterr().err
        assert told.startswith("error: 99001 is a fix in toyserve; the embedded engine has no such code")
        assert f"`{line}` reverts it" in told
    scenario = tmp_path / "mine.yaml"
    scenario.write_text((Path(__file__).parent / "mini.yaml").read_text().replace("27360", "99001"))
    assert run(["scenarios", "validate", str(scenario), "--content", str(content)]) == 2
    assert "mine.yaml:18:24: PR 99001 is a fix of another engine" in capsys.readouterr().err
