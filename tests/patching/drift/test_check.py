"""A whole release: which rows, which verdict; our patches, and the engine's own registry by its own rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdebug.base.content import shipped_root
from specdebug.base.errors import ContentError, SpecDebugError
from specdebug.patching.drift import check, open_dist
from specdebug.patching.drift.check import Fit, engines, fit, fit_entry, read_entries
from specdebug.patching.toggles import load_registry, load_toggle
from tests.patching.drift.releases import FLOW, REVERTS, patch, registry, release, toggle, wheel


def test_one_row_a_fix_of_either_registry(tmp_path: Path) -> None:
    known = registry(toggle(tmp_path, 3), toggle(tmp_path, 1, match="width = count"), toggle(tmp_path, 2, "<1.2"))
    report = check(release(tmp_path), known)
    rows = [(row.pr, row.registry, row.status) for row in report.rows]
    assert rows == [
        (1, "ours", "stale"),
        (2, "ours", "not-for-version"),
        (3, "ours", "fits"),
        (11, "upstream", "fits"),
        (12, "upstream", "stale"),
    ]
    assert report.exit_code == 1
    documents = [json.loads(json.dumps(row.to_dict())) for row in report.rows]
    assert documents[0]["nearest"] == "width = count * self.topk"
    assert documents[0]["where"] == "toyserve/flow.py:6"
    assert documents[0]["problems"][0]["written"].startswith(f"{tmp_path}/1.yaml:")
    assert documents[1]["why"] == "patches are for <1.2"
    assert (documents[2]["where"], documents[2]["nearest"]) == ("toyserve/flow.py:6", None)


def test_the_verdict(tmp_path: Path) -> None:
    fits, stale, other = toggle(tmp_path, 1), toggle(tmp_path, 2, match="gone"), toggle(tmp_path, 3, ">=2")
    dist = release(tmp_path)
    assert check(dist, registry(fits, other)).exit_code == 0  # its own stale revert is not ours to mend
    assert check(dist, registry(fits, stale, other)).exit_code == 1
    assert check(dist, registry(other)).exit_code == 125


def test_two_ranges_of_one_toggle_must_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "5.yaml"
    toggle(tmp_path, 5)
    text = path.read_text()
    both = text + text[text.index('    ">=1"') :].replace(">=1", ">=1.1,<9")
    path.write_text(both)
    with pytest.raises(ContentError, match=r"5.yaml:14:\d+: toyserve 1.2.0 is in two version ranges, '>=1' and '>=1.1"):
        check(release(tmp_path), registry(load_toggle(path)))


def test_an_engine_nobody_knows(tmp_path: Path) -> None:
    path = wheel(tmp_path, {"requests/__init__.py": ""}, "Name: requests\nVersion: 2.31\n\n")
    known = registry(toggle(tmp_path, 1))
    with pytest.raises(
        SpecDebugError, match=r"is requests 2.31: no toggle has patches for 'requests'; known: specdebug, toy"
    ):
        check(open_dist(path, engines(known)), known)


def test_this_engine_can_be_checked_too() -> None:
    """The checkout is a source tree like any other, and every toggle of its own fits it."""
    known = load_registry()
    report = check(open_dist(shipped_root(), engines(known)), known)
    assert {row.pr for row in report.rows if row.status == "fits"} == set(known.toggles)
    assert {row.pr for row in report.rows if row.status == "not-for-version"} == set(known.elsewhere)
    assert report.exit_code == 0


ROWS = "toyserve.flow:Draft.rows"


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


def one(folder: Path, patches: str, **changed: str) -> Fit:
    """What becomes of a registry's only entry."""
    module = f"# SGLANG_DEBUG_REVERT_PR\nALL = {{7: '''\n{patches}'''}}\n"
    dist = release(folder, reverts=module, **changed)
    (entry,) = read_entries(dist)
    assert entry.pr == 7
    return fit_entry(dist, entry)


