"""A journal holds what was measured whatever happens to the process, the disk or the file."""

import dataclasses
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.journal import Journal, _digest, not_engine_code
from specdebug.workers.records import RecordError

BESIDES = st.none() | st.lists(st.text()).map(tuple)
results = st.one_of(
    st.builds(TrialResult, st.just("fail"), st.text(min_size=1), st.floats(0, 1e6), st.text(), BESIDES),
    st.builds(TrialResult, st.sampled_from(["pass", "untestable"]), st.none(), st.floats(0, 1e6), st.text()),
)


def trial(number: int) -> Trial:
    return Trial(number, frozenset({"27360", "10846"}), number * 7)


FAILED = TrialResult("fail", "exit:1", 0.5, "boo")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.lists(st.tuples(st.frozensets(st.text()), st.integers(0, 2**31 - 1), results), max_size=5))
def test_what_is_recorded_is_read_again(tmp_path: Path, rows: list[tuple[frozenset[str], int, TrialResult]]) -> None:
    path = tmp_path / "journal.sqlite"
    path.unlink(missing_ok=True)
    with Journal(path, "id", "about") as journal:
        for number, (reverted, seed, result) in enumerate(rows):
            journal.record(Trial(number, reverted, seed), result)
        evidence = journal.evidence
    with Journal(path, "id", "about") as again:
        assert again.evidence == evidence
        assert list(again.trials) == list(range(len(rows)))
        for number, (reverted, seed, result) in enumerate(rows):
            was, its = again.trials[number]
            assert was == Trial(number, reverted, seed)
            assert its == dataclasses.replace(result, detail="")


def test_what_was_not_the_engine_s_own_code_is_kept_once_and_in_order(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", "id", "about") as journal:
        journal.record(trial(0), dataclasses.replace(FAILED, not_engine_code=("z.graphs", "a.kernel")))
        journal.record(trial(1), dataclasses.replace(FAILED, not_engine_code=("a.kernel", "b.other")))
        assert not_engine_code(journal.evidence) == ["z.graphs", "a.kernel", "b.other"]
    with Journal(tmp_path / "j", "id", "about") as again:
        assert not_engine_code(again.evidence) == ["z.graphs", "a.kernel", "b.other"]
        assert again.evidence["exit:1"] == "boo"


def test_another_search_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", "id", "./flaky.sh over toggles") as journal:
        journal.record(trial(0), FAILED)
    with pytest.raises(RecordError, match=r"is of \./flaky\.sh over toggles.*--journal.*--fresh"):
        Journal(tmp_path / "j", "other", "else")
    with Journal(tmp_path / "j", "id", "about") as journal:
        assert list(journal.trials) == [0]


A = {"tree": "commit a"}
B = {"tree": "commit b"}


def test_another_state_is_another_search_and_the_one_of_before_waits_for_it_to_come_back(tmp_path: Path) -> None:
    path = tmp_path / "j"
    for number, state in enumerate((A, B)):
        with Journal(path, "id", "about", state=state) as journal:
            assert not journal.trials
            journal.record(trial(number), FAILED)
    assert journal.earlier is not None
    assert (journal.earlier.trials, journal.earlier.differs) == (1, ("tree: commit a -> commit b",))
    with Journal(path, "id", "about", state=A) as journal:
        assert list(journal.trials) == [0]
        assert journal.earlier is not None
        assert journal.earlier.back
    with Journal(path, "id", "about", state=A) as journal:
        assert list(journal.trials) == [0]
        assert journal.earlier is None
    with Journal(journal.path.parent / next(tmp_path.glob("j.*")).name, "id", "about") as other:
        assert list(other.trials) == [1]


def test_a_journal_of_before_a_change_is_gone_on_with_where_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, "id", "about", state=A) as journal:
        journal.record(trial(0), FAILED)
    with Journal(path, "id", "about", state=B, anyway=True) as journal:
        assert list(journal.trials) == [0]
        journal.record(trial(1), FAILED)
    for state in (A, B):  # it is of neither from now on
        with Journal(path, "id", "about", state=state) as journal:
            assert not journal.trials
    with Journal(path, "id", "about", state=B) as journal:
        journal.record(trial(2), FAILED)
    with Journal(path, "id", "about", state=B, anyway=True) as journal:
        assert list(journal.trials) == [0, 1]
    with Journal(tmp_path / "j.bak", "id", "about") as kept:
        assert list(kept.trials) == [2]


