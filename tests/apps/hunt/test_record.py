"""The record of a hunt: what is kept, what is read again, and whose it is."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from specdebug.apps.hunt.record import RECORD, HuntRecord, Judged
from specdebug.report.hunt import HuntAnswer, hunt_page, hunt_report
from specdebug.workers.records import RecordError
from tests.run.fakes import text_of
from tests.workers.disks import full

ABOUT = {"target": "embedded", "seed": 0, "reverts": []}
STATE = {"specdebug": "0.1.0 #aa", "engine in /v": "0.5.13"}
LATER = {**STATE, "engine in /v": "0.5.14"}


def record(folder: Path) -> HuntRecord:
    return HuntRecord(folder, ABOUT, STATE)


def judged(folder: Path) -> dict[int, Judged]:
    with record(folder) as held:
        return held.judged


def test_what_was_judged_is_there_again(tmp_path: Path) -> None:
    ones = [Judged(0, "pass", tokens=9), Judged(2, "fail", "a@b", "words"), Judged(1, "fail", "a@b", "others")]
    with record(tmp_path / "new") as first:
        for one in ones:
            first.add(one)
    with record(tmp_path / "new") as again:
        assert again.judged == {one.number: one for one in ones}
        assert [one.number for one in again.findings["a@b"]] == [1, 2]
        assert (again.count("fail"), again.count("unknown")) == (2, 0)


def test_what_is_not_the_engine_s_own_code_is_written_once_and_told_of_all(tmp_path: Path) -> None:
    with record(tmp_path) as first:
        first.add(Judged(0, "pass", not_engine_code=("graphs: none", "a.kernel")))
        first.add(Judged(1, "pass", not_engine_code=("a.kernel", "b.other")))
    assert (tmp_path / RECORD).read_text().count("a.kernel") == 1
    with record(tmp_path) as again:
        answer = HuntAnswer(again, "sglang", 0, "specdebug hunt", {}, {})
        whole = ["graphs: none", "a.kernel", "b.other"]
        assert again.not_engine_code == hunt_report(answer, 0).document["not_engine_code"] == whole
        short = "in place of the engine's own GPU code: graphs; 2 stand-ins (see --json)"
        assert short in text_of(hunt_report(answer, 0))
        assert "graphs: none; a.kernel; b.other." in hunt_page(answer)


@pytest.mark.parametrize("cut", [1, 9])
def test_a_line_that_was_cut_off_is_run_again_and_the_rest_is_kept(cut: int, tmp_path: Path) -> None:
    with record(tmp_path) as first:
        first.add(Judged(0, "pass"))
        first.add(Judged(1, "pass"))
    path = tmp_path / RECORD
    path.write_bytes(path.read_bytes()[:-cut])
    with record(tmp_path) as again:
        assert set(again.judged) == {0}
        again.add(Judged(1, "fail", "x@y"))
    assert {number: one.verdict for number, one in judged(tmp_path).items()} == {0: "pass", 1: "fail"}


def test_what_was_judged_in_another_state_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    with record(tmp_path) as first:
        first.add(Judged(0, "pass"))
    before = (tmp_path / RECORD).read_bytes()
    with pytest.raises(RecordError) as caught:
        HuntRecord(tmp_path, ABOUT, LATER)
    assert caught.value.exit_code == 2
    assert str(caught.value) == (
        "engine in /v: 0.5.13 -> 0.5.14: this is another hunt; --resume-anyway goes on with the 1 judged before, "
        f"kept in {tmp_path / RECORD}; or name another folder with -o"
    )
    assert (tmp_path / RECORD).read_bytes() == before
    assert set(judged(tmp_path)) == {0}  # the state is back


def test_a_hunt_that_went_on_anyway_is_of_no_state(tmp_path: Path) -> None:
    with record(tmp_path) as first:
        first.add(Judged(0, "pass"))
    for _ in range(2):
        with HuntRecord(tmp_path, ABOUT, LATER, anyway=True) as again:
            assert set(again.judged) == {0}
            assert again.differs
    for state in (STATE, LATER):
        with pytest.raises(RecordError, match="of several states, or of one that it does not tell"):
            HuntRecord(tmp_path, ABOUT, state)
    assert len((tmp_path / RECORD).read_text().splitlines()) == 3


def line(**other: object) -> bytes:
    return json.dumps(asdict(Judged(0, "pass")) | other).encode()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"nonsense", "it is not JSON"),
        (b"\xff\xfe{}", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"3", "the file must be a mapping, not 3"),
        (b"{}", "lacks the key 'number'"),
        (line(verdict="passed"), "verdict cannot be 'passed'; did you mean 'pass'"),
        (line(wall_s=float("nan")), "wall_s must be a"),
        (line(tokens=None), "tokens must be a whole number"),
        (line(more=1), "unknown key 'more'"),
    ],
)
def test_a_damaged_line_is_named_and_the_file_stays(line: bytes, said: str, tmp_path: Path) -> None:
    with record(tmp_path) as first:
        first.add(Judged(0, "pass"))
        first.add(Judged(1, "pass"))
    path = tmp_path / RECORD
    lines = path.read_bytes().split(b"\n")
    lines[1] = line
    damaged = b"\n".join(lines)
    path.write_bytes(damaged)
    with pytest.raises(RecordError, match=rf"{RECORD}:2: the record of a hunt is damaged: .*delete the line") as caught:
        record(tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("room", [0, 7])
def test_a_full_disk_loses_nothing_and_says_nothing_of_the_engine(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with record(tmp_path) as held:
        held.add(Judged(3, "pass"))
        before = (tmp_path / RECORD).read_bytes()
        with full(monkeypatch, room):
            for write in (lambda: held.add(Judged(4, "fail")), lambda: held.write("00004.yaml", "name: x")):
                with pytest.raises(RecordError, match=r"cannot write .*: No space left") as caught:
                    write()
                assert caught.value.exit_code == 125
        assert set(held.judged) == {3}
        assert (tmp_path / RECORD).read_bytes() == before
        held.add(Judged(4, "pass"))  # there is room again
    assert [json.loads(line).get("number") for line in (tmp_path / RECORD).read_text().splitlines()] == [None, 3, 4]
    assert not (tmp_path / "00004.yaml").exists()
