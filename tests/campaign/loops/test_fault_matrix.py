"""The detection matrix: how runs are counted, what is a problem, and what it is as data."""

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.campaign.loops.fault_matrix import (
    Case,
    CaseCheck,
    FaultMatrix,
    FaultRun,
    Ground,
    MatrixStanding,
    cases,
    clean_name,
    left_out,
    matrix_scenario,
    plan,
    verify,
)
from specdebug.engine.workers.registry import LINEUP
from specdebug.faults.catalogue import CLASSES, check_fit
from specdebug.faults.model import NEEDS, Injection
from specdebug.report.faults import closing_line
from specdebug.scenario.library import Library
from specdebug.targets.registry import find_target
from specdebug.targets.settings import ReleasedEngine
from specdebug.verdict.outcome import Metrics, Outcome, Verdict, Violation
from tests.scenario.engines import config_of


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


LIBRARY = Library()
SEEN = [CLASSES["nan_logits"]]
HEAD = Ground(workers=(LINEUP["EAGLE v2"],))
CLEAN = [clean_name(entry) for entry in LINEUP.values()]


class Kept:
    """A watcher with a memory, that may call something on the way."""

    def __init__(self, after: int = -1, error: BaseException | None = None) -> None:
        self.standings: list[MatrixStanding] = []
        self._after, self._error = after, error

    def moved(self, standing: MatrixStanding) -> None:
        self.standings.append(standing)
        if standing.made == self._after and self._error is not None:
            raise self._error


def test_every_row_is_planned_however_few_the_seeds() -> None:
    rows = cases(list(CLASSES.values()), Ground())
    assert len({row.name for row in rows}) == len(rows) > len(CLASSES)
    runs = plan(rows, 1, LIBRARY)
    assert sorted(run.arm for run in runs) == sorted([*CLEAN, *(row.name for row in rows)])
    scenario = matrix_scenario(rows)
    for row in rows:
        (fault,) = scenario.faults_of(row.name)
        assert (fault.name, fault.site) == (row.kind.name, row.site)
        assert row.worker is not None
        check_fit(fault, config_of(scenario, row.name), row.name)  # raises where it cannot act


def test_every_class_has_a_row_or_a_reason_with_every_worker() -> None:
    kinds = list(CLASSES.values())
    rows, absent = cases(kinds, Ground()), left_out(kinds, Ground())
    assert all(row.worker is not None for row in (*rows, *absent))
    seen = {(row.kind.name, row.worker.name) for row in (*rows, *absent) if row.worker is not None}
    assert seen == {(kind.name, name) for kind in kinds for name in LINEUP}
    assert not {(row.kind, row.worker) for row in rows} & {(row.kind, row.worker) for row in absent}
    whys = {case.name: why for case, why in absent.items()}
    assert whys["nan_draft_kv_in_use on FROZEN_KV_MTP"] == "needs a draft with KV of its own"
    assert whys["positions_off_by_one on MTP"] == "never passes draft.forward.positions"
    assert whys["generation_mismatch on EAGLE v1"].startswith("needs slots that requests hold in reserve")
    on_one_rank = {case: why for case, why in absent.items() if case.kind.family != "ranks"}
    assert not any(case.name.endswith(("on EAGLE v2", "on MLA")) for case in on_one_rank)
    several = {whys[case.name] for case in absent if case.kind.family == "ranks"}
    assert several == {f"needs {NEEDS[need]}" for need in ("ranks", "transfers")}


def test_on_a_gpu_classes_act_where_nothing_is_captured() -> None:
    ground = Ground("cuda")
    rows = cases(list(CLASSES.values()), ground)
    scenario = matrix_scenario(rows, ground)
    for run in plan(rows, 1, LIBRARY, ground):
        assert (run.shape.device, bool(run.asked.graphs)) == ("cuda", True)
        assert run.scenario.limits.timeout_s >= 20
    for row in rows:
        (fault,) = scenario.faults_of(row.name)
        check_fit(fault, config_of(scenario, row.name), row.name)  # raises where it cannot act
    assert {row.kind for row in rows} == {kind for kind in CLASSES.values() if kind.family != "ranks"}
    assert "nan_draft_logits at draft_extend.logits on EAGLE v2" in [row.name for row in rows]


