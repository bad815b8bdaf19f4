"""specdebug new: what it writes is right as it stands, and is found by editors; and the hooks that check content."""

import io
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from specdebug.base.content import KINDS, Kind, content_files
from specdebug.cli.main import run
from specdebug.patching.toggles import load_toggle

ROOT = Path(__file__).resolve().parents[2]
NEW = {
    "scenarios": ["scenario", "my-hit"],
    "probes": ["probe-pack", "mine"],
    "toggles": ["toggle", "501", "--target", "toy.pool:Pool.width"],
}
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
FIXED = '"""Pools."""\n\n\ndef width(page, topk):\n    if topk > 1:\n        return page * topk\n    return page\n'
BROKEN = '"""Pools of rows."""\n\n\ndef width(page, topk):\n    return page\n'


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository whose last commit is a fix, with a test and a document."""
    folder = tmp_path / "repo"
    package = folder / "src" / "toy"
    package.mkdir(parents=True)

    def commit(subject: str, text: str) -> None:
        (package / "__init__.py").touch()
        (package / "pool.py").write_text(text)
        (folder / "README.md").write_text(subject)
        (folder / "test_pool.py").write_text(f"SUBJECT = {subject!r}\n")
        for words in (["add", "."], ["commit", "-q", "-m", subject]):
            subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=folder, check=True)

    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    commit("begin", BROKEN)
    commit('size "rows": all of them', FIXED)
    return folder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("output", [None, "mine/{kind}/one.yaml", "one.yaml"])
def test_what_is_new_is_right_and_names_its_schema(kind: Kind, output: str | None) -> None:
    where = [] if output is None else ["-o", output.format(kind=kind)]
    assert run(["new", *NEW[kind], *where]) == 0
    file = Path(where[-1]) if where else Path(kind, f"{NEW[kind][1]}.yaml")
    assert run([kind, "validate", str(file)]) == 0
    first, rest = file.read_text().split("\n", 1)
    schema = file.parent / first.removeprefix("# yaml-language-server: $schema=")
    assert schema.parent.name == "schemas"
    validator = pytest.importorskip("jsonschema").Draft202012Validator(json.loads(schema.read_text()))
    validator.validate(yaml.safe_load(rest))


def test_nothing_is_written_over_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", *NEW["toggles"]]) == 0
    file = Path("toggles/501.yaml")
    text = file.read_text()
    file.write_text("mine")
    assert run(["new", *NEW["toggles"]]) == 2
    assert (file.read_text(), "--force" in capsys.readouterr().err) == ("mine", True)
    assert run(["new", *NEW["toggles"], "--force"]) == 0
    assert file.read_text() == text


@pytest.mark.parametrize(
    "words",
    [
        ["scenario", "My Hit"],
        ["probe-pack", "a_b"],
        ["toggle", "27338", "--target", "toy:f"],
        ["toggle", "x", "--target", "toy:f"],
        ["toggle", "501", "--target", "toy f"],
        ["toggle", "501", "--target", "specdebug.engine:f"],
        ["toggle", "501"],
        ["toggle", "501", "--target", "toy:f", "--commit", "HEAD"],
        ["toggle", "501", "--commit", "HEAD", "--repo", "gone"],
        ["toggle", "501", "--from-diff", "gone.diff"],
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", *words]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not list(Path().glob("*/*.yaml"))


@pytest.mark.parametrize("way", ["commit", "file", "stdin"])
def test_a_toggle_is_made_of_a_fix(
    way: str, repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--commit", "HEAD"]
    if way != "commit":
        fix = subprocess.run(["git", "show"], cwd=repo, check=True, capture_output=True, text=True).stdout
        Path("fix.diff").write_text(fix)
        monkeypatch.setattr("sys.stdin", io.StringIO(fix))
        words = ["--from-diff", "-" if way == "stdin" else "fix.diff"]
    assert run(["new", "toggle", "501", "--repo", str(repo), *words]) == 0
    told = [line.partition(": ")[::2] for line in capsys.readouterr().err.splitlines()]
    every = [("left out", "README.md"), ("taken back", "src/toy/pool.py"), ("left out", "test_pool.py")]
    assert [(how, what.partition(":")[0]) for how, what in told] == every
    toggle = load_toggle("toggles/501.yaml")
    assert (toggle.title == 'size "rows": all of them') is (way == "commit")
    ((patch,),) = toggle.foreign["toy"].values()
    assert patch.target == "toy.pool:width"
    assert [(edit.match, edit.replacement) for edit in patch.edits] == [("if topk > 1:\n    return page * topk\n", "")]
    assert run(["toggles", "validate", "toggles/501.yaml"]) == 0


def test_a_fix_of_our_own_engine_or_without_python_is_told(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(repo)]
    words = ["new", "toggle", "501", "--repo", str(repo), "--commit", "HEAD"]
    subprocess.run([*git, "mv", "src/toy", "src/specdebug"], check=True)
    (repo / "src/specdebug/pool.py").write_text(BROKEN)
    subprocess.run([*git, "commit", "-qam", "move"], check=True)
    (repo / "src/specdebug/pool.py").write_text(FIXED)
    subprocess.run([*git, "commit", "-qam", "fix"], check=True)
    assert run(words) == 2
    assert "also has detected_by" in capsys.readouterr().err
    (repo / "kernel.cu").touch()
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "kernel"], check=True)
    assert run(words) == 2
    assert re.search(
        r"left out: kernel.cu: no Python\nerror: commit \w+ changes no Python file", capsys.readouterr().err
    )


def test_the_tree_must_have_the_fix(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fix = subprocess.run(["git", "show"], cwd=repo, check=True, capture_output=True).stdout
    Path("fix.diff").write_bytes(fix)
    (repo / "src/toy/pool.py").write_text(BROKEN)
    assert run(["new", "toggle", "501", "--repo", str(repo), "--from-diff", "fix.diff"]) == 2
    assert "src/toy/pool.py:1: the tree is not what the diff says" in capsys.readouterr().err


def test_schemas_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", "schemas", "mine"]) == 0
    assert {file.name for file in Path("mine/schemas").iterdir()} == {"scenario.json", "toggle.json", "probe-pack.json"}
    told = capsys.readouterr().out
    for kind, name in (("scenarios", "scenario"), ("toggles", "toggle"), ("probes", "probe-pack")):
        assert f"$schema=../schemas/{name}.json" in told
        assert run([kind, "schema"]) == 0
        assert capsys.readouterr().out == Path(f"mine/schemas/{name}.json").read_text()


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_checks_the_files_that_it_is_given(hook: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = hook["entry"].split()
    assert (program, words[1]) == ("specdebug", "validate")
    shipped = [str(path.relative_to(ROOT)) for path in content_files(words[0]).values()]
    assert all(re.search(hook["files"], name) for name in (*shipped, shipped[0].replace(".yaml", ".yml")))
    assert not any(re.search(hook["files"], other["entry"].split()[1] + "/a.yaml") for other in HOOKS if other != hook)
    assert run([*words, str(ROOT / shipped[0])]) == 0
    Path("bad.yaml").write_text("nmae: x\n")
    capsys.readouterr()
    assert run([*words, str(ROOT / shipped[0]), "bad.yaml"]) == 2
    said = capsys.readouterr()
    assert said.out.count("ok, ") == 1
    assert all(line.startswith("error: bad.yaml:1:1: ") for line in said.err.splitlines())