@pytest.mark.parametrize("state", [None, "[]", "{", '{"a": 1}', "[" * 100_000])
def test_a_journal_that_does_not_tell_its_state_is_of_another(tmp_path: Path, state: str | None) -> None:
    with Journal(tmp_path / "j", "id", "about") as journal:
        journal.record(trial(0), FAILED)
    if state is not None:
        with sqlite3.connect(tmp_path / "j") as database:
            database.execute("INSERT INTO facts VALUES ('state', ?)", (state,))
        database.close()
    with Journal(tmp_path / "j", "id", "about", state=A) as journal:
        assert not journal.trials
        assert journal.earlier is not None
        assert "does not tell" in journal.earlier.differs[0]


def test_starting_over_keeps_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "j"
    for n in range(4):
        with Journal(path, "id", "about", fresh=True) as journal:
            assert not journal.trials
            assert journal.kept == (tmp_path / "j.bak" if n else None)
            journal.record(trial(n), FAILED)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["j", "j.bak"]
    with Journal(tmp_path / "j.bak", "id", "about") as last:
        assert list(last.trials) == [2]


def test_starting_over_takes_an_unfinished_transaction_along(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, "id", "about") as journal:
        journal.record(trial(0), FAILED)
    (tmp_path / "j-journal").write_bytes(b"left by a process that was killed")
    (tmp_path / "j.bak").touch()
    (tmp_path / "j.bak-journal").write_bytes(b"of the one that is replaced")
    Journal(path, "id", "about", fresh=True).close()
    assert (tmp_path / "j.bak-journal").read_bytes() == b"left by a process that was killed"
    assert not (tmp_path / "j-journal").exists()


