"""Tables by release, and putting stand-ins into modules: what is not there is an error, never passed over."""

from __future__ import annotations

import sys
import types

import pytest

from specdebug.targets.sglang.inside.releases import StandIn, of_release
from specdebug.targets.sglang.inside.sgl_kernel import ONLY_IMPORTED
from specdebug.targets.sglang.inside.stand_ins import STAND_INS


@pytest.mark.parametrize(
    ("release", "table"),
    [("0.5.13", "a"), ("0.5.17.post1", "a"), ("0.5.18", "b"), ("0.6", "b"), ("0.5.13.dev3", "a"), ("0.5.9", "a")],
)
def test_a_release_has_the_table_of_the_newest_that_is_not_newer(release: str, table: str) -> None:
    assert of_release({"0.5.18": "b", "0.5.13": "a"}, release) == table


def test_a_stand_in_takes_a_place_that_is_there_or_is_said_to_be_new(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("sglang.srt.utils")
    module.__dict__["kernel"] = None
    for name, each in (("sglang", types.ModuleType("sglang")), ("sglang.srt.utils", module)):
        monkeypatch.setitem(sys.modules, name, each)
    assert StandIn("srt.utils", "kernel", 1).put() == "utils.kernel"
    assert StandIn("srt.utils", "added", 2, new=True).put() == "utils.added"
    assert (module.__dict__["kernel"], module.__dict__["added"]) == (1, 2)
    with pytest.raises(AttributeError, match="moved"):
        StandIn("srt.utils", "moved", 3).put()


def test_no_name_of_a_release_is_replaced_twice() -> None:
    for stand_ins in STAND_INS.values():
        assert len({(each.module, each.name) for each in stand_ins}) == len(stand_ins)


def test_kernels_that_are_only_imported_are_refused_by_name() -> None:
    from specdebug.targets.sglang.inside import sgl_kernel

    for name in ONLY_IMPORTED:
        with pytest.raises(NotImplementedError, match=f"has no {name}$"):
            getattr(sgl_kernel, name)(1, out=2)
    assert set(ONLY_IMPORTED) <= set(sgl_kernel.__all__)
