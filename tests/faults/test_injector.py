"""When faults fire, what the ledger keeps of them, and what is said of those that did nothing."""

from collections.abc import Iterator
from typing import Any

import pytest

from specdebug import async_probe
from specdebug.engine.textbook.speculative import worker
from specdebug.engine.textbook.speculative import worker as stages
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.minimal import minimal
from specdebug.faults.model import Fault
from specdebug.scenario.grammar import Scenario
from specdebug.verdict.outcome import Outcome
from tests.faults.running import minimal_run, models_kept, run_here

PLAIN: dict[str, Any] = minimal(CLASSES["nan_logits"])[0]
SCENARIO = Scenario.from_dict(PLAIN)


@pytest.fixture(scope="module", autouse=True)
def _models() -> Iterator[None]:
    with models_kept(PLAIN["engine"]):
        yield


def test_the_same_seed_does_the_same_damage_and_another_seed_other() -> None:
    first, again, other = (minimal_run("bit_flip_kv_in_use", seed) for seed in (3, 3, 4))
    assert first.injections == again.injections
    assert first.trace_hash == again.trace_hash
    assert first.violations == again.violations
    assert first.injections != other.injections


def test_a_seed_of_its_own_moves_the_damage_and_nothing_else() -> None:
    one, two = (run_here(SCENARIO, Fault("denormal_kv_in_use", (5, 5), seed=n), seed=3) for n in (1, 2))
    assert one.trace_hash == two.trace_hash
    assert one.injections != two.injections


def test_an_address_is_kept_to() -> None:
    outcome = run_here(SCENARIO, Fault("tied_draft_logits", (5, 6), request="r.2", times=3))
    assert {(each.request, each.site) for each in outcome.injections} == {("r.2", "draft.forward.logits")}
    assert {each.step for each in outcome.injections} <= {5, 6}
    assert 1 < len(outcome.injections) <= 3


@pytest.mark.parametrize("fault", ["bonus_read_early", "lengths_read_early"])
def test_what_is_read_early_is_used(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Also where the engine drafts ahead, as on a GPU, and drops a draft when another request comes in."""
    build = worker.EagleWorker.__init__
    workers: list[Any] = []

    def drafting_ahead(self: Any, *args: Any, **options: Any) -> None:
        build(self, *args, **options)
        self.drafts_ahead = True
        workers.append(self)

    monkeypatch.setattr(worker.EagleWorker, "__init__", drafting_ahead)
    outcome = minimal_run(fault, seed=19)  # its draft was dropped
    assert [each.drafts_ahead for each in workers] == [False]
    assert [each.changed for each in outcome.injections] == [True]
    assert outcome.verdict == "fail"


UNFIRED = {
    Fault("nan_kv_in_use", (500, 500)): "the run has no step 500",
    Fault("nan_logits", (1, 1)): "site verify.logits was not reached in step 1",
    Fault("nan_logits", site="target_decode.logits"): "site target_decode.logits was not reached",
    Fault("nan_kv_in_use", (2, 3), request="r.1"): "request r.1 is not in a batch that it can act on",
    Fault("nan_kv_in_use", (5, 6), row=9): "the batch has no row 9",
    Fault("tied_draft_logits", probability=1e-9): "its probability never came up",
}


@pytest.mark.parametrize(("fault", "why"), UNFIRED.items(), ids=map(str, UNFIRED))
def test_a_fault_that_never_fired_makes_the_arm_unknown(fault: Fault, why: str) -> None:
    outcome = run_here(SCENARIO, fault)
    assert outcome.verdict == "unknown"
    assert outcome.detail == f"fault {fault} was never injected: {why}"


def test_a_fault_that_changed_nothing_makes_the_arm_unknown() -> None:
    fault = Fault("nan_kv_unused", (4, 4))
    outcome = run_here(SCENARIO, fault)  # whose released memory is NaN
    assert outcome.verdict == "unknown"
    assert outcome.detail == f"fault {fault} changed nothing: nan was there before"
    assert not any(each.changed for each in outcome.injections)


def test_an_outcome_with_injections_survives_json() -> None:
    outcome = minimal_run("nan_kv_in_use")
    assert outcome.injections[0].after == "nan" or outcome.injections[0].after != outcome.injections[0].after
    text = str(outcome.injections[0])
    assert text.startswith(f"injected nan_kv_in_use at step {outcome.injections[0].step}, request r.")
    assert text.endswith("-> nan")
    assert Outcome.from_dict(outcome.to_dict()).injections == tuple(outcome.injections)


def test_nothing_is_left_behind() -> None:
    readback = stages.Readback
    run_here(SCENARIO, Fault("outputs_read_early", (5, 40)), Fault("nan_logits", (5, 40)))
    assert stages.Readback is readback
    async_probe.maybe_detect_nan(None, "test.hook")
    assert async_probe.reached() == {}