def test_two_processes(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with (
        Journal(path, "id", "about"),
        pytest.raises(RecordError, match=f"in use by process {os.getpid()}; wait for it"),
    ):
        Journal(path, "id", "about")
    assert [file.name for file in tmp_path.iterdir()] == ["j"]  # the lock is gone with its holder
    Journal(path, "id", "about").close()


KILLED = """
import os, signal, sys
from pathlib import Path
from specdebug.workers.child import lifeline
from specdebug.campaign.trials.journal import Journal
Journal(Path(sys.argv[1]), "id", "about")
lifeline.begin(os.environ)
os.kill(lifeline._reaper.pid, signal.SIGSTOP)
print(lifeline._reaper.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_who_resumes_waits_until_all_is_gone_that_a_killed_process_had_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "j")], stdout=subprocess.PIPE, check=False)
    assert ended.returncode == -9
    reaper, looked, pause = int(ended.stdout), [], time.sleep

    def look(seconds: float) -> None:
        looked.append(seconds)
        if len(looked) == 3:
            os.kill(reaper, signal.SIGCONT)
        pause(seconds)

    monkeypatch.setattr("specdebug.workers.records.time.sleep", look)
    Journal(tmp_path / "j", "id", "about").close()
    assert len(looked) >= 3


@pytest.mark.parametrize("kind", ["text", "truncated", "scribbled", "other database", "changed digit"])
def test_a_damaged_file_is_one_line_and_stays_as_it_is(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, "id", "about") as journal:
        for number in range(20):
            journal.record(trial(number), TrialResult("fail", f"exit:{number}", 1.0, "x" * 900))
    data = path.read_bytes()
    if kind == "text":
        path.write_text("not a database, far from it, " * 20)
    elif kind == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif kind == "scribbled":
        path.write_bytes(data[:4096] + b"\x5a" * (len(data) - 4096))
    else:
        if kind == "other database":
            path.unlink()
        with sqlite3.connect(path) as database:
            database.execute(
                "CREATE TABLE t (x)" if kind == "other database" else "UPDATE trials SET seed = 5 WHERE number = 3"
            )
        database.close()
    damaged = path.read_bytes()
    with pytest.raises(RecordError, match=r"is damaged: .*--fresh.*--journal") as caught:
        Journal(path, "id", "about")
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == damaged
    Journal(path, "id", "about", fresh=True).close()
    assert (tmp_path / "j.bak").read_bytes() == damaged


def test_a_full_disk_is_one_line_and_loses_nothing_that_was_recorded(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    recorded = 0

    def fill() -> None:
        nonlocal recorded
        while True:
            journal.record(trial(recorded), TrialResult("fail", f"exit:{recorded}", 1.0, "x" * 900))
            recorded += 1

    with Journal(tmp_path / "j", "id", "about") as journal:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, limits[1]))
        try:
            with pytest.raises(RecordError, match=r"cannot write the journal .*make room.*") as caught:
                fill()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "\n" not in str(caught.value)
        assert f"trial {recorded} (fail exit:{recorded})" in str(caught.value)
        assert 0 < recorded == len(journal.trials)
    with Journal(tmp_path / "j", "id", "about") as again:
        assert len(again.trials) == recorded
        again.record(trial(recorded), FAILED)  # there is room again


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "j", Path("/proc/nowhere/j")):
        with pytest.raises(RecordError, match=r"cannot write the journal .*--journal"):
            Journal(path, "id", "about")
    with pytest.raises(RecordError, match="is a folder"):
        Journal(tmp_path, "id", "about")


CELLS = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(),
    st.binary(),
    st.sampled_from(
        ["5", "[[1]]", "[" * 100_000, "{}", "[1]", "null", "9" * 5000, b"\xff\x00", "pass", "fail", -1, 0.5]
    ),
)
COLUMNS = {
    "facts": ("name", "value"),
    "trials": ("number", "reverted", "seed", "outcome", "signature", "seconds", "besides", "digest", "at"),
    "evidence": ("signature", "number", "detail"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "j"
    with Journal(path, "id", "about") as journal:
        for number in range(3):
            journal.record(trial(number), TrialResult("fail", f"exit:{number}", 1.5, "x", ("exit:9",)))
    return path.read_bytes()


def put(path: Path, table: str, column: str, cell: object, *, with_digest: bool) -> None:
    """Write any value of any type into a column, past what the schema allows; the digest is made to fit on demand."""
    database = sqlite3.connect(path)
    database.executescript(
        "PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY; BEGIN;"
        f"CREATE TABLE c AS SELECT * FROM {table}; DROP TABLE {table}; ALTER TABLE c RENAME TO {table}; COMMIT;"
    )
    names = ", ".join(name for name in COLUMNS["trials"] if name not in ("digest", "at"))
    database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = 2", (cell,))
    if with_digest and table == "trials" and column != "digest":
        row = database.execute(f"SELECT {names} FROM trials WHERE rowid = 2").fetchone()
        database.execute("UPDATE trials SET digest = ? WHERE rowid = 2", (_digest(row),))
    database.commit()
    database.close()


@pytest.mark.parametrize(("table", "column"), [(table, column) for table in COLUMNS for column in COLUMNS[table]])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
@given(cell=CELLS, with_digest=st.booleans())
def test_a_cell_of_any_type_is_read_or_named_and_the_file_stays(
    table: str, column: str, cell: object, with_digest: bool, whole: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "j"
    path.write_bytes(whole)
    put(path, table, column, cell, with_digest=with_digest)
    before = path.read_bytes()
    refused: RecordError | None = None
    try:
        with Journal(path, "id", "about") as journal:
            trials, evidence = journal.trials, journal.evidence
    except RecordError as error:
        refused = error
    if refused is not None:
        assert "\n" not in str(refused)
        assert str(path) in str(refused)
        assert refused.exit_code == 2
        assert path.read_bytes() == before
        return
    for its_trial, result in trials.values():
        assert all(isinstance(each, str) for each in (*its_trial.reverted, *(result.besides or ())))
        assert type(its_trial.number) is type(its_trial.seed) is int
        assert isinstance(result.seconds, float)
        assert result.outcome in ("pass", "fail", "untestable")
    assert all(isinstance(each, str) for pair in evidence.items() for each in pair)
