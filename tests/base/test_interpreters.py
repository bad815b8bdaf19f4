"""Every process that the source starts is entered here, and no interpreter among them takes a module by chance."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

import specdebug
from specdebug.base.interpreters import ENGINE_ENV, engine_python, home_python, other_python, own_python

ROOT = Path(specdebug.__file__).resolve().parent
STARTERS = {
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "os": {"execl", "execle", "execlp", "execlpe", "execv", "execve", "execvp", "execvpe", "popen", "posix_spawn"}
    | {"posix_spawnp", "spawnl", "spawnv", "spawnve", "startfile", "system"},
    "subprocess": {"Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"},
}

CHILDREN = {"Child", "OwnChild"}  # classes of ours that start a process when they are made (``workers/child.py``)

STARTS = {
    "base/git.py": (1, "git"),
    "targets/installs/steps.py": (1, "other_python, or what an installation tries"),
    "targets/launch/keeper.py": (1, "own_python"),
    "targets/launch/process.py": (1, "the user's command, own_python or engine_python"),
    "targets/installs/fit.py": (1, "other_python"),
    "campaign/trials/command.py": (1, "the user's command"),
    "campaign/trials/state.py": (1, "other_python"),
    "workers/forkserver.py": (1, "own_python"),
    "workers/child.py": (1, "the reaper, a file of ours, by -I -S"),  # and own_python or home_python, by its own base
    "workers/foreground.py": (1, "the user's command"),
    "workers/stack.py": (1, "nvcc"),
}
"""At how many places each file starts something, and what."""

NAMED = {
    "apps/doctor.py": "shown",
    "targets/installs/release.py": "handed to other_python",
    "base/interpreters.py": "the words",
    "workers/child.py": "the reaper, which needs the standard library alone",
}
"""Files that name this interpreter, and what for."""


TO_SHOW = {"logs/facts.py": "a command that a user is told of"}  # files whose words nothing is started by


@cache
def trees() -> list[tuple[str, list[ast.AST]]]:
    """Every file of the source, and the nodes of its tree."""
    files = sorted(ROOT.rglob("*.py"))
    return [(file.relative_to(ROOT).as_posix(), list(ast.walk(ast.parse(file.read_text("utf-8"))))) for file in files]


def starts_in(nodes: Iterable[ast.AST]) -> list[int]:
    """The lines at which a process is started."""
    calls = [each.func for each in nodes if isinstance(each, ast.Call)]
    children = [each.lineno for each in calls if isinstance(each, ast.Name) and each.id in CHILDREN]
    named = [each for each in calls if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name)]
    return children + [each.lineno for each in named if each.attr in STARTERS.get(ast.unparse(each.value), ())]


def test_every_start_is_entered() -> None:
    found = {name: len(lines) for name, nodes in trees() if (lines := starts_in(nodes))}
    assert found == {name: count for name, (count, _) in STARTS.items()}


def test_a_start_is_seen() -> None:
    assert starts_in(ast.walk(ast.parse("import os\nsubprocess.Popen(words)\nos.execv(a, b)\npool.run(jobs)\n"))) == [
        2,
        3,
    ]


def test_no_start_is_imported_by_its_own_name() -> None:
    for name, nodes in trees():
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                assert not {alias.name for alias in node.names} & STARTERS.get(node.module or "", set()), name


def test_this_interpreter_is_named_in_few_places() -> None:
    named = {name for name, nodes in trees() for node in nodes if _text(node) == "sys.executable"}
    assert named == set(NAMED)


def test_words_for_an_interpreter_are_made_in_one_place() -> None:
    for name, nodes in trees():
        for node in nodes:
            if isinstance(node, ast.List | ast.Tuple) and name != "base/interpreters.py":
                words = [each.value for each in node.elts if isinstance(each, ast.Constant)]
                fine = not {"-m", "-c"} & set(words) or words[0] in ("git", "sh") or name in TO_SHOW
                assert fine, f"{name}:{node.lineno}"


def _text(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.Attribute) else ""


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder with a ``json`` and a ``sitecustomize`` that leave a file when they run."""
    for name in ("json", "sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').write({name!r})\n")
    return tmp_path


def ran(planted: Path, words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": "", **more}
    return subprocess.run(words, cwd=planted, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("path", ["", "planted"])
def test_nothing_planted_runs(planted: Path, path: str) -> None:
    more = {"PYTHONPATH": str(planted)} if path else {}
    for words in (
        own_python("import json; print(json.__file__, sys.argv[1:])", "a"),
        home_python(sys.executable, [], "import json; print(json.__file__, sys.argv[1:])", "a"),
        other_python(sys.executable, "-c", "import json; print(json.__file__)"),
        other_python(sys.executable, "-m", "json.tool", "-h"),
    ):
        done = ran(planted, words, **more)
        assert done.returncode == 0, done.stderr
        assert not (planted / "ran").exists()
    assert ran(planted, [sys.executable, "-c", "import json"]).returncode == 0
    assert (planted / "ran").exists()  # it would have run


def test_a_home_imports_from_its_path_first(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    site = tmp_path_factory.mktemp("site")
    (site / "colorsys.py").write_text("said = 'ours'\n")
    code = "import colorsys; print(colorsys.said, sys.argv[1:])"
    assert ran(planted, home_python(sys.executable, [str(site)], code, "a")).stdout == "ours ['a']\n"


def test_an_engine_finds_what_we_name_and_not_what_lies_about(
    planted: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = tmp_path_factory.mktemp("site")
    (site / "ours.py").write_text("said = 'ours'\n")
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import json, ours; print(ours.said)'])"
    done = ran(planted, engine_python(sys.executable, "-c", child), **ENGINE_ENV, PYTHONPATH=str(site))
    assert done.stdout == "ours\n"
    assert not (planted / "ran").exists()
