"""The matrix: which runs it takes, and which toggles it calls rotten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from specdebug.base.attention_plans import PLANS
from specdebug.base.errors import Where
from specdebug.campaign.loops import verify as verifying
from specdebug.campaign.loops import warm
from specdebug.campaign.loops.replay import ArmResult
from specdebug.campaign.loops.verify import Matrix, ToggleCheck, check_latent, exists_in, verify
from specdebug.patching import Edit, Patch
from specdebug.patching.toggles import Detection, Toggle, load_registry
from specdebug.report.toggles import matrix_report
from specdebug.scenario.grammar import Arm, Scenario, TokenPrompt, WorkloadGroup
from specdebug.targets.installs.store import Installed
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


def test_an_interrupt_drops_a_toggle_whose_other_arms_were_cut_short() -> None:
    pool: Any = FakePool(counting(mine={"t#1": 3}), interrupt_at="second, 19897 reverted, seed 5, other")
    matrix = verify(pool, Shelf(), [two_edits()], 1)
    assert (matrix.checks, matrix.exit_code) == ((), 130)


@pytest.fixture
def here() -> Installed:
    return Installed(Path("/env"), "sglang", "0.5.13", "cpu", "/env/bin/python", ours=True)


@pytest.fixture
def fix() -> Toggle:
    return load_registry().find("27460")


def test_a_guard_that_is_there_is_named(here: Installed, fix: Toggle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "place_of", lambda *_: ("sglang/srt/a.py:7", ""))
    others = [each for each in load_registry().all if each.pr != fix.pr]
    (check,) = check_latent(here, [fix, *others])
    assert (check.guard, check.problem) == ("sglang/srt/a.py:7", "")
    plain = check.to_dict()
    assert (plain["pr"], plain["latent"], plain["live"], plain["problems"]) == (27460, True, False, [])


def test_a_guard_that_is_gone_is_a_problem(here: Installed, fix: Toggle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "place_of", lambda *_: (None, "match text not found"))
    (check,) = check_latent(here, [fix])
    assert check.guard is None
    assert check.problem.startswith("its guard is not in sglang==0.5.13, so it may be live")
    assert check.to_dict()["problems"] == [check.problem]


def plans_toggle(target: str, *signatures: str) -> Toggle:
    patch = Patch.of("t", target, ("a = 1", "a = 2"))
    detected = Detection("s", signatures or ("guard@a->b",))
    return Toggle(1, (), "t", "u", "f", "s", "", detected, (patch,), {}, Path("x.yaml"))


def plans_of(found: Toggle) -> set[str]:
    return {plan for plan in PLANS if exists_in(found, plan)}


@pytest.mark.parametrize(
    ("target", "where"),
    [
        ("specdebug.engine.textbook.attention.flashinfer:FlashInferPlanner.draft_decode", {"flashinfer", "triton"}),
        ("specdebug.engine.attention.triton:TritonPlanner._splits", {"triton"}),
        ("specdebug.engine.attention.fa3:FlashAttention3Planner.draft_decode", {"fa3"}),
        ("specdebug.engine.textbook.attention.planner:AttentionPlanner.__init__", {"flashinfer", "fa3", "triton"}),
        ("specdebug.engine.config:EngineConfig.row_headroom", {"flashinfer", "fa3", "triton"}),
    ],
)
def test_a_fix_in_a_planner_exists_where_that_planner_s_lines_run(target: str, where: set[str]) -> None:
    assert plans_of(plans_toggle(target)) == where
