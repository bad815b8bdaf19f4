"""The engine's own registry, judged by the engine's own rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdebug.patching.drift.fit import Fit
from specdebug.patching.drift.upstream import fit_entry, read_entries
from tests.patching.drift.releases import FLOW, REVERTS, release


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
