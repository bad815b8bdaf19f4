"""The matrix: which runs it takes, and which toggles it calls rotten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from specdebug.base.errors import SpecDebugError, Where
from specdebug.campaign.loops import warm
from specdebug.campaign.loops.replay import ArmResult
from specdebug.campaign.loops.verify import Matrix, ToggleCheck, plan_matrix, runs_once, verify
from specdebug.patching import Edit, Patch
from specdebug.patching.toggles import Detection, Toggle
from specdebug.report.toggles import matrix_report
from specdebug.scenario.grammar import Arm, Scenario, TokenPrompt, WorkloadGroup
from specdebug.targets.settings import LaunchedServer
from specdebug.verdict.outcome import Located
from specdebug.workers.job import WorkerEnd
from tests.run.fakes import FakeLibrary, FakePool, good_run, text_of


def toggle(pr: int, signature: str = "nan@*", scenario: str = "first", patch: Patch | None = None) -> Toggle:
    detected = Detection(scenario, (signature,))
    patches = () if patch is None else (patch,)
    return Toggle(pr, (), "t", "u", "f", "s", "", detected, patches, {}, Path("x.yaml"))


class Shelf(FakeLibrary):
    """Two scenarios: one whose first arm is plain, one with an arm of its own for fix 19897."""

    def scenario(self, name: str) -> Scenario:
        arms = {"fixed": Arm("fixed"), "bug": Arm("bug", revert=(1,))}
        if name == "second":
            arms = {"other": Arm("other"), "mine": Arm("mine", revert=(19897,), engine={"page_size": 4})}
        group = WorkloadGroup("g0", TokenPrompt((1, 2)))
        return Scenario(name=name, workload=(group,), arms=arms, expect={}, seed=5)


def test_every_fix_is_run_applied_and_reverted_on_every_seed() -> None:
    runs = runs_once(plan_matrix(Shelf(), [toggle(7), toggle(8)], seeds=2))
    planned = [(run.arm, run.reverts, run.seed) for run in runs]
    assert planned == [
        ("fixed", (), 5),
        ("fixed", (7,), 5),
        ("fixed", (), 6),
        ("fixed", (7,), 6),
        ("fixed", (8,), 5),  # the applied side is shared with fix 7
        ("fixed", (8,), 6),
    ]


def test_the_arm_that_reverts_the_fix_is_run_with_and_without_it() -> None:
    runs = runs_once(plan_matrix(Shelf(), [toggle(19897, scenario="second")], seeds=1))
    assert [(run.arm, run.reverts, run.scenario.engine_of(run.arm)) for run in runs] == [
        ("mine", (), {"page_size": 4}),
        ("mine", (19897,), {"page_size": 4}),
    ]
    assert all(run.scenario.arms["mine"].revert == () for run in runs)


class Keeper:
    """Stands in for the process that keeps servers: it remembers how many may wait, and whether it was ended."""

    started: ClassVar[list[Keeper]] = []

    def __init__(self, room: int) -> None:
        self.room, self.address, self.closed = room, f"keeper {len(self.started)}", False
        self.started.append(self)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("target", [LaunchedServer(command="serve"), None])
def test_the_seeds_of_a_side_share_a_server_where_one_is_started(
    target: LaunchedServer | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Keeper, "started", [])
    monkeypatch.setattr(warm, "ServerKeeper", Keeper)
    pool: Any = FakePool(good_run)
    verify(pool, Shelf(), [toggle(7)], seeds=2, target=target)
    assert [job.payload["keeper"] for job in pool.jobs] == [None if target is None else "keeper 0"] * 4
    ended = [(keeper.room, keeper.closed) for keeper in Keeper.started]
    assert ended == ([] if target is None else [(pool.limit, True)])


FA3 = Patch.of("t", "specdebug.engine.attention.fa3:FlashAttention3Planner.draft_decode", ("a = 1", "a = 2"))


def test_no_row_is_lost_when_a_scenario_changes_meanwhile() -> None:
    class Edited(Shelf):
        """Whoever asks again finds another arm that reverts the fix."""

        def scenario(self, name: str) -> Scenario:
            found = super().scenario(name)
            self.asked = getattr(self, "asked", 0) + 1
            arms = {"new": Arm("new", revert=(7,)), **found.arms}
            return found if self.asked == 1 else replace(found, arms=arms)

    pool: Any = FakePool(failing_with("nan@x.y", when="reverted"))
    matrix = verify(pool, Edited(), [toggle(7)], seeds=2)
    assert [(check.toggle.pr, check.silent, check.detected) for check in matrix.checks] == [(7, 2, 2)]


def test_another_plan_is_used_where_the_fix_exists_in_it() -> None:
    runs = runs_once(
        plan_matrix(Shelf(), [toggle(7), toggle(8, patch=FA3)], 1, {"attention_backend": "triton", "device": "cuda"})
    )
    plans = {(run.reverts, run.shape.attention_backend, run.shape.device) for run in runs}
    # The plan of scenarios that name none is flashinfer.
    assert plans == {
        ((), "triton", "cuda"),
        ((7,), "triton", "cuda"),
        ((), "flashinfer", "cuda"),
        ((8,), "flashinfer", "cuda"),
    }
    assert len({run.key for run in runs}) == 4


def test_a_check_says_which_plan_it_was_run_with() -> None:
    pool: Any = FakePool(failing_with("nan@x.y", when="reverted"))
    matrix = verify(pool, Shelf(), [toggle(7), toggle(8, patch=FA3)], 1, None, {"attention_backend": "triton"})
    assert [(c.backend, c.keeps_backend, c.live) for c in matrix.checks] == [
        ("triton", False, True),
        ("flashinfer", True, True),
    ]
    assert matrix.checks[1].to_dict()["keeps_backend"] is True
    rows = text_of(matrix_report(matrix)).splitlines()
    assert any(" 7 " in row and " triton " in row for row in rows)
    assert any(" 8 " in row and "(flashinfer)" in row for row in rows)


Script = Callable[[Any], tuple[list[dict[str, Any]], WorkerEnd]]


def failing_with(signature: str, *, when: str) -> Script:
    kind, _, site = signature.partition("@")

    def script(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        events, end = good_run(job)
        if when in job.name:
            found = {"event": "violation", "kind": kind, "site": site, "step": 1, "detail": "d"}
            events.insert(-2, found)
        return events, end

    return script


def check(script: Script, signature: str = "nan@*", seeds: int = 2) -> ToggleCheck:
    matrix = verify(FakePool(script), Shelf(), [toggle(7, signature)], seeds)  # type: ignore[arg-type]
    (only,) = matrix.checks
    assert matrix.exit_code == (0 if only.live else 1)
    return only


def test_a_live_toggle() -> None:
    found = check(failing_with("nan@draft.logits", when="reverted"))
    assert (found.live, found.silent, found.detected) == (True, 2, 2)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (good_run, "reverted, seed 5: pass, nothing was found; stated is nan@*"),
        (failing_with("oob@x.y", when="reverted"), "reverted, seed 5: fail, oob@x.y; stated is nan@*"),
        (failing_with("nan@x.y", when=","), "applied, seed 5: fail, nan@x.y"),
        (
            failing_with("nan@x.y", when="reverted, seed 5"),
            "reverted, seed 6: pass, nothing was found; stated is nan@*",
        ),
    ],
)
def test_a_rotten_toggle_is_told_why(script: Script, problem: str) -> None:
    found = check(script)
    assert not found.live
    assert problem in found.problems
    text = text_of(matrix_report(Matrix((found,), False)))
    assert problem in text
    assert text.rstrip().endswith("0 of 1 toggles live")


def test_a_toggle_is_live_by_where_its_failure_began_whatever_was_seen_of_it() -> None:
    def located(results: Sequence[ArmResult]) -> list[ArmResult]:
        return [
            replace(
                each, outcome=each.outcome.began_at(Located(1, None, "draft.bonus", "", each.outcome.signature, ""))
            )
            if each.outcome.signature
            else each
            for each in results
        ]

    def script(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        seen = "mismatch@request" if "seed 5" in job.name else "mismatch@draft_kv"
        return failing_with(seen, when="reverted")(job)

    pool: Any = FakePool(script)
    matrix = verify(pool, Shelf(), [toggle(7, "mismatch@draft.bonus")], 2, locate=located)
    assert matrix.checks[0].live
    matrix = verify(pool, Shelf(), [toggle(7, "mismatch@verify.logits")], 2, locate=located)
    assert matrix.checks[0].detected == 0


def lacking(*, when: str) -> Script:
    def script(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        events, end = failing_with("nan@x.y", when="reverted")(job)
        if when in job.name:
            reason = {"event": "impossible", "reason": "FlashInfer is missing", "unavailable": True}
            events = [reason, events[-2], events[-1]]
        return events, end

    return script


def test_a_toggle_that_this_machine_cannot_run_is_not_rotten() -> None:
    pool: Any = FakePool(lacking(when="7 reverted, seed 6"))
    matrix = verify(pool, Shelf(), [toggle(7), toggle(8)], 2)
    assert [(check.live, check.untested) for check in matrix.checks] == [(False, True), (True, False)]
    assert matrix.exit_code == 125
    text = text_of(matrix_report(matrix))
    assert "7 reverted, seed 6: unknown, FlashInfer is missing" in text
    assert text.rstrip().endswith("1 of 2 toggles live, 1 untested")
    pool = FakePool(lacking(when="7 reverted, seed 6"))
    rotten = verify(pool, Shelf(), [toggle(7, "oob@*")], 2)  # seed 5 ran, and found something else
    assert (rotten.checks[0].untested, rotten.exit_code) == (False, 1)


def counting(**hits: dict[str, int]) -> Script:
    """A script in which the edits of fix 19897 run as often as stated, by arm."""

    def script(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        events, end = failing_with("nan@x.y", when="reverted")(job)
        if "reverted" in job.name:
            counted = {"t#1": 0, "t#2": 0, **hits.get(job.payload["arm"], {})}
            events[-2] = {**events[-2], "hits": {"19897": counted}}
        return events, end

    return script


def two_edits() -> Toggle:
    edits = (Edit(f"t#{n}", "a", "b", Where("here/19897.yaml", 10 * n)) for n in (1, 2))
    return toggle(19897, scenario="second", patch=Patch("t", "m", "f", tuple(edits)))


@pytest.mark.parametrize(
    ("script", "live", "ran"),
    [
        (counting(mine={"t#1": 3, "t#2": 1}), True, ["mine", "mine"]),
        (counting(mine={"t#1": 3}, other={"t#2": 1}), True, ["mine", "mine", "other"]),
        (counting(mine={"t#1": 3}, other={"t#1": 1}), False, ["mine", "mine", "other"]),
    ],
)
def test_every_edit_has_to_run_in_some_arm(script: Script, live: bool, ran: list[str]) -> None:
    pool: Any = FakePool(script)
    matrix = verify(pool, Shelf(), [two_edits()], 1)
    assert [job.payload["arm"] for job in pool.jobs] == ran
    assert (matrix.checks[0].live, matrix.exit_code) == (live, 0 if live else 1)
    never = [] if live else [{"id": "t#2", "where": "here/19897.yaml:20"}]
    assert matrix.checks[0].to_dict()["never_ran"] == never
    text = text_of(matrix_report(matrix))
    assert ("19897 here/19897.yaml:20: edit t#2 never ran in any arm of second" in text) != live


def test_arms_that_are_run_for_their_counts_alone_are_run_once_however_many_seeds() -> None:
    pool: Any = FakePool(counting(mine={"t#1": 3}, other={"t#2": 1}))
    matrix = verify(pool, Shelf(), [two_edits()], 3)
    assert [(job.payload["arm"], job.payload["seed"]) for job in pool.jobs] == [
        *(("mine", seed) for seed in (5, 5, 6, 6, 7, 7)),
        ("other", 5),
    ]
    assert [check.live for check in matrix.checks] == [True]


def shown_twice() -> Toggle:
    """A fix whose edits lie in two places, each reached in a scenario of its own."""
    return replace(two_edits(), also_detected_by=(Detection("first", ("nan@*",)),))


@pytest.mark.parametrize(
    ("script", "idle"),
    [
        (counting(mine={"t#1": 3}, fixed={"t#2": 1}), False),
        (counting(mine={"t#1": 3}, fixed={"t#1": 1}), True),
    ],
)
def test_a_fix_that_two_scenarios_show_has_a_row_for_each_and_its_edits_run_in_one(script: Script, idle: bool) -> None:
    matrix = verify(FakePool(script), Shelf(), [shown_twice()], 1)  # type: ignore[arg-type]
    rows = [(check.toggle.detected_by.scenario, check.live, bool(check.idle)) for check in matrix.checks]
    assert rows == [("second", not idle, idle), ("first", not idle, idle)]
    text = text_of(matrix_report(matrix))
    assert text.rstrip().endswith(f"{0 if idle else 1} of 1 toggles live")
    assert ("edit t#2 never ran in any arm of second or first" in text) == idle


def test_a_fix_that_one_of_its_scenarios_does_not_show_is_rotten_there() -> None:
    def script(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        return good_run(job) if job.name.startswith("first") else counting(mine={"t#1": 3, "t#2": 1})(job)

    matrix = verify(FakePool(script), Shelf(), [shown_twice()], 1)  # type: ignore[arg-type]
    assert [check.live for check in matrix.checks] == [True, False]
    assert matrix.exit_code == 1


def test_an_edit_is_not_dead_because_a_worker_died_with_its_counts() -> None:
    def script(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        if "reverted" not in job.name:
            return good_run(job)
        return [{"event": "reverts", "hits": {"19897": {"t#1": 0, "t#2": 0}}}], WorkerEnd("died", -11, 0.5, 10.0, "")

    pool: Any = FakePool(script)
    fix = replace(two_edits(), detected_by=Detection("second", ("crash*", "sig*")))
    (only,) = verify(pool, Shelf(), [fix], 1).checks
    assert (only.reverted[0].outcome.verdict, only.idle) == ("fail", ())


def test_an_interrupt_drops_a_toggle_whose_other_arms_were_cut_short() -> None:
    pool: Any = FakePool(counting(mine={"t#1": 3}), interrupt_at="second, 19897 reverted, seed 5, other")
    matrix = verify(pool, Shelf(), [two_edits()], 1)
    assert (matrix.checks, matrix.exit_code) == ((), 130)


def test_an_interrupt_keeps_the_toggles_that_were_judged() -> None:
    pool: Any = FakePool(failing_with("nan@x.y", when="reverted"), interrupt_at="first, 8 reverted, seed 5")
    matrix = verify(pool, Shelf(), [toggle(7), toggle(8)], 1)
    assert [(check.toggle.pr, check.live) for check in matrix.checks] == [(7, True)]
    assert matrix.exit_code == 130


def test_nothing_to_verify_is_an_error_not_a_success() -> None:
    with pytest.raises(SpecDebugError, match="no toggles to verify"):
        verify(FakePool(good_run), Shelf(), [], 1)  # type: ignore[arg-type]
