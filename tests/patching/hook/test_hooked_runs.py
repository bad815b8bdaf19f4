"""Reverts in processes that know nothing of us, by the folder of a run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from specdebug.base.yamlio import parse_yaml
from specdebug.patching.hook.child import MISFIT, in_range
from specdebug.patching.hook.folder import HookedRun, Told, refused
from specdebug.patching.toggles import Toggle, read_toggle

POOL = "def width(page, topk):\n    return page * topk\n"
FIX = """
pr: 501
title: width counts every branch
family: topk > 1
symptom: a row is too narrow
patches:
  toyspec:
    - target: toyspec.pool:width
      edits: [{match: "return page * topk", replacement: "return page"}]
"""


@pytest.fixture
def fix() -> Toggle:
    return read_toggle(parse_yaml(FIX, "501.yaml"))


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / "toyspec").mkdir()
    (tmp_path / "toyspec" / "__init__.py").touch()
    (tmp_path / "toyspec" / "pool.py").write_text(POOL)
    return tmp_path


def run_under(
    toggles: list[Toggle], folder: Path, code: str, python: str = sys.executable
) -> tuple[subprocess.CompletedProcess[str], Told]:
    """Run a program in a folder, as its main file, under the hook."""
    (folder / "job.py").write_text(code)
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "COVERAGE_PROCESS_START")}
    with HookedRun(toggles) as run:
        done = subprocess.run([python, "job.py"], cwd=folder, env=run.environment(env), capture_output=True, text=True)
        return done, run.told()


def test_a_fix_is_reverted_before_its_package_is_imported_and_its_lines_are_counted(toy: Path, fix: Toggle) -> None:
    done, told = run_under([fix], toy, "from toyspec.pool import width\nprint(width(4, 2), width(4, 2))")
    assert done.stdout == "4 4\n", done.stderr
    assert told.hits(501) == {"501#1": 2}
    (process,) = told.processes
    assert process.packages["toyspec"] == str(toy / "toyspec" / "__init__.py")
    assert process.applied[501]["engine"] == "toyspec"


def test_nothing_is_changed_and_nothing_lost_where_nothing_is_reverted(toy: Path) -> None:
    done, told = run_under([], toy, "import toyspec.pool as pool, sys\nprint(pool.width(4, 2)); sys.exit(7)")
    assert (done.returncode, done.stdout) == (7, "8\n")
    assert "toyspec" in told.packages
    assert "json" not in told.packages


SPAWN = """
import multiprocessing, os, sys
from toyspec.pool import width

def work(n):
    print(width(n, 2), flush=True)

if __name__ == "__main__":
    for how in ("fork", "spawn"):
        child = multiprocessing.get_context(how).Process(target=work, args=(3,))
        child.start(); child.join()
    print(width(5, 2))
