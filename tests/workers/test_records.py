"""A record has one writer at a time, and the next is told which, or waits for it."""

import os
import signal
from pathlib import Path

import pytest

from specdebug.base.interrupts import Interrupts
from specdebug.workers import records as lock
from specdebug.workers.records import Lock, Record, RecordError


def record(folder: Path) -> Record:
    return Record(folder / "r", "the record", "name another")


def test_the_second_is_told_who_has_it_and_how_to_mend_it(tmp_path: Path) -> None:
    with Lock(record(tmp_path)):
        with pytest.raises(RecordError) as caught:
            Lock(record(tmp_path))
        assert str(caught.value) == (
            f"the record {tmp_path / 'r'} is in use by process {os.getpid()}; wait for it to end, or name another"
        )
    assert list(tmp_path.iterdir()) == []
    Lock(record(tmp_path)).close()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "r.lock").symlink_to(victim)
    with pytest.raises(RecordError, match="cannot write the record"):
        Lock(record(tmp_path))
    assert victim.read_text() == "precious"


def test_a_free_one_is_taken_after_a_signal_too_and_no_other_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Interrupts()
    with heard.held():
        heard.heard(signal.SIGINT)
        monkeypatch.setattr(lock.interrupts, "check", heard.check)
        with Lock(record(tmp_path)):
            with pytest.raises(RecordError, match="in use"):
                Lock(record(tmp_path))
            with pytest.raises(KeyboardInterrupt):
                Lock(record(tmp_path), wait_s=10.0)
