"""Which faults can act in SGLang, and what is said of the others before anything is started."""

from __future__ import annotations

import pytest

from specdebug.faults.catalogue import CLASSES
from specdebug.faults.declare import parse_fault
from specdebug.targets.sglang.faults import BETWEEN_BATCHES, LACKED, NOT_AT_SITES, OF_RANKS, SglangFaults

FAULTS = SglangFaults()


def test_every_class_that_is_named_is_one() -> None:
    assert {*BETWEEN_BATCHES, *NOT_AT_SITES} <= set(CLASSES)
    assert all(CLASSES[name].point in ("before", "after") for name in BETWEEN_BATCHES)
    assert all(CLASSES[name].point == "site" for name in NOT_AT_SITES)
    assert LACKED.keys() <= {*BETWEEN_BATCHES}, "what a release lacks has a meaning in another"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nan_kv_in_use:step=3", None),
        ("index_out_of_range:site=accept.predict", None),
        ("outputs_read_early", "it has no meaning in SGLang; "),
        ("index_out_of_range:site=draft.bonus", "SGLang passes no site draft.bonus; with site="),
        ("next_token_swapped", "it has no meaning in SGLang; "),
    ],
)
def test_what_cannot_act_is_refused_in_words(text: str, told: str | None) -> None:
    said = FAULTS.refusal(parse_fault(text))
    assert said is None if told is None else (said or "").startswith(told)


def test_those_of_ranks_act_where_there_are_ranks() -> None:
    for name in OF_RANKS:
        assert FAULTS.sites(name) == ()
        assert FAULTS.refusal(parse_fault(name)) is None
    assert FAULTS.options("rank_dead", None)["tp"] == 2
    assert FAULTS.options("transfer_cut", None)["disaggregation"] == "pd"
    assert not {"tp", "disaggregation"} & FAULTS.options("nan_logits", None).keys()


@pytest.mark.parametrize(
    ("release", "acts"), [("0.5.13", True), ("0.5.18", True), ("0.5.23", False), ("0.5.24.post1", False), (None, True)]
)
def test_locks_are_lost_where_the_radix_tree_is_one_of_nodes(release: str | None, acts: bool) -> None:
    there, fault = SglangFaults(release), parse_fault("cache_lock_lost:step=3")
    assert there.sites(fault.name) == (() if acts else None)
    assert there.sites("nan_kv_in_use") == ()
    said = there.refusal(fault)
    assert said is None if acts else (said or "").startswith(f"it cannot act in SGLang {release}: its radix tree")
