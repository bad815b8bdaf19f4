"""``specdebug bisect`` as a user meets it: the answer, what is kept, and how every kind of trouble ends."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specdebug.cli.main import run
from tests.campaign.trials.repositories import make_repository
from tests.cli.command import spawn
from tests.patching.hook.test_hooked_runs import FIX, POOL

FLAKY = """#!/bin/bash
echo "$SPECDEBUG_TRIAL_SEED" >>ran
[ "$(wc -l <ran)" = "$(cat kill_at 2>/dev/null)" ] && kill -9 $PPID
case ",$SGLANG_DEBUG_REVERT_PR," in
    *,27360,*) if [ $((SPECDEBUG_TRIAL_SEED % 10)) -lt 8 ]; then echo 'found nan@draft.hidden_states'; exit 1; fi;;
esac
exit 0
"""


@pytest.fixture(autouse=True)
def _here() -> None:
    script("flaky.sh", FLAKY)


def script(name: str, text: str) -> None:
    Path(name).write_text(text)
    Path(name).chmod(0o755)


bisect = partial(spawn, "bisect")


def document(*argv: str, code: int = 0) -> dict[str, Any]:
    ended = bisect("--json", *argv)
    assert ended.returncode == code, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


def complaint(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 2) -> str:
    assert run(["bisect", *argv]) == code
    err = capsys.readouterr().err.removeprefix("looking at what the command imports: one run with nothing reverted\n")
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    return err


def journal_file() -> Path:
    (found,) = Path(".specdebug").glob("*.sqlite")
    return found


def test_it_names_the_culprit_of_a_flaky_script() -> None:
    ended = bisect("--over", "toggles", "--no-proof", "--", "./flaky.sh")
    assert ended.returncode == 0
    verdict, followed, singly, unproven, reproduce, then, kept = ended.stdout.splitlines()
    assert unproven.startswith("unproven (--no-proof): ")
    assert singly.startswith("one at a time: SGLang's SGLANG_DEBUG_REVERT_PR takes one number")
    assert verdict.startswith('culprit 27360 "slice cache_loc')
    assert " with probability 0.9" in verdict
    assert " of the time with it, 0.0" in verdict
    assert followed.startswith("followed: nan@draft.hidden_states (")
    assert then == "next: specdebug toggles show 27360"
    assert str(journal_file()) in kept
    begun, *lines = (line for line in ended.stderr.splitlines() if not line.startswith("working, "))
    assert begun == "the first trial begins"
    assert lines[0].startswith("trial 0: ")
    assert f"after {len(lines)} trials" in verdict
    shown = subprocess.run(reproduce.removeprefix("reproduce: "), shell=True, stdout=subprocess.DEVNULL)
    assert shown.returncode == 1


JOB = "import sys\nfrom toyspec.pool import width\nsys.exit(1 if width(4, 2) < 8 else 0)\n"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the user's own, with the toggle of a fix, and another that the job never runs a line of."""
    other = FIX.replace("501", "502").replace("pool:width", "pool:idle").replace("page * topk", "topk")
    for name, text in {
        "toyspec/__init__.py": "",
        "toyspec/pool.py": POOL + "\n\ndef idle(page, topk):\n    return topk\n",
        "job.py": JOB,
        "mine/toggles/501.yaml": FIX,
        "mine/toggles/502.yaml": other.replace('replacement: "return page"', 'replacement: "return -topk"'),
    }.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_a_fix_of_a_package_of_ones_own_is_named_and_one_that_never_ran_is_not_tried(toy: Path) -> None:
    told = document("--content", "mine", "--", sys.executable, "job.py")
    assert (told["verdict"], [one["id"] for one in told["culprits"]], told["proof"]) == ("culprit", ["501"], "proven")
    assert [one["id"] for one in told["candidates"]] == ["501", "502"]
    assert told["reproduce"].endswith(f"specdebug run --revert 501 --content mine -- {sys.executable} job.py")
    (toy / "job.py").write_text("import toyspec.pool as pool\npool.width(4, 2)\n")
    told = document("--content", "mine", "--", sys.executable, "job.py")
    assert told["verdict"] == "no culprit"
    assert told["next"].endswith("then --over commits")  # options and faults are those of a scenario
    assert told["not_tried"] == [{"id": "502", "why": "its lines never ran"}]
    (toy / "job.py").write_text("import toyspec.pool\n")
    told = document("--content", "mine", "--", sys.executable, "job.py", code=125)
    assert (told["verdict"], [one["id"] for one in told["not_tried"]]) == ("not-tried", ["501", "502"])


