"""The pytest plugin, in sessions of its own: what is collected, what a test says, what the exit code means.

Most sessions run in this process, where an arm's outcome is told by its name; some in a process of theirs.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy.fft  # noqa: F401  what a session is the first to import is forgotten with it, and numpy bears no second time
import pytest

from specdebug.campaign import preload  # noqa: F401
from specdebug.campaign.loops import replay
from specdebug.campaign.loops.baseline import Baseline
from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.campaign.trials import campaign, command  # noqa: F401
from specdebug.diverge import locate  # noqa: F401
from specdebug.report import terminal  # noqa: F401
from specdebug.verdict.outcome import Outcome, RequestResult
from specdebug.workers import pool

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[1]
MINI = ROOT / "tests" / "cli" / "mini.yaml"

NOT_OURS = "test_name: of another plugin\nstages: []\n"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # whether it is installed or not: it is named below
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def session(pytester: pytest.Pytester, *argv: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "specdebug.pytest_plugin", *argv)


def process(pytester: pytest.Pytester, *argv: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "specdebug.pytest_plugin", *argv, timeout=120)


def outcome(verdict: str, signature: str | None = None, detail: str = "", **more: object) -> dict[str, object]:
    plain = Outcome(verdict, signature, None, detail, None).to_dict()  # type: ignore[arg-type]
    return {**plain, **more}


class Workers:
    """Stand in for those that run arms: each does what ``tell`` said of its name."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.told: dict[str, dict[str, object]] = {}
        self.tell()

    def tell(self, **changed: dict[str, object]) -> None:
        """Set each arm's outcome from now on; unless told otherwise it is what mini.yaml expects."""
        as_expected = {
            "fixed": outcome("pass"),
            "plain": outcome("pass"),
            "positions": outcome("fail", "oob@draft.forward.positions"),
            "unreached": outcome("unknown"),
        }
        self.told = as_expected | changed

    def run_arms(
        self, pool: object, library: object, runs: Sequence[ArmRun], baseline: Baseline | None = None
    ) -> tuple[list[ArmResult], bool]:
        (run,) = runs
        self.ran.append(f"{run.arm} {run.seed} {list(run.reverts)}")
        found = Outcome.from_dict(self.told[run.arm])
        judged = (found,) if baseline is None else baseline.judge(run, found)
        return [ArmResult(run, *judged)], False


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    standing_in = Workers()
    monkeypatch.setattr(replay, "run_arms", standing_in.run_arms)
    monkeypatch.setattr(pool.WorkerPool, "start", lambda self: None)
    return standing_in


@pytest.fixture
def mini(pytester: pytest.Pytester, workers: Workers) -> Path:
    (pytester.path / "scenarios").mkdir()
    file = pytester.path / "scenarios" / "mini.yaml"
    file.write_text(MINI.read_text())
    return file


def test_nothing_is_collected_unless_it_is_named(pytester: pytest.Pytester, mini: Path) -> None:
    pytester.makepyfile(test_one="import sys\ndef test_cheap():\n    assert 'specdebug.base.yamlio' not in sys.modules")
    process(pytester).assert_outcomes(passed=1)
    (pytester.path / "other.yaml").write_text(NOT_OURS)
    result = session(pytester, "other.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR  # as without the plugin


def test_a_session_that_uses_nothing_imports_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import sys\n"
        "def test_it():\n"
        "    ours = {name for name in sys.modules if name.startswith('specdebug')}\n"
        "    assert ours == {'specdebug', 'specdebug.pytest_plugin'}\n"
        "    assert not {'torch', 'numpy', 'yaml', 'rich'} & set(sys.modules)\n"
    )
    process(pytester).assert_outcomes(passed=1)


def test_arms_are_tests_and_must_do_what_is_expected(pytester: pytest.Pytester, mini: Path, workers: Workers) -> None:
    listed = session(pytester, "--collect-only", "-q", "scenarios/mini.yaml")
    listed.stdout.fnmatch_lines([f"scenarios/mini.yaml::{arm}" for arm in ("fixed", "plain", "positions", "unreached")])
    session(pytester, "scenarios/mini.yaml").assert_outcomes(passed=4)
    assert workers.ran[:3] == ["fixed 0 []", "plain 0 []", "positions 0 [25015]"]
    workers.tell(positions=outcome("pass"), fixed=outcome("fail", "hang", "stuck"))
    result = session(pytester, "scenarios/mini.yaml")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "fail hang, expected pass",
            "replay: specdebug replay scenarios/mini.yaml --arm fixed --seed 0",
            "how often: specdebug flake scenarios/mini.yaml --arm fixed",
            "pass, expected fail oob@draft.forward.positions",
        ]
    )
    assert "Traceback" not in result.stdout.str()


