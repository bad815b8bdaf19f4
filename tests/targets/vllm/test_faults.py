"""Which faults can act in vLLM, and what is said of the others."""

from __future__ import annotations

from specdebug.faults.catalogue import CLASSES
from specdebug.faults.declare import parse_fault
from specdebug.targets.vllm.faults import VllmFaults

FAULTS = VllmFaults()


def test_those_of_ranks_act_and_others_have_no_meaning() -> None:
    acting = [name for name in CLASSES if FAULTS.sites(name) is not None]
    assert {"rank_dead", "rank_behind", "collective_twice"} <= set(acting)
    assert all(CLASSES[name].needs == ("ranks",) for name in acting)
    assert FAULTS.refusal(parse_fault("rank_hangs:step=4")) is None
    said = FAULTS.refusal(parse_fault("nan_logits:step=4"))
    assert said is not None
    assert said.startswith("it has no meaning in vLLM; rank_dead")


def test_a_small_scenario_for_one_is_served_by_two_ranks() -> None:
    options = FAULTS.options("rank_late", None)
    assert (options["tp"], options["speculative"]["eagle_topk"]) == (2, 1)
