"""The detection matrix: how runs are counted, what is a problem, and what it is as data."""

from __future__ import annotations

from specdebug.base.errors import SpecDebugError
from specdebug.campaign.loops.fault_matrix import Case, CaseCheck, FaultMatrix, FaultRun
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.model import Injection
from specdebug.report.detection import DetectionMatrix, Injected
from specdebug.report.faults import closing_line
from specdebug.verdict.outcome import Metrics, Outcome, Verdict, Violation


def run_of(
    verdict: Verdict, *violations: Violation, step: int | None = 5, changed: bool = True, seed: int = 0
) -> FaultRun:
    """A run in which something was injected at ``step`` (None: nothing was)."""
    done = () if step is None else (Injection("x", 0, step, None, None, "t", (0,), 1, 2, changed=changed),)
    first = violations[0] if violations else None
    return FaultRun(
        seed,
        Outcome(
            verdict,
            first.signature if first else None,
            None,
            "why",
            None,
            violations=violations,
            injections=done,
            metrics=Metrics(steps=10),
            reached_sites={"a.b": 3, "c.d": 1, "e.f": 0},
        ),
    )


NAN = Violation("nan", "a.b", 5)
LATE = Violation("mismatch", "draft_kv", 9)
DAMAGE = Case(CLASSES["nan_kv_in_use"])
HARMLESS = Case(CLASSES["cache_flushed"])


def test_effective_injections_are_counted_with_what_caught_them() -> None:
    check = CaseCheck(
        DAMAGE, (run_of("fail", NAN, LATE), run_of("fail", LATE), run_of("pass"), run_of("unknown", step=None))
    )
    assert len(check.effective) == 3
    assert (check.detected, check.promptly) == (2, 1)
    assert check.caught_by == {"nan@a.b": 1, "mismatch@draft_kv": 2}
    assert check.sole == {"mismatch@draft_kv": 1}
    assert [run.lag for run in check.runs] == [0, 4, None, None]


def test_a_worker_that_dies_of_it_dies_at_once_unless_something_was_found_before() -> None:
    assert run_of("fail", Violation("hang")).lags == {"hang": 0}
    late = run_of("fail", LATE, Violation("hang"))
    assert (late.lag, late.lags) == (4, {"mismatch@draft_kv": 4, "hang": 4})
    assert run_of("fail", NAN, step=None).lags == {}


def test_what_was_not_seen_or_not_injected_or_seen_without_cause_is_a_problem() -> None:
    damage = CaseCheck(DAMAGE, (run_of("pass", seed=3), run_of("unknown", step=None), run_of("unknown", changed=False)))
    assert [line.split(": ")[0] for line in damage.problems] == [
        "nan_kv_in_use, seed 3",
        "nan_kv_in_use, seed 0",
        "nan_kv_in_use, seed 0",
    ]
    assert damage.problems[0].endswith("and nothing saw it")
    harmless = CaseCheck(HARMLESS, (run_of("pass"), run_of("fail", NAN)))
    assert harmless.problems == ("cache_flushed, seed 0: benign, but fail nan@a.b",)
    assert harmless.effective == ()


def test_the_matrix_adds_up() -> None:
    matrix = FaultMatrix(
        (CaseCheck(DAMAGE, (run_of("fail", NAN),)), CaseCheck(HARMLESS, (run_of("pass"),))),
        (run_of("pass", step=None), run_of("fail", LATE, step=None, seed=1)),
    )
    assert (matrix.effective, matrix.detected, matrix.promptly, matrix.clean_steps) == (1, 1, 1, 20)
    assert matrix.false_alarms == ("clean, seed 1: mismatch@draft_kv",)
    assert matrix.sole == {"nan@a.b": (DAMAGE,)}
    assert matrix.idle_probes == ("c.d",)
    assert matrix.exit_code == 1
    assert FaultMatrix(matrix.checks, matrix.clean[:1]).exit_code == 0
    assert FaultMatrix((), (), interrupted=True).exit_code == 130
    assert FaultMatrix((), (), trouble=SpecDebugError("no room")).exit_code == 2
    assert closing_line(matrix) == (
        "2 rows: 1 of 1 effective injections caught, 1 within a step; 1 false alarms in 20 clean steps"
    )


def test_a_matrix_that_was_cut_short_says_so_and_rows_without_runs_are_no_problem() -> None:
    matrix = FaultMatrix(
        (CaseCheck(DAMAGE, (run_of("fail", NAN),)), CaseCheck(HARMLESS, ())), (), missing=3, interrupted=True
    )
    assert (matrix.made, matrix.problems, matrix.exit_code) == (1, (), 130)
    assert closing_line(matrix) == (
        "stopped after 1 of 4 runs; 1 row: 1 of 1 effective injections caught, 1 within a step; "
        "0 false alarms in 0 clean steps"
    )


def test_its_document_is_what_the_page_is_made_of() -> None:
    matrix = FaultMatrix(
        (
            CaseCheck(DAMAGE, (run_of("fail", NAN, LATE), run_of("unknown", changed=False, seed=1))),
            CaseCheck(HARMLESS, (run_of("pass"),)),
        ),
        (),
    )
    assert DetectionMatrix.of(matrix).rows == (
        Injected("nan_kv_in_use", 0, True, {"nan@a.b": 0, "mismatch@draft_kv": 4}),
        Injected("nan_kv_in_use", 1, False, {}),
        Injected("cache_flushed", 0, False, {}),
    )
