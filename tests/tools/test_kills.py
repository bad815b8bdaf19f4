"""The campaign of kills: what it draws, what it calls wrong, and that it finds nothing wrong."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.journal import Journal
from tools import kills
from tools.kills import (
    COMMANDS,
    CULPRIT,
    OF_COMMAND,
    OF_SCENARIO,
    Answer,
    Case,
    Process,
    Result,
    Row,
    answer_problems,
    draw,
    interrupted_replay_problems,
    journal_problems,
    kill,
    marked,
    role,
    rows_in,
    survivors,
    table,
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


def case(command: str = "bisect command", victim: str = "parent") -> Case:
    return Case(0, command, victim, None, 0.5)


def row(number: int, outcome: str = "pass", signature: str | None = None, **changed: Any) -> Row:
    return dataclasses.replace(
        Row(number, "[]", 10 * number + 9, outcome, signature, (0.5, "digest", "now")), **changed
    )


ROWS = (row(0), row(1), row(2))
BISECTED = Answer(
    0,
    {
        "verdict": "culprit",
        "exit_code": 0,
        "signature": "nan@x",
        "culprits": [{"id": CULPRIT}],
        "trials": 3,
        "resumed": 0,
    },
    rows=ROWS,
)
SAMPLED = Answer(1, {"trials": 3, "runs": 3, "failures": 0, "exit_code": 1, "resumed": 0}, rows=ROWS)


def arm(name: str, **changed: Any) -> dict[str, Any]:
    return {"arm": name, "verdict": "pass", "trace_hash": "a", "machine": None, "metrics": {"wall_s": 1}, **changed}


REPLAYED = Answer(0, {"exit_code": 0, "wall_s": 1.0, "arms": [arm("fixed"), arm("plain")]})
LOST = arm("plain", verdict="unknown", trace_hash="b", machine={"cause": "killed"})


def but(answer: Answer, **changed: Any) -> Answer:
    return dataclasses.replace(answer, document={**answer.document, **changed})


def test_seed_and_number_fix_a_case_and_all_that_can_be_killed_is() -> None:
    cases = [draw(3, number, 20) for number in range(300)]
    assert cases == [draw(3, number, 20) for number in range(300)]
    assert cases != [draw(4, number, 20) for number in range(300)]
    drawn = {(one.command, one.victim) for one in cases}
    due = {(name, one) for name in COMMANDS for one in (OF_COMMAND if name.endswith("command") else OF_SCENARIO)}
    assert drawn == due
    assert all(one.trials is None or 0 <= one.trials < 20 for one in cases)
    assert 100 < sum(one.trials is None for one in cases) < 200


def test_an_answer_that_differs_only_in_its_bookkeeping_is_the_same() -> None:
    assert answer_problems(case(), BISECTED, but(BISECTED, resumed=2, journal="elsewhere"), hit=True) == []
    other = Answer(0, {**REPLAYED.document, "wall_s": 9.0, "arms": [arm("fixed", metrics={}), arm("plain")]})
    assert answer_problems(case("replay"), REPLAYED, other, hit=True) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (but(BISECTED, culprits=[{"id": "25015"}]), 'culprits is [{"id": "25015"}], not [{"id": "27360"}]'),
        (but(BISECTED, trials=4), "trials is 4, not 3"),
        (dataclasses.replace(BISECTED, status=125), "exit code 125, not 0"),
        (dataclasses.replace(BISECTED, written="name: x"), "another scenario was written"),
        (dataclasses.replace(BISECTED, document={}), "culprits is null"),
    ],
)
def test_another_answer_is_wrong(found: Answer, words: str) -> None:
    assert any(words in line for line in answer_problems(case(), BISECTED, found, hit=True))


def test_a_killed_command_may_cost_trials_and_nothing_else() -> None:
    killed = dataclasses.replace(
        but(BISECTED, trials=5), rows=(row(0), row(1, "fail", "crash:SIGKILL"), *(row(n) for n in (2, 3, 4)))
    )
    mine = case(victim="command")
    assert answer_problems(mine, BISECTED, killed, hit=True) == []
    assert answer_problems(mine, BISECTED, but(killed, culprits=[]), hit=True) != []
    assert answer_problems(mine, BISECTED, but(killed, signature="crash:SIGKILL"), hit=True) != []
    assert answer_problems(mine, BISECTED, killed, hit=False) != []
    twice = dataclasses.replace(killed, rows=(row(0, "fail", "crash:SIGKILL"), *killed.rows[1:]))
    assert answer_problems(mine, BISECTED, twice, hit=True) == ["2 trials were killed, not one"]


def test_a_killed_command_is_one_failure_of_a_rate() -> None:
    mine = case("flake command", "command")
    rows = (row(0), row(1, "fail", "crash:SIGKILL"), row(2))
    killed = dataclasses.replace(but(SAMPLED, failures=1), rows=rows)
    assert answer_problems(mine, SAMPLED, killed, hit=True) == []
    assert answer_problems(mine, SAMPLED, but(killed, failures=2), hit=True) == ["failures is 2, not 1"]
    assert answer_problems(mine, SAMPLED, but(killed, runs=2), hit=True) == ["runs is 2, not 3"]
    assert answer_problems(mine, SAMPLED, but(killed, trials=2, runs=2), hit=True) == []  # it has seen enough
    assert answer_problems(mine, SAMPLED, but(killed, trials=4), hit=True) == ["trials is 4, not 3"]


def test_an_arm_that_is_lost_to_a_kill_is_unknown_and_the_others_as_ever() -> None:
    lost = Answer(125, {"exit_code": 125, "arms": [arm("fixed"), LOST]})
    assert interrupted_replay_problems(REPLAYED, lost) == []
    assert interrupted_replay_problems(REPLAYED, REPLAYED) == []
    crash = {**LOST, "verdict": "fail", "machine": None, "signature": "crash:SIGKILL"}
    for found, words in (
        (dataclasses.replace(lost, status=0), "exit code 0, not 125"),
        (dataclasses.replace(REPLAYED, status=125), "exit code 125, not 0"),
        (but(lost, arms=[arm("fixed"), crash]), "arm plain is"),
        (but(lost, arms=[arm("fixed")]), "arm plain is null"),
        (but(lost, arms=[arm("fixed", trace_hash="c"), LOST]), "arm fixed is"),
    ):
        assert any(line.startswith(words) for line in interrupted_replay_problems(REPLAYED, found))


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ((row(0), row(1), row(1), row(2)), "trial 1 is there 2 times"),
        ((row(0), row(2)), "trial 1 was changed or lost"),
        ((row(0), row(1, rest=(0.5, "digest", "later")), row(2)), "trial 1 was changed or lost"),
        ((row(0), row(1), row(2, "fail", "nan@x")), "trial 2 says ('[]', 29, 'fail', 'nan@x')"),
        ((row(0), row(1), row(2, seed=4)), "trial 2 says ('[]', 4, 'pass', None)"),
        ((row(0), row(1), row(3)), "trials [0, 1, 3] are there"),
        ((), "trials [] are there"),
    ],
)
def test_a_trial_that_is_lost_changed_twice_there_or_another_is_wrong(after: tuple[Row, ...], words: str) -> None:
    assert words in journal_problems(case(), ROWS, ROWS[:2], after)
    assert journal_problems(case(), ROWS, ROWS[:2], ROWS) == []


def test_beside_a_killed_trial_the_others_must_be_what_the_script_does() -> None:
    mine, both = case(victim="command"), json.dumps([CULPRIT])
    fails = row(2, "fail", "nan@draft.hidden_states", reverted=both, seed=3)
    killed = row(1, "fail", "crash:SIGKILL")
    assert journal_problems(mine, ROWS, (), (row(0), killed, fails)) == []
    wrong = dataclasses.replace(fails, seed=8)
    assert len(journal_problems(mine, ROWS, (), (row(0), killed, wrong))) == 1
    assert len(journal_problems(case(), ROWS, (), (row(0), killed, fails))) == 2


def test_rows_are_read_from_a_copy_with_what_a_killed_process_left_unfinished(tmp_path: Path) -> None:
    assert rows_in(tmp_path) == []
    (tmp_path / ".specdebug").mkdir()
    path = tmp_path / ".specdebug" / "bisect-1.sqlite"
    with Journal(path, "id", "about") as journal:
        journal.record(Trial(0, frozenset({CULPRIT}), 5), TrialResult("fail", "nan@x", 0.5, "boo"))
    crash = (
        "import os, sqlite3, sys; d = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "d.execute('PRAGMA cache_size=1'); d.execute('BEGIN IMMEDIATE'); d.execute('DELETE FROM trials'); "
        "d.execute('CREATE TABLE x AS SELECT randomblob(100000)'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", crash, str(path)], check=False)
    left = path.with_name(path.name + "-journal")
    assert left.exists()
    (found,) = rows_in(tmp_path)
    assert found.result == (json.dumps([CULPRIT]), 5, "fail", "nan@x")
    assert left.exists()


def test_processes_are_told_apart_by_who_started_them_and_how() -> None:
    server = Process(2, 1, ("python", "-c", "from specdebug.workers.forkserver import main"))
    known = {
        1: Process(1, 0, ("python", "-m", "specdebug")),
        2: server,
        3: dataclasses.replace(server, pid=3, parent=2),
        4: Process(4, 1, ("python", "-I", "/x/reaper.py")),
        5: Process(5, 1, ("/bin/bash", "./flaky.sh")),
        6: Process(6, 5, ("sleep", "1000")),
    }
    roles = [role(one, 1, known) for one in known.values()]
    assert roles == ["parent", "fork server", "worker", "reaper", "command", "other"]


@linux
def test_only_processes_of_the_case_are_seen_and_killed() -> None:
    marker = f"test.{os.getpid()}"
    argv = [sys.executable, "-c", "print(flush=True); input()"]
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen(argv, env={**os.environ, kills.MARKER: marker}, **piped) as mine,  # type: ignore[call-overload]
        subprocess.Popen(argv, env={**os.environ, kills.MARKER: f"{marker}.1"}, **piped) as other,  # type: ignore[call-overload]
    ):
        mine.stdout.read(1), other.stdout.read(1)
        assert list(marked(marker)) == [mine.pid]
        assert not kill(other.pid, marker)
        (left,) = survivors(marker, 0.0)
        assert left.startswith(f"process {mine.pid} (")
        assert kill(mine.pid, marker)
        assert mine.wait() == -signal.SIGKILL
        assert survivors(marker, 0.0) == []
        assert not kill(mine.pid, marker)
        other.kill()


@linux
def test_a_trial_beside_what_the_killed_run_left_is_seen() -> None:
    old, new = (f"beside.{os.getpid()}.{n}" for n in (0, 1))
    argv = ["bash", "-c", "echo; read", "flaky.sh"]
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen(argv, env={**os.environ, kills.MARKER: new}, **piped) as now,  # type: ignore[call-overload]
        subprocess.Popen(argv, env={**os.environ, kills.MARKER: old}, **piped) as left,  # type: ignore[call-overload]
        subprocess.Popen(["bash", "-c", "read"], stdin=subprocess.PIPE) as run,
    ):
        now.stdout.read(1), left.stdout.read(1)
        (line,) = kills._beside(run, old, new)
        assert line.startswith(f"a trial began beside process {left.pid} (")
        left.kill()
        left.wait()
        assert kills._beside(run, old, new) == []
        now.kill()
        run.kill()


def test_the_table_counts_by_command_and_victim() -> None:
    wrong = Result(case("replay", "worker"), hit=True, runs=2)
    wrong.add("orphans", "process 7 is left")
    wrong.add("answer")
    out = io.StringIO()
    Console(width=140, file=out).print(table([Result(case(), hit=True, runs=2), Result(case(), runs=1), wrong]))
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in out.getvalue().splitlines() if "│" in line
    ]
    assert rows == [
        ["bisect command", "parent", "2", "1", "1", "2", "2", "0", "0"],
        ["replay", "worker", "1", "1", "1", "1", "1", "1", "0"],
        ["all", "", "3", "2", "2", "3", "3", "1", "0"],
    ]


@pytest.mark.parametrize("wrong", [False, True])
def test_it_fails_if_anything_is_wrong_and_says_how_to_repeat_it(
    wrong: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run_case(mine: Case, folder: Path, expected: Answer) -> Result:
        folder.mkdir()
        result = Result(mine, hit=True, runs=2)
        if wrong and mine.number == 2:
            result.add("locks", "error: the journal is in use by process 7")
        return result

    monkeypatch.setattr(kills, "undisturbed", lambda command, folder: BISECTED)
    monkeypatch.setattr(kills, "run_case", run_case)
    monkeypatch.setattr("sys.argv", ["kills", "--cases", "4", "--seed", "9", "--folder", str(tmp_path)])
    assert kills.main() == wrong
    told = capsys.readouterr().out
    assert ("kills.py --seed 9 --only 2;" in told) is wrong
    assert ("locks: error: the journal is in use by process 7" in told) is wrong
    assert f"{4 - wrong} of 4 cases are right" in told
    assert [folder.name for folder in tmp_path.iterdir()] == ["2"] * wrong


@pytest.mark.slow
@linux
def test_killed_at_random_moments_all_of_them_come_to_the_same_answer(tmp_path: Path) -> None:
    results = kills.campaign(range(8), 11, 2, tmp_path, print)
    assert Counter(bool(one.wrong) for one in results) == {False: 8}, [one.wrong for one in results if one.wrong]
    assert sum(one.hit for one in results) >= 4


@pytest.mark.slow
@linux
def test_an_answer_that_changes_with_a_kill_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that counts its runs: the one that is resumed runs once more, and says so."""
    counting = "#!/bin/bash\necho x >>ran; n=$(wc -l <ran); sleep 0.3\n[ $n -le 24 ] || { echo found nan@x; exit 1; }\n"
    monkeypatch.setattr(kills, "SCRIPT", counting)
    expected = kills.undisturbed("flake command", tmp_path / "undisturbed")
    result = kills.run_case(Case(0, "flake command", "parent", None, 0.7), tmp_path / "0", expected)
    assert result.hit
    assert set(result.wrong) == {"answer", "kept"}  # another count, and a row that says something else
