"""However a worker of SGLang began, from nothing, imported or built, one scenario and seed give one outcome."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from specdebug.campaign.loops.replay import ArmRun, Choices, plan, run_arms
from specdebug.campaign.loops.warm import WarmPool
from specdebug.scenario.library import Library
from specdebug.targets.settings import parse_target
from specdebug.targets.sglang.target import SglangTarget
from specdebug.verdict.outcome import Outcome
from specdebug.workers.pool import WorkerPool

pytestmark = pytest.mark.engines

RELEASE = "sglang==0.5.13"
NEWER = ("sglang==0.5.23",)


def planned(release: str, **more: Any) -> ArmRun:
    library = Library()
    choices = Choices(arms=("fixed",), target=parse_target(release), **more)
    (run,) = plan(library.scenario("draft_positions"), choices, library)
    return run


def alone(run: ArmRun) -> Outcome:
    with WorkerPool(1) as pool:
        ((result,), _) = run_arms(pool, Library(), [run])
    return result.outcome


def built(run: ArmRun, times: int) -> list[Outcome]:
    with WarmPool(run.scenario, (run.arm,), run.toggles) as pool:
        found = []
        for number in range(times):
            pool.start(dataclasses.replace(run, key=str(number)))
            found.append(pool.wait().outcome)
        return found


@pytest.mark.parametrize("release", [RELEASE, *NEWER])
@pytest.mark.parametrize("reverts", [(), (25015,)])
def test_three_beginnings_have_one_outcome(
    release: str, reverts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = planned(release, reverts=reverts)
    outcomes = [alone(run), *built(run, 2)]
    home = SglangTarget.home
    monkeypatch.setattr(SglangTarget, "home", lambda target: dataclasses.replace(home(target), preload=()))
    outcomes.append(alone(run))
    assert [each.warm for each in outcomes] == ["imported", "built", "built", "cold"]
    assert len({(each.trace_hash, each.verdict, each.signature, each.where_step) for each in outcomes}) == 1
    ran = [{number: min(edits.values()) > 0 for number, edits in each.reverted_hits.items()} for each in outcomes]
    assert ran == [dict.fromkeys(map(str, reverts), True)] * 4
