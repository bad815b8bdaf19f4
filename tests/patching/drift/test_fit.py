"""Our own patches: the rules of ``patching.apply``, and what is said when they are not met."""

from __future__ import annotations

from pathlib import Path

from specdebug.patching.drift.fit import fit
from tests.patching.drift.releases import patch, release

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