SGLANG = ReleasedEngine(release="sglang==0.5.13")


def test_on_another_engine_classes_act_at_the_sites_that_it_passes() -> None:
    ground = Ground(target=SGLANG)
    rows = cases(list(CLASSES.values()), ground)
    scenario = matrix_scenario(rows, ground)
    named = [row.name for row in rows]
    assert {"nan_kv_in_use", "positions_off_by_one", "topk_index_next_lane at draft_graph.replay.topk_index"} <= {
        *named
    }
    assert "not_a_number at verify.logits" in named
    assert not {name for name in named if name.startswith(("stale_padding_positions", "outputs_read_early"))}
    assert all(scenario.target_of(name) == SGLANG for name in named)
    assert {scenario.engine_of(name)["attention_backend"] for name in named} == {"fa3"}
    there = find_target(SGLANG).traits.faults
    assert there is not None
    assert [there.refusal(fault) for name in named for fault in scenario.faults_of(name)] == [None] * len(rows)


def test_a_class_that_a_release_has_nothing_for_is_left_out_and_that_says_why() -> None:
    kinds = [CLASSES[name] for name in ("cache_lock_lost", "nan_kv_in_use", "outputs_read_early")]
    rust = Ground(target=ReleasedEngine(release="sglang==0.5.23"))
    assert [row.name for row in cases(kinds, rust)] == ["nan_kv_in_use"]
    assert [row.name for row in cases(kinds, Ground(target=SGLANG))] == ["cache_lock_lost", "nan_kv_in_use"]
    assert "radix tree is in Rust" in rust.why_left_out(kinds[0], None)
    assert rust.why_left_out(kinds[2], None) == "no meaning in sglang==0.5.23"
    assert "captured graphs" in Ground("cuda").why_left_out(CLASSES["positions_off_by_one"], LINEUP["EAGLE v2"])


@pytest.mark.gpu
def test_damage_on_a_gpu_is_seen() -> None:
    kinds = [CLASSES[name] for name in ("nan_logits", "nan_kv_in_use", "positions_off_by_one")]
    matrix = verify(kinds, 1, 0, LIBRARY, ground=Ground("cuda", workers=HEAD.workers))
    assert [case.kind.name for case in matrix.left_out] == ["positions_off_by_one"]
    assert (matrix.missing, matrix.problems) == (0, ())
    assert matrix.detected == matrix.promptly == 2


def test_a_matrix_is_watched_and_keeps_what_it_is_made_of() -> None:
    watcher = Kept()
    matrix = verify(SEEN, 2, 1, LIBRARY, watcher.moved, HEAD)
    assert (matrix.made, matrix.missing, matrix.problems) == (4, 0, ())
    assert matrix.detected == matrix.promptly == 2
    assert [standing.made for standing in watcher.standings] == [0, 1, 2, 3, 4]
    assert watcher.standings[-1] == MatrixStanding(4, 4, 2, 2, 0, ())


def test_what_was_measured_before_an_interrupt_is_kept() -> None:
    matrix = verify(SEEN, 3, 1, LIBRARY, Kept(2, KeyboardInterrupt()).moved, HEAD)
    assert (matrix.made, matrix.missing, matrix.interrupted, matrix.exit_code) == (2, 4, True, 130)
    assert (matrix.detected, len(matrix.clean)) == (1, 1)


@pytest.mark.slow
def test_all_damage_is_seen_and_no_probe_is_idle() -> None:
    matrix = verify(list(CLASSES.values()), 1, 0, LIBRARY)
    assert matrix.problems == ()
    assert matrix.detected == matrix.effective > 25
    assert matrix.idle_probes == ()
