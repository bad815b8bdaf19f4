"""Putting stand-ins into modules that stand for SGLang's, and what sgl-kernel's does not have."""

from __future__ import annotations

import pytest

from specdebug.targets.sglang.inside import seats, sgl_kernel, stand_ins
from specdebug.targets.sglang.inside.seats import NoSeat
from specdebug.targets.sglang.inside.stand_ins import STAND_INS, StandIn
from tests.targets.sglang.inside.engine import imported


def test_a_stand_in_is_made_of_what_is_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    imported(monkeypatch, {"new": {"kernel": 1}, "old": {"kernel": 5}})
    monkeypatch.setattr(stand_ins, "installed", seats.installed)
    one = StandIn(("srt.gone:kernel", "srt.new:kernel", "srt.old:kernel"), lambda kernel: kernel + 1)
    assert (one.applies, one.put()) == (True, "new.kernel")
    assert [getattr(*one.seat.find()), StandIn(("srt.old:kernel",), lambda _: 0).seat.find()[0].kernel] == [2, 5]


def test_one_that_every_release_needs_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    imported(monkeypatch, {"new": {}})
    monkeypatch.setattr(stand_ins, "installed", seats.installed)
    with pytest.raises(NoSeat, match=r"SGLang has no srt\.new:kernel nor srt\.old:kernel"):
        StandIn(("srt.new:kernel", "srt.old:kernel"), lambda _: 0).put()
    assert StandIn(("srt.new:kernel",), lambda _: 0).applies
    assert not StandIn(("srt.new:kernel",), lambda _: 0, needed=False).applies


def test_no_place_has_two_stand_ins() -> None:
    places = [place for each in STAND_INS for place in each.places]
    assert len(set(places)) == len(places)


def test_kernels_that_have_no_stand_in_are_refused_once_they_are_called() -> None:
    kernel = sgl_kernel.rotate_input_ids_cpu
    with pytest.raises(NotImplementedError, match=r"stand-in for sgl_kernel has no rotate_input_ids_cpu$"):
        kernel(1, out=2)
    with pytest.raises(AttributeError, match="__path__"):
        sgl_kernel.__path__  # noqa: B018 - what Python asks modules for
