"""Seats: of the places that something has been at, the first that is there counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdebug.targets.inside.source import Source
from specdebug.targets.sglang.inside.seats import KERNELS, NoSeat, Seat


def test_the_first_place_that_is_there_counts(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("class Own: ...\nclass Other: ...\n")
    source = Source(tmp_path)
    assert Seat("a look", ("new:Own", "old:Own", "old:Other")).place(source) == "old:Own"
    assert Seat("a look", ("new:Own", f"{KERNELS}:any")).place(source) == f"{KERNELS}:any"
    with pytest.raises(NoSeat, match="SGLang has no new:a nor new:b"):
        Seat("a look", ("new:a", "new:b")).place(source)