def test_a_failure_that_is_there_with_nothing_reverted_is_no_revert_to_blame(toy: Path) -> None:
    (toy / "job.py").write_text("import toyspec.pool, sys\nsys.exit(9)\n")
    told = document("--content", "mine", "--", sys.executable, "job.py", code=125)
    assert (told["verdict"], told["at_head"], told["trials"], told["culprits"]) == ("at-head", "exit:9", 0, [])
    assert told["next"].startswith("specdebug bisect --over commits --good REV -- ")


def test_a_job_out_of_the_hook_s_reach_is_said_to_be_before_its_trials(toy: Path) -> None:
    ended = bisect("--max-trials", "1", "--", sys.executable, "job.py")
    before = ended.stderr.partition("trial 0")[0]
    assert "imports toyspec, and no known fix is in that; --content DIR adds toggles of yours" in before
    told = document("--", "false", code=125)
    assert (told["verdict"], told["at_head"], told["trials"]) == ("at-head", "exit:1", 0)


def test_a_fix_that_does_not_fit_what_is_installed_is_said_before_any_trial(toy: Path) -> None:
    (toy / "toyspec/pool.py").write_text("def width(page, topk):\n    return topk * page\n")
    ended = bisect("--content", "mine", "--", sys.executable, "job.py")
    assert ended.returncode == 125
    assert "501 does not fit toyspec" in ended.stderr


def test_where_the_hook_cannot_reach_nothing_is_acquitted_and_a_culprit_is_unproven() -> None:
    Path("one.py").write_text("import os, sys\nsys.exit(os.environ.get('SGLANG_DEBUG_REVERT_PR') == '27338')\n")
    told = document("--", sys.executable, "one.py", code=125)
    assert (told["verdict"], told["proof"]) == ("unproven", "out of reach")
    assert [one["id"] for one in told["culprits"]] == ["27338"]
    Path("one.py").write_text("")
    told = document("--", sys.executable, "one.py", code=125)
    assert (told["verdict"], told["culprits"]) == ("unproven", [])


@pytest.mark.parametrize("takes", ["one", "set"])
def test_a_command_acquits_no_fix(takes: str) -> None:
    told = document("--takes", takes, "--no-proof", "--", "true", code=125)
    assert (told["verdict"], told["reason"], told["culprits"]) == ("unproven", "unproven", [])
    assert (told["takes"], told["apart"]) == (takes, [] if takes == "one" else [["26329", "28254"]])
    assert "SGLANG_DEBUG_REVERT_PR" in told["next"]
    ended = bisect("--takes", takes, "--no-proof", "--", "true")
    assert ended.returncode == 125
    first, *_ = ended.stdout.splitlines()
    assert first.startswith(
        f"unproven after {told['trials']} trials: nothing shows that a reverted line ran; nothing failed"
    )


def test_a_fix_that_the_engine_does_not_know_is_no_suspect() -> None:
    refuse = "echo 'NotImplementedError: PR #'$SGLANG_DEBUG_REVERT_PR' revert is not registered; available: [27338]'"
    script(
        "own.sh",
        f'#!/bin/bash\ncase "$SGLANG_DEBUG_REVERT_PR" in ""|27360) exit 0;; 27338) exit 3;; esac\n{refuse}\nexit 1\n',
    )
    told = document("--no-proof", "--", "./own.sh")
    assert [one["id"] for one in told["culprits"]] == ["27338"]
    assert told["signature"] == "exit:3"
    assert all(one not in (["27338"], ["27360"], []) for one in told["untestable"]["switched"])


