"""The arms of a release: their order, what of a mutant's run parts from the sound one's, and what they are forks of."""

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from specdebug.apps.mutants.find import Mutant
from specdebug.apps.mutants.sound import MutantRun, ReleaseSound, sound_arms, varied
from specdebug.apps.mutants.worker import BOOKS, BUILT, HELD, PATCHED, TAPE, LineCoverage
from specdebug.campaign.loops.replay import ArmRun, run_as
from specdebug.scenario.library import Library
from specdebug.verdict.outcome import Outcome

ARMS, _ = sound_arms(Library(), [Library().scenario("graph_padding")])


def outcome(trace_hash: str = "t") -> Outcome:
    return Outcome("pass", None, None, "", None, trace_hash=trace_hash)


def sound(tmp_path: Path, name: str, cost: int, ran: str, built: str = "") -> ReleaseSound:
    """An arm that has passed so many bytes by its sites, and run the lines 1, 2 and so on that are named."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / TAPE).write_bytes(b"." * cost)
    lines, building = ({"f.py": frozenset(map(int, some))} for some in (ran, built))
    run = dataclasses.replace(ARMS[0], key=name)
    return ReleaseSound(run, 2.0, "t", 3, [{"queues": "1"}], lines, folder, building, 5.0)


def mutant(line: int) -> Mutant:
    return Mutant("f.py", "f", line, "comparison", 1, (line, line), ("a < b",), "a <= b", ("a < b", "a <= b"), "engine")


def test_first_come_the_arms_that_run_most_for_their_cost_until_all_is_run_then_again(tmp_path: Path) -> None:
    arms = [sound(tmp_path, "a", 10, "12"), sound(tmp_path, "b", 10, "12"), sound(tmp_path, "c", 100, "123", "4")]
    assert [each.name for each in varied(arms)] == ["a", "c", "b"]


def test_a_mutant_of_what_building_runs_is_in_force_before_it(tmp_path: Path) -> None:
    arm = sound(tmp_path, "a", 1, "12", "23")
    assert [arm.reaches(mutant(line)) for line in (1, 2, 3, 4)] == [True, True, True, False]
    runs = [arm.of(mutant(line), "key", tmp_path) for line in (1, 2, 3)]
    assert [run.rebuilt for run in runs] == [False, True, True]
    assert [run.processor_s for run in runs] == [25.0, 30.0, 30.0]
    assert {run.sound for run in runs} == {str(arm.folder / TAPE)}


@pytest.mark.parametrize(
    ("held", "books", "trace", "what"),
    [
        ({"first": None, "sites": [], "before": []}, [{"queues": "1"}], "t", None),
        ({"first": None, "sites": [], "before": []}, [{"queues": "2"}], "t", ("book", "queues", True, True)),
        (
            {"first": None, "sites": [], "before": []},
            [{"queues": "1"}],
            "u",
            ("trace", "what the run reported", True, True),
        ),
        (
            {"first": ["rounding", 2, "x", "a", ""], "sites": [], "before": []},
            [{"queues": "1"}],
            "t",
            ("rounding", "x", False, True),
        ),
        (
            {"first": ["rounding", 2, "x", "a", ""], "sites": [], "before": []},
            [{"queues": "2"}],
            "t",
            ("book", "queues", True, True),
        ),
        (
            {"first": ["value", 2, "x", "a", ""], "sites": ["x"], "before": []},
            [{"queues": "1"}],
            "t",
            ("value", "x", True, False),
        ),
        (
            {"first": ["value", 2, "x", "a", ""], "sites": ["x", "y"], "before": []},
            [{"queues": "1"}],
            "t",
            ("value", "x", True, True),
        ),
    ],
)
def test_what_parts_is_a_tensor_or_a_book_or_the_trace(
    held: Any, books: Any, trace: str, what: tuple[str, str, bool, bool] | None, tmp_path: Path
) -> None:
    (tmp_path / HELD).write_text(json.dumps(held))
    (tmp_path / BOOKS).write_text(json.dumps(books))
    found = sound(tmp_path, "a", 1, "1").difference(tmp_path, outcome(trace))
    first = found.first
    assert (first and (first.kind, first.site, found.certain, first.read)) == what


def test_arms_come_of_a_built_engine_but_those_that_build_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def nests(**more: Any) -> list[str]:
        run = run_as(MutantRun, ARMS[0], root="/engine", **more)
        nest = run.nest({"packs": b"", "patches": pickle.dumps({}), "root": run.root})
        assert nest is not None
        return [each.target for each in nest.line]

    assert nests() == [PATCHED, BUILT]
    assert nests(traced=("f.py",)) == nests(rebuilt=True) == [PATCHED]
    assert ArmRun.nest is not MutantRun.nest


def test_lines_before_a_mark_are_counted_apart() -> None:
    def one() -> int:
        return 1

    def two() -> int:
        return 2

    with (lines := LineCoverage((__file__,))):
        one()
        lines.mark()
        two()
    (before,), (ran,) = lines.before.values(), lines.ran.values()
    first, second = (function.__code__.co_firstlineno + 1 for function in (one, two))
    assert (first in before, second in before, first in ran, second in ran) == (True, False, False, True)