def test_an_arm_that_is_not_for_its_target_is_skipped(pytester: pytest.Pytester, mini: Path, workers: Workers) -> None:
    mini.write_text(mini.read_text() + "not_on: {embedded: no such thing}\n")
    result = session(pytester, "-rs", "scenarios/mini.yaml")
    result.assert_outcomes(skipped=4)
    result.stdout.fnmatch_lines(["SKIPPED*scenarios/mini.yaml:*: not run on embedded: no such thing"])
    assert workers.ran == []


def test_the_ini_option_collects(pytester: pytest.Pytester, mini: Path) -> None:
    pytester.makeini("[pytest]\nspecdebug_scenarios = scenarios/*.yaml")
    (pytester.path / "elsewhere.yaml").write_text(MINI.read_text())
    session(pytester).assert_outcomes(passed=4)
    session(pytester, "scenarios").assert_outcomes(passed=4)


def test_reverts_ask_for_the_plain_verdict(
    pytester: pytest.Pytester, mini: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = "scenarios/mini.yaml::positions"
    result = session(pytester, node, "--revert", "27360,10846", "--revert", "26972", "--specdebug-no-locate")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "fail oob@draft.forward.positions, expected pass",
            "replay: specdebug replay scenarios/mini.yaml --arm positions --revert 27360,10846,26972 --seed 0",
        ]
    )
    monkeypatch.setenv("SGLANG_DEBUG_REVERT_PR", "27360")
    session(pytester, "scenarios/mini.yaml::fixed").assert_outcomes(passed=1)
    assert workers.ran[-1] == "fixed 0 [27360]"


def own_content(pytester: pytest.Pytester) -> Path:
    """A scenario in a content folder of its own, one arm of which reverts a fix of that folder."""
    folder = pytester.path / "mine"
    for kind in ("scenarios", "toggles"):
        (folder / kind).mkdir(parents=True)
    toggle = (ROOT / "toggles" / "25015.yaml").read_text().replace("25015", "99901")
    (folder / "toggles" / "99901.yaml").write_text(toggle)
    (folder / "scenarios" / "own.yaml").write_text(MINI.read_text().replace("revert: [25015]", "revert: [99901]"))
    return folder


def test_content_beside_a_scenario_is_named_and_used_when_asked_for(
    pytester: pytest.Pytester, mini: Path, workers: Workers
) -> None:
    folder, file = own_content(pytester), "mine/scenarios/own.yaml"
    refused = session(pytester, file)
    refused.assert_outcomes(errors=1)
    refused.stdout.fnmatch_lines([f"*no toggle for PR 99901*toggles/ in {folder}*--specdebug-content {folder}*"])
    session(pytester, file, "--specdebug-content", "mine").assert_outcomes(passed=4)
    workers.tell(positions=outcome("pass"))
    failed = session(pytester, f"{file}::positions", "--specdebug-content", "mine")
    failed.stdout.fnmatch_lines([f"replay: specdebug replay {file} --arm positions --content {folder} --seed 0"])


def test_seeds(pytester: pytest.Pytester, mini: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    node = "scenarios/mini.yaml::fixed"
    session(pytester, node, "--specdebug-seeds", "3").assert_outcomes(passed=3)
    seeds = [line.split()[1] for line in workers.ran]
    assert seeds[0] == "0"
    assert len(set(seeds)) == 3
    session(pytester, f"{node}[{seeds[2]}]", "--specdebug-seeds", "3").assert_outcomes(passed=1)
    assert workers.ran[-1].split()[1] == seeds[2]
    monkeypatch.setenv("SPECDEBUG_TRIAL_SEED", "77")  # inside a trial
    session(pytester, node).assert_outcomes(passed=1)
    assert workers.ran[-1] == "fixed 77 []"
    assert session(pytester, node, "--specdebug-seeds", "0").ret == pytest.ExitCode.USAGE_ERROR


def test_what_came_to_no_verdict(pytester: pytest.Pytester, mini: Path, workers: Workers) -> None:
    workers.tell(
        fixed=outcome("unknown", reasons=["nothing was generated"]),
        plain=outcome("unknown", None, "no CUDA device", unavailable=True),
    )
    result = session(pytester, "-rs", "scenarios/mini.yaml")
    result.assert_outcomes(passed=2, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["unknown, expected pass", "*nothing was generated", "*no CUDA device"])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["scenarios/mini.yaml", "--revert", "1"], "no toggle reverts 1"),
        (["scenarios/mini.yaml", "--revert", "x"], "'x' is not a pull request's number"),
        (["scenarios/mini.yaml::nothing"], "not found: *mini.yaml::nothing"),
        (["scenarios/mini.yaml", "--specdebug-content", "gone"], "gone: the content folder does not exist"),
        (["scenarios/mini.yaml", "--specdebug-baseline", "gone.json"], "gone.json: no such file"),
        (["--specdebug-save-baseline", "scenarios/mini.yaml"], "is no baseline; --save-baseline writes one"),
        (["--specdebug-save-baseline", "b.json", "--revert", "25015"], "is of sound runs; it does not go with reverts"),
    ],
)
def test_usage_errors(pytester: pytest.Pytester, mini: Path, argv: list[str], words: str) -> None:
    result = session(pytester, *argv)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{words}*"])
    assert "Traceback" not in result.stderr.str()


