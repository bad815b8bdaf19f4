"""Our own patches: the rules of ``patching.apply``, and what is said when they are not met."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from specdebug.patching.drift.fit import fit
from specdebug.patching.drift.nearest import nearest
from tests.patching.drift.releases import FLOW, patch, release

ROWS = "toyserve.flow:Draft.rows"


def test_a_patch_that_fits_says_where(tmp_path: Path) -> None:
    found = fit(release(tmp_path), [patch(ROWS, ("width = count * self.topk", "width = count"), ("check(width)", ""))])
    assert found.problems == ()
    assert [str(place) for place in found.places] == ["toyserve/flow.py:6", "toyserve/flow.py:7"]


def test_every_edit_is_tried_and_the_nearest_lines_shown(tmp_path: Path) -> None:
    edits = [("width = count * self.top_k", "width = count"), ("check(width)", ""), ("return width + 1", "return 0")]
    found = fit(release(tmp_path), [patch(ROWS, *edits)])
    assert len(found.places) == 1
    first, second = found.problems
    assert first.what == f"toggle 1: edit 1 of 3 matches 0 places in {ROWS}"
    assert first.near is not None
    assert (str(first.near.where), first.near.lines) == ("toyserve/flow.py:6", ("width = count * self.topk",))
    assert first.near.diff == ("-width = count * self.top_k", "+width = count * self.topk")
    assert second.near is not None
    assert second.near.where.line == 8


def test_text_that_stands_twice(tmp_path: Path) -> None:
    (problem,) = fit(release(tmp_path), [patch("toyserve.flow:twice", ("x += 1", "x += 2"))]).problems
    assert "matches 2 places" in problem.what
    assert "lines 21, 22 of toyserve/flow.py" in problem.what


def test_a_target_that_moved_is_found_where_it_went(tmp_path: Path) -> None:
    edit = ("width = count * self.topk", "width = count")
    for target in ("toyserve.old:Draft.rows", "toyserve.api:Draft.rows", "toyserve.flow:Old.rows"):
        (problem,) = fit(release(tmp_path), [patch(target, edit)]).problems
        assert problem.near is not None
        assert str(problem.near.where) == "toyserve/flow.py:6"
        assert problem.near.likeness == 1
        assert problem.near.diff == ()


def test_a_renamed_function_is_found_in_its_own_module(tmp_path: Path) -> None:
    dist = release(tmp_path, other="def lines(a):\n    return a\n", flow=FLOW.replace("def rows", "def width_of"))
    near = nearest(dist, "toyserve.flow", "Draft.rows", ["width = count * self.topk"])
    assert near is not None
    assert (str(near.where), near.likeness) == ("toyserve/flow.py:6", 1)


def test_nothing_is_near_where_nothing_is(tmp_path: Path) -> None:
    (problem,) = fit(release(tmp_path), [patch("toyserve.gone:f", ("a", "b"))]).problems
    assert problem.what == "toyserve 1.2.0 has no module 'toyserve.gone'"
    assert problem.near is None
    assert problem.to_dict()["nearest"] is None


def test_edits_must_also_go_together_and_compile(tmp_path: Path) -> None:
    dist = release(tmp_path)
    line = "width = count * self.topk"
    (clash,) = fit(dist, [patch(ROWS, (line, "width = 1")), patch("toyserve.flow:Draft", (line, "width = 2"))]).problems
    assert "changes the same lines" in clash.what
    (broken,) = fit(dist, [patch(ROWS, (line, "width ="))]).problems
    assert "does not compile" in broken.what
    assert fit(dist, [patch(ROWS, (line, "width = 1"))]).problems == ()


@given(
    module=st.lists(st.sampled_from(["a = 1", "b = a", "", "if b:", "    c = 2", "    return"]), max_size=12),
    wanted=st.lists(st.sampled_from(["a = 1", "b = a", "c = 3"]), min_size=1, max_size=4),
)
def test_the_nearest_lines_are_lines_of_the_module(tmp_path_factory, module: list[str], wanted: list[str]) -> None:
    text = "def f():\n    pass\n" + "\n".join(
        f"    {line}" if not line.endswith(":") else "    if a:\n        d" for line in module
    )
    dist = release(tmp_path_factory.mktemp("near"), flow=text)
    near = nearest(dist, "toyserve.flow", "f", wanted)
    if near is None:
        return
    lines = dist.source("toyserve.flow").lines
    start = near.where.line
    there = [line.strip() for line in lines[start - 1 : start - 1 + len(wanted)]]
    assert [line.strip() for line in near.lines] == there
    if any([line.strip() for line in lines[at : at + len(wanted)]] == wanted for at in range(len(lines))):
        assert near.likeness == 1