def finished() -> set[str]:
    """Seeds of the trials in the journal."""
    import sqlite3

    database = sqlite3.connect(journal_file())
    rows = database.execute("SELECT seed FROM trials").fetchall()
    database.close()
    return {str(seed) for (seed,) in rows}


@pytest.mark.parametrize("at", ["command", "build"])
def test_killed_it_takes_its_command_along_and_resumes_without_it(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo("alive")
    reader = os.open("alive", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    die = f"rm {tmp_path}/hang; exec 9>{tmp_path}/alive; sleep 1000 & kill -9 $PPID; wait"
    hang = f"[ -e {tmp_path}/hang ] && {{ {die}; }}"
    argv = ["--no-proof", "--", f"{tmp_path}/hung.sh"]
    if at == "build":
        make_repository(tmp_path, monkeypatch)
        argv = ["--over", "commits", "--good", "HEAD~5", "--build", f"{hang}; true", *argv]
    script(f"{tmp_path}/hung.sh", f"#!/bin/bash\n{hang}\necho $SPECDEBUG_TRIAL_SEED >>{tmp_path}/ended\nexit 0\n")
    (tmp_path / "hang").touch()
    assert bisect(*argv).returncode == -signal.SIGKILL
    assert os.read(reader, 1) == b""  # blocks for as long as the command or its child lives
    os.close(reader)
    bisect(*argv)
    seeds = (tmp_path / "ended").read_text().split()
    assert len(seeds) == len(set(seeds)) == len(finished())


@pytest.mark.parametrize("committed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_killed_while_it_writes_it_resumes(committed: bool) -> None:
    expected = document("--journal", "whole.sqlite", "--no-proof", "--", "./flaky.sh")
    kill = (
        "import os, sys; from specdebug.campaign.trials.journal import Journal; write = Journal.record\n"
        "def record(self, trial, result):\n"
        "    if trial.number == 6 and not COMMITTED: self._database.execute('BEGIN IMMEDIATE'); "
        "self._database.execute('DELETE FROM trials'); os.kill(os.getpid(), 9)\n"
        "    write(self, trial, result)\n"
        "    if trial.number == 6: os.kill(os.getpid(), 9)\n"
        "Journal.record = record; from specdebug.cli.main import main; main()"
    ).replace("COMMITTED", str(committed))
    ended = subprocess.run(
        [sys.executable, "-c", kill, "bisect", "--no-proof", "--", "./flaky.sh"], capture_output=True
    )
    assert ended.returncode == -signal.SIGKILL
    assert len(finished()) == 6 + committed
    told = document("--no-proof", "--", "./flaky.sh")
    assert told == {**expected, "resumed": 6 + committed, "journal": told["journal"]}


def test_a_damaged_journal_is_kept_and_can_be_left_behind(capsys: pytest.CaptureFixture[str]) -> None:
    Path("j").write_text("this is no database " * 50)
    assert "the journal j is damaged" in complaint(capsys, "--journal", "j", "--no-proof", "--", "./flaky.sh")
    ended = bisect("--json", "--journal", "j", "--fresh", "--no-proof", "--", "./flaky.sh")
    assert json.loads(ended.stdout)["culprits"]
    assert "the journal of before is kept as j.bak\n" in ended.stderr
    assert Path("j.bak").read_text().startswith("this is no database")


FULL = """
from specdebug.campaign.trials.journal import Journal
opened = Journal._open
def small(self, *about):
    database = opened(self, *about)
    database.execute("PRAGMA max_page_count = 10")
    return database
Journal._open = small
from specdebug.cli.main import main; main()
"""


def test_a_full_disk_ends_with_what_is_known_and_a_line() -> None:
    """SQLite itself refuses to let the journal grow, as on a disk without room; a limit of the process on its files
    would hit others of its files as well."""
    script("wordy.sh", "#!/bin/bash\nhead -c 3000 /dev/zero | tr '\\0' x; exit $((SPECDEBUG_TRIAL_SEED % 100 + 1))\n")
    words = [sys.executable, "-c", FULL, "bisect", "--", "./wordy.sh"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 125
    assert ended.stdout.startswith("stopped, after ")
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("error: cannot write the journal .specdebug/bisect-")
    assert "make room and run the same command again" in last
    kept = len(finished())
    assert kept > 0
    assert f"after {kept} trial" in ended.stdout
    told = document("--max-trials", str(kept + 1), "--", "./wordy.sh", code=125)
    assert told["resumed"] == kept


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--", "./missing.sh"], "there is no command ./missing.sh"),
        (["--", "no-such-command-anywhere"], "there is no command no-such-command-anywhere"),
        (["--"], "bisect needs a scenario or, after --, a command"),
        ([], "bisect needs a scenario or, after --, a command"),
        (["cache_hit", "--", "./flaky.sh"], "not both"),
        (
            ["--over", "faults", "--", "./flaky.sh"],
            "--over faults needs a scenario: nothing can be injected",
        ),
        (["--over", "faults", "cache_hit"], "--over faults needs two faults at least"),
        (["--over", "faults", "cache_hit", "--fault", "nan_logit"], "no fault 'nan_logit'; did you mean 'nan_logits'?"),
        (["--fault", "nan_logits", "cache_hit"], "--fault is of no use with --over toggles"),
        (["--confidence", "sure", "--", "./flaky.sh"], "--confidence must be above 50%"),
        (["--confidence", "30%", "--", "./flaky.sh"], "--confidence must be above 50%"),
        (["--timeout", "0", "--", "./flaky.sh"], "--timeout must be above 0"),
        (["--jobs", "0", "--", "./flaky.sh"], "--jobs"),
        (["--good", "HEAD~1", "--", "./flaky.sh"], "--good is of no use with --over toggles"),
        (["--option", "page_size=4", "--", "./flaky.sh"], "--option is of no use with --over toggles"),
        (["--arm", "fixed", "--", "./flaky.sh"], "--arm is for scenarios"),
        (["--over", "config", "--", "./flaky.sh"], "--over config needs a scenario"),
        (["--over", "config", "cache_hit"], "--over config needs --option"),
        (["--over", "config", "cache_hit", "--option", "page_sise=4"], "page_size"),
        (
            ["--over", "config", "cache_hit", "--option", "page_size=4", "--page-size", "8"],
            "--option page_size=4 is suspected, but --page-size 8 sets it for all",
        ),
        (["cache_hit", "--device", "gpu"], "--device must be cpu, cuda or cuda:N, got 'gpu'"),
        (["--backend", "fa3", "--", "./flaky.sh"], "--backend is for a scenario; a command has none"),
        (["--over", "commits", "cache_hit"], "or it needs a command, such as: -- specdebug replay cache_hit"),
        (["--over", "commits", "--", "./flaky.sh"], "--over commits needs --good REV"),
        (
            ["--over", "commits", "--good", "HEAD~1", "--repo", "/proc", "--", "./flaky.sh"],
            "in no git repository",
        ),
        (["cache_hitt"], "did you mean 'cache_hit'"),
        (["cache_hit", "--arm", "recompte"], "did you mean 'recompute'"),
        (["--json-file", "no/such/folder/x", "--", "./flaky.sh"], "no folder no/such/folder"),
        (
            ["--journal", "/proc/nowhere/j", "--", "./flaky.sh"],
            "cannot write the journal /proc/nowhere/j",
        ),
    ],
)
def test_usage(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in complaint(capsys, *argv)
    assert not Path("ran").exists()


def test_the_first_bad_commit() -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        return subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q", "repo")
    os.chdir("repo")
    for number in range(12):
        Path("value").write_text(str(number))
        git("add", "-A")
        git("commit", "-qm", f"change {number}")
    flaky = "[ $(cat value) -lt 7 ] || [ $((SPECDEBUG_TRIAL_SEED % 10)) -lt 3 ]"
    options = [
        "--over",
        "commits",
        "--good",
        "HEAD~11",
        "--build",
        "[ $(cat value) != 3 ] || { echo no header; exit 1; }",
    ]
    ended = bisect(*options, "--", "bash", "-c", flaky)
    assert ended.returncode == 0
    bad = git("rev-parse", "HEAD~4")
    assert ended.stdout.startswith(f'first bad commit {bad[:12]} "change 7" with probability 0.9')
    assert f"checkout {bad[:12]} && " in ended.stdout
    told = document(*options, "--", "bash", "-c", flaky)
    assert [one["id"] for one in told["culprits"]] == [bad]
    if told["untestable"]["trials"]:
        assert told["untestable"]["switched"] == [[git("rev-parse", "HEAD~8")]]
        assert "does not build: no header" in ended.stdout
    assert git("status", "--porcelain") == ""
    assert git("worktree", "list").count("\n") == 0


@pytest.mark.slow
def test_the_option_a_scenario_fails_with() -> None:
    shipped = Path(__file__).resolve().parents[2] / "scenarios" / "graph_padding.yaml"
    text = shipped.read_text().replace("cuda_graph: {", "cuda_graph: {enabled: false, ")
    Path("eager.yaml").write_text(text)
    suspects = ["radix_cache=false", "cuda_graph.enabled=true", "page_size=4"]
    options = [word for one in suspects for word in ("--option", one)]
    told = document("eager.yaml", "--arm", "reverted", "--over", "config", *options)
    assert [one["id"] for one in told["culprits"]] == ["cuda_graph.enabled=true"]
    assert [one["id"] for one in told["candidates"]] == suspects


@pytest.mark.slow
def test_the_fault_that_is_to_blame() -> None:
    """Two are declared, one is added; the scenario's expectation of another arm is not what is looked for."""
    mini = (Path(__file__).parent / "mini.yaml").read_text()
    declared = "fixed: {faults: [{fault: cache_flushed, step: 3}, {fault: worker_killed, step: 99}]}"
    Path("damaged.yaml").write_text(mini.replace("fixed: {}", declared, 1))
    argv = ("damaged.yaml", "--over", "faults", "--fault", "nan_logits:step=2", "--jobs", "1", "--html", "page.html")
    told = document(*argv)
    assert [one["id"] for one in told["culprits"]] == ["nan_logits:step=2"]
    assert [one["id"] for one in told["candidates"]] == ["cache_flushed:step=3", "worker_killed:step=99", *argv[4:5]]
    assert told["signature"] == "nan@verify.logits"
    first, then = told["reproduce"].split(", then ")
    assert first == "take cache_flushed:step=3 and worker_killed:step=99 out of the faults of arm 'fixed'"
    assert then.endswith("--fault nan_logits:step=2")
    assert run(then.split()[1:]) == 1
    assert "faults (3 candidates)" in Path("page.html").read_text()
    resumed = document(*argv)
    assert resumed["resumed"] == told["trials"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["draft_positions", "--over", "releases", "--good", "sglang==0.5.13"],
            "--over releases needs --good and --bad",
        ),
        (
            ["--over", "releases", "--", "./flaky.sh"],
            "--over releases needs a scenario: a command has an engine of its own",
        ),
        (
            ["draft_positions", "--over", "releases", "--good", "sglang==0.5.13", "--bad", "vllm==0.32.0"],
            "are two engines; name two releases of one",
        ),
        (["draft_positions", "--good", "sglang==0.5.13"], "--good is of no use with --over toggles"),
        (["draft_positions", "--over", "releases", "--build", "make"], "--build is of no use with --over releases"),
        (
            ["draft_positions", "--over", "releases", "--executor", "ray"],
            "--over releases runs where the releases are installed, on this machine",
        ),
        (["draft_positions", "--over", "commits", "--good", "v1"], "--over commits of a scenario needs --target"),
        (
            ["draft_positions", "--over", "commits", "--target", "sglang==0.5.23"],
            "--over commits needs --good REV, a commit where it does not fail",
        ),
        (
            ["draft_positions", "--over", "commits", "--target", "sglang==0.5.23", "--good", "v1", "--build", "make"],
            "--build is for a command",
        ),
    ],
)
def test_engines_that_cannot_be_searched(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in complaint(capsys, *words)