def accepting(*lengths: int) -> dict[str, object]:
    """The outcome of an arm of which a request of the group ``first`` accepted so much, ten times over."""
    requests = (RequestResult("first.0", "first", output_ids=(1,), accept_lengths=lengths * 10),)
    whole = Outcome("pass", None, None, "", None, requests=requests, complete=True)
    return whole.to_dict()


def test_a_baseline_is_saved_and_a_loss_against_it_fails(
    pytester: pytest.Pytester, mini: Path, workers: Workers
) -> None:
    workers.tell(fixed=accepting(3, 4, 2))
    saved = session(pytester, "scenarios/mini.yaml::fixed", "--specdebug-save-baseline", "b.json")
    saved.assert_outcomes(passed=1)
    saved.stderr.fnmatch_lines(["baseline: 1 arm saved in *b.json"])
    held = ("scenarios/mini.yaml::fixed", "--specdebug-baseline", "b.json", "--specdebug-no-locate")
    session(pytester, *held).assert_outcomes(passed=1)
    workers.tell(fixed=accepting(1))
    lost = session(pytester, *held)
    lost.assert_outcomes(failed=1)
    lost.stdout.fnmatch_lines(["fail accept-drop@first, expected pass", "*baseline: first accepts 1.00 over 10*: lost"])


@pytest.mark.parametrize(
    ("changed", "argv", "code"),
    [
        ({}, ["scenarios/mini.yaml::fixed"], 0),
        ({"fixed": outcome("fail", "hang")}, ["scenarios/mini.yaml"], 1),
        ({"fixed": outcome("unknown")}, ["scenarios/mini.yaml::fixed"], 125),
        ({"fixed": outcome("unknown"), "plain": outcome("fail", "hang")}, ["scenarios/mini.yaml"], 1),
        ({"fixed": outcome("unknown", unavailable=True)}, ["scenarios/mini.yaml::fixed"], 125),
        ({}, ["scenarios/mini.yaml::nothing"], 125),
        ({}, ["scenarios/mini.yaml", "-k", "nothing"], 125),
        ({}, ["scenarios/mini.yaml", "--revert", "1"], 125),
        # Reverted, but never run: it has not shown.
        (
            {
                "fixed": outcome(
                    "unknown",
                    reasons=["fix 27360 was reverted, but its lines never ran"],
                    reverted_hits={"27360": {"27360#1": 0}},
                )
            },
            ["scenarios/mini.yaml::fixed", "--revert", "27360"],
            0,
        ),
    ],
)
def test_exit_codes_for_bisecting(
    pytester: pytest.Pytester,
    mini: Path,
    workers: Workers,
    changed: dict[str, dict[str, object]],
    argv: list[str],
    code: int,
) -> None:
    workers.tell(**changed)
    assert session(pytester, "--specdebug-exit", *argv).ret == code


def test_exit_codes_of_other_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_some="import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert False\n"
        "def test_skipped(): pytest.skip('no')\n"
        "@pytest.mark.xfail\ndef test_known(): assert False\n",
        test_broken="import nothing_of_this_name",
    )
    codes = {
        name: session(pytester, "--specdebug-exit", name).ret
        for name in (
            "test_some.py::test_good",
            "test_some.py::test_bad",
            "test_some.py::test_skipped",
            "test_some.py::test_known",
            "test_broken.py",
        )
    }
    assert list(codes.values()) == [0, 1, 125, 0, 125]


@pytest.mark.slow
def test_a_scenario_for_real(pytester: pytest.Pytester) -> None:
    session(pytester, str(MINI)).assert_outcomes(passed=4)
    result = session(pytester, "--specdebug-exit", f"{MINI}::fixed", "--revert", "25015")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["fail oob@draft.forward.positions, expected pass", "*at step 2*"])