"""


def test_forked_and_spawned_processes_count_for_themselves(toy: Path, fix: Toggle) -> None:
    done, told = run_under([fix], toy, SPAWN)
    assert done.stdout.split() == ["3", "3", "5"], done.stderr
    assert sorted(each.hits["501#1"] for each in told.processes if each.hits) == [1, 1, 1]
    assert told.hits(501) == {"501#1": 3}


def test_hits_of_a_process_that_is_killed_are_known(toy: Path, fix: Toggle) -> None:
    kill = "import os, signal\nfrom toyspec.pool import width\nwidth(1, 1)\nos.kill(os.getpid(), signal.SIGKILL)"
    done, told = run_under([fix], toy, kill)
    assert done.returncode == -9
    assert told.hits(501) == {"501#1": 1}


def test_a_module_that_is_run_by_its_name_is_reverted_too(toy: Path, fix: Toggle) -> None:
    (toy / "toyspec" / "pool.py").write_text(POOL + 'if __name__ == "__main__":\n    print(width(4, 2))\n')
    job = "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'toyspec.pool'])"
    done, told = run_under([fix], toy, job)
    assert done.stdout == "4\n", done.stderr
    assert told.hits(501) == {"501#1": 1}


def test_a_fix_that_does_not_fit_ends_the_process_that_would_have_it(toy: Path, fix: Toggle) -> None:
    (toy / "toyspec" / "pool.py").write_text("def width(page, topk):\n    return topk * page\n")
    done, told = run_under([fix], toy, "import toyspec")
    assert done.returncode == MISFIT
    assert "501 cannot be reverted in toyspec" in done.stderr
    assert "matches 0 places" in told.misfits[501]


def test_the_range_of_the_installed_version_is_taken(toy: Path) -> None:
    patches = FIX.partition("toyspec:\n")[2].replace("\n", "\n  ").rstrip()
    other = patches.replace('"return page"}', '"return 2"}')
    ranges = f'    "<2":\n  {other}\n    ">=2":\n  {patches}\n'
    toggle = read_toggle(parse_yaml(FIX.partition("    - target")[0] + ranges, "501.yaml"))
    info = toy / "toyspec-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toyspec\nVersion: 2.1\n")
    done, told = run_under([toggle], toy, "from toyspec.pool import width\nprint(width(4, 2))")
    assert done.stdout == "4\n", done.stderr
    assert told.processes[0].applied[501]["range"] == ">=2"


def test_a_start_up_module_that_is_there_already_runs(toy: Path, fix: Toggle) -> None:
    (toy / "own").mkdir()
    (toy / "own" / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = 1\n")
    job = f"import os, subprocess, sys\nos.environ['PYTHONPATH'] += os.pathsep + {str(toy / 'own')!r}\n"
    job += f"os.environ['PYTHONPATH'] += os.pathsep + {str(toy)!r}\n"
    job += "code = 'import toyspec.pool; print(theirs, toyspec.pool.width(4, 2))'\n"
    job += "subprocess.run([sys.executable, '-c', code])"
    done, _ = run_under([fix], toy, job)
    assert done.stdout == "1 4\n", done.stderr


def pythons() -> list[str]:
    """Other interpreters of this machine: what pyenv has, and what is on the path."""
    found = [shutil.which(f"python3.{minor}") for minor in (9, 10, 12, 13, 14)]
    found += [str(path) for path in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))]
    versions = {}
    for python in filter(None, found):
        asked = subprocess.run(
            [python, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True
        )
        if asked.returncode == 0:
            versions.setdefault(asked.stdout.strip(), python)
    return list(versions.values())


def test_other_pythons_from_3_9_on_are_reached_and_older_ones_are_named(toy: Path, fix: Toggle) -> None:
    for python in pythons():
        done, told = run_under([fix], toy, "from toyspec.pool import width\nprint(width(4, 2))", python)
        hooked = told.processes[0].hooked
        assert done.stdout == ("4\n" if hooked else "8\n"), (python, done.stderr)
        assert told.hits(501) == ({"501#1": 1} if hooked else {}), python


def test_the_code_that_goes_into_other_pythons_is_of_python_3_9(toy: Path, fix: Toggle) -> None:
    import ast

    with HookedRun([fix]) as run:
        files = sorted((run.folder / "site").rglob("*.py"))
        for file in files:
            ast.parse(file.read_text(), str(file), feature_version=(3, 9))
            assert "specdebug.patching" not in file.read_text().replace("_specdebug_run.patching", "")
    assert len(files) > 10


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["python3", "-I", "job.py"], "-I"),
        (["/usr/bin/python", "-sE", "job.py"], "-sE"),
        (["python3", "-S", "-m", "toyspec"], "-S"),
        (["python3", "-u", "job.py", "-I"], None),
        (["python3", "-c", "-I"], None),
        (["./job.sh", "-I"], None),
    ],
)
def test_an_interpreter_that_looks_at_no_path_is_refused(words: list[str], told: str | None) -> None:
    why = refused(words)
    assert why is None if told is None else why is not None and told in why


PARTS = st.tuples(
    st.sampled_from(["0.5.12", "0.5.13", "0.5.14", "0.6", "1.0.0", "0.5.13.1"]),
    st.sampled_from(["", "a1", "rc2", ".post1", ".dev3", "+cu130"]),
)


@given(PARTS.map("".join), PARTS.map("".join), st.sampled_from(["==", "!=", ">=", "<=", ">", "<"]))
def test_ranges_hold_the_versions_that_packaging_says(version: str, bound: str, operator: str) -> None:
    bound = bound.partition("+")[0]  # a range's bound has no local part
    expected = SpecifierSet(operator + bound, prereleases=True).contains(version)
    assert in_range(version, f"{operator}{bound}") is expected
    assert in_range(version, f">=0,{operator}{bound}") is expected