def patches(target: str, *edits: str) -> str:
    lines = ["patches:", f"  - target: {target}", "    edits:"]
    for edit in edits:
        first, *rest = edit.split("\n")
        lines += [f"      - {first}", *(f"        {line}" for line in rest)]
    return "\n".join(lines) + "\n"


def test_each_entry_with_its_place(tmp_path: Path) -> None:
    dist = release(tmp_path)
    first, second = read_entries(dist)
    assert (first.pr, second.pr) == (11, 12)
    assert [str(place) for place in fit_entry(dist, first).places] == ["toyserve/flow.py:6"]
    (problem,) = fit_entry(dist, second).problems
    line = 1 + REVERTS.split("\n").index("          width = count * self.topk * 2")
    assert problem.written == f"toyserve/reverts.py:{line}"
    assert problem.what == "the text to match stands in 0 places of toyserve.flow.Draft.rows"
    assert problem.near is not None
    assert problem.near.diff == ("-width = count * self.topk * 2", "+width = count * self.topk")


def test_an_engine_without_a_registry(tmp_path: Path) -> None:
    assert read_entries(release(tmp_path, reverts="")) == ()
    assert read_entries(release(tmp_path, reverts="SGLANG_DEBUG_REVERT_PR = {'a': 1, 3: x, **y}")) == ()
    assert read_entries(release(tmp_path, reverts="SGLANG_DEBUG_REVERT_PR = (")) == ()


@pytest.mark.parametrize("target", ["toyserve.flow.Draft.step", "toyserve.api.Planner.step", "toyserve.flow.Wide.step"])
def test_targets_resolve_as_python_would(tmp_path: Path, target: str) -> None:
    found = one(tmp_path, patches(target, "match: positions.add_(1)\nreplacement: pass"))
    assert found.problems == ()
    assert str(found.places[0]) == "toyserve/flow.py:12"


def test_imports_in_a_circle_end(tmp_path: Path) -> None:
    found = one(
        tmp_path,
        patches("toyserve.a.f", "match: x\nreplacement: y"),
        a="from toyserve.b import f\n",
        b="from .a import f\nclass C(C): pass\n",
    )
    assert [problem.what for problem in found.problems] == ["toyserve 1.2.0 has no 'toyserve.a.f'"]


def test_a_target_that_moved(tmp_path: Path) -> None:
    (problem,) = one(tmp_path, patches("toyserve.old.Draft.rows", "match: check(width)\nreplacement: pass")).problems
    assert problem.near is not None
    assert str(problem.near.where) == "toyserve/flow.py:7"


def test_an_edit_sees_what_the_edits_before_it_left(tmp_path: Path) -> None:
    edits = ["match: x += 1\nreplacement: x += 2", "match: x += 2\nprepend: x += 3", "match: x += 3\nappend: x -= 3"]
    assert "stands in 2 places" in one(tmp_path, patches("toyserve.flow.twice", *edits)).problems[0].what
    once = FLOW.replace("    x += 1\n    x += 1\n", "    x += 1\n")
    found = one(tmp_path, patches("toyserve.flow.twice", *edits), flow=once)
    assert found.problems == ()
    assert len(found.places) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("patches: [", "not valid YAML"),
        ("patches: []\n", "needs at least 1 item"),
        ("patchs: 1\n", "unknown key 'patchs'"),
        (patches("toyserve.flow.twice", "match: return x\nreplacement: 'return ('"), "does not compile when patched"),
        (patches("toyserve.flow.twice", "mach: return x"), "unknown key 'mach'"),
        (patches("toyserve.flow.twice", "match: ''"), "must not be empty"),
    ],
)
def test_what_could_never_be_applied_is_stale(tmp_path: Path, text: str, said: str) -> None:
    (problem,) = one(tmp_path, text).problems
    assert said in problem.what
    assert problem.written.startswith("toyserve/reverts.py:")
