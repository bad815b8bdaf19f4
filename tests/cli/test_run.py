"""``specdebug run`` as a user meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specdebug.async_probe.gate import KINDS
from specdebug.cli.main import run
from specdebug.patching.hook.probing import AddedProbes
from tests.patching.hook.test_hooked_runs import FIX, POOL

JOB = "import sys\nfrom toyspec.pool import width\nsys.exit(1 if width(4, 2) < 8 else 0)\n"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {
        "toyspec/__init__.py": "",
        "toyspec/pool.py": POOL,
        "job.py": JOB,
        "idle.py": "import toyspec.pool\n",
        "mine/toggles/501.yaml": FIX,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("job", "options", "code"),
    [
        ("job.py", [], 0),
        ("job.py", ["--revert", "501"], 1),
        ("idle.py", ["--revert", "501"], 125),  # its lines never ran
    ],
)
def test_the_exit_code_is_the_commands_own_unless_the_fix_was_not_tried(
    toy: Path, job: str, options: list[str], code: int
) -> None:
    assert run(["run", "--content", "mine", "--record", "told.json", *options, "--", sys.executable, job]) == code
    told = json.loads((toy / "told.json").read_text())
    assert told["exit_code"] == code
    assert told["argv"] == [sys.executable, job]
    if options:
        (fix,) = told["reverts"]
        assert (fix["pr"], fix["engines"], fix["hits"]) == (501, ["toyspec"], {"501#1": 1} if code == 1 else {})
        assert bool(fix["not_tried"]) is (code == 125)


SITES = """
engine: toyspec
patches:
  ">=0":
    - target: toyspec.pool:width
      edits:
        - match: return page * topk
          replacement: |
            __specdebug_probes__.oob([page, topk], 0, 4, "toy.width")
            __specdebug_probes__.nan(float("nan"), "toy.other")
            return page * topk
"""
PACK = 'name: toy\nmode: {mode}\nsites: [{{glob: "toy.width", kinds: [oob]}}]\n'


@pytest.mark.parametrize(("mode", "code"), [("record", 0), ("assert", 1)])
def test_probes_are_added_and_say_what_they_find(toy: Path, mode: str, code: int) -> None:
    (toy / "mine/probes/sites").mkdir(parents=True)
    (toy / "mine/probes/sites/toyspec.yaml").write_text(SITES)
    (toy / "mine/probes/toy.yaml").write_text(PACK.format(mode=mode))
    words = ["--content", "mine", "--probes", "toy", "--record", "told.json", "--", sys.executable, "job.py"]
    assert run(["run", *words]) == code
    (process,) = json.loads((toy / "told.json").read_text())["processes"]
    assert process["found"] == {"oob@toy.width": [1, "4"]}
    assert process["reached"] == {"oob@toy.width": 1}


def test_added_probes_are_listed_and_checked(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites, pack = toy / "mine/probes/sites/toyspec.yaml", toy / "mine/probes/toy.yaml"
    sites.parent.mkdir(parents=True)
    sites.write_text(SITES)
    pack.write_text(PACK.format(mode="record"))
    assert run(["probes", "list", "--content", "mine", "--json"]) == 0
    listed = {each["site"]: each for each in json.loads(capsys.readouterr().out)["sites"]}
    width, other = listed["toy.width"], listed["toy.other"]
    assert (width["kinds"], width["workers"]) == (["oob"], ["toyspec"])
    assert ("toy" in width["packs"], "toy" in other["packs"]) == (True, False)
    for named in ([], ["mine/probes"], [str(sites), str(pack)]):
        assert run(["probes", "validate", "--content", "mine", "--json", *named]) == 0
        checked = {Path(each["file"]).name: each for each in json.loads(capsys.readouterr().out)}
        assert checked["toyspec.yaml"]["sites"] == ["toy.width", "toy.other"]
        assert checked["toy.yaml"]["globs"] == ["toy.width"]
    sites.write_text(SITES.replace("probes__.nan", "probes__.nann"))
    assert run(["probes", "validate", "mine/probes"]) == 2
    assert "toyspec.yaml:9: no kind of probe 'nann'; did you mean 'nan'?" in capsys.readouterr().err


def test_a_probe_site_that_does_not_fit_is_told_and_the_job_goes_on(
    toy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (toy / "mine/probes/sites").mkdir(parents=True)
    (toy / "mine/probes/sites/toyspec.yaml").write_text(
        SITES.replace("match: return page * topk", "match: return topk")
    )
    (toy / "mine/probes/toy.yaml").write_text(PACK.format(mode="record"))
    assert run(["run", "--content", "mine", "--probes", "toy", "--", sys.executable, "job.py"]) == 0
    assert "no probe is added to toyspec.pool" in capfd.readouterr().err


def test_a_tensor_is_looked_at_as_a_whole() -> None:
    import torch

    told: list[dict[str, object]] = []

    class Telling:
        def write(self, **facts: object) -> None:
            told.append(facts)

    probes = AddedProbes(Telling(), [("*", "record", KINDS)])  # type: ignore[arg-type]
    probes.nan(torch.tensor([[1.0, float("nan")], [float("nan"), 2.0]]), "a")
    probes.inf(torch.tensor([1.0, float("inf")]), "b")
    probes.oob(torch.arange(5), 1, 4, "c")
    probes.page_aligned(torch.tensor([0, 4, 6]), 4, "d")
    found = {str(each["finding"]): each["bad"] for each in told if "finding" in each}
    assert found == {"nan@a": 2, "inf@b": 1, "oob@c": 2, "page_aligned@d": 1}


def test_a_package_that_is_not_imported_is_named(toy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--content", "mine", "--revert", "501", "--", sys.executable, "-c", "pass"]) == 125
    assert "501 width counts every branch: not tried: no process imported toyspec" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "needs a command"),
        (["run", "--", "./none.sh"], "no such file"),
        (["run", "--revert", "501", "--content", "mine", "--", "python3", "-I", "job.py"], "-I"),
        (["run", "--record", "told.json", "--", "python3", "-I", "job.py"], "-I"),
        (["run", "--revert", "1", "--", "true"], "no toggle reverts 1"),
    ],
)
def test_what_cannot_be_run_is_refused(
    toy: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert said in capsys.readouterr().err


def test_without_options_the_command_line_is_not_loaded(toy: Path) -> None:
    code = "import sys; sys.argv[1:] = ['run', '--', sys.executable, 'job.py']\nfrom specdebug.__main__ import main\n"
    code += "try:\n    main()\nfinally:\n    assert not {'typer', 'rich', 'yaml', 'torch'} & {*sys.modules}\n"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    words = [sys.executable, "-m", "specdebug", "run", "--", "./none.sh"]
    missing = subprocess.run(words, capture_output=True, text=True)
    assert (missing.returncode, "no such file" in missing.stderr) == (2, True)
