"""Every request alone, and without some of them."""

import pytest
from tokenizers import Tokenizer

from specdebug.base.assets import tokenizer_path
from specdebug.base.errors import SpecDebugError
from specdebug.scenario.workload import expand
from tests.campaign.shrink.spaces import FAULTY, ids, scenario, space
from tests.scenario.engines import config_of


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(tokenizer_path("tiny")))


def test_every_request_and_conversation_becomes_a_group_in_order():
    names = ["cold", "warm-0", "warm-1", "warm-2", "talk-0", "talk-1", "last"]
    found = space()
    assert ids(found.start) == names
    assert list(found.next_stage().labels) == names
    assert found.origin["warm-2"] == "warm"


def test_what_is_written_out_is_the_same_workload(tokenizer):
    """But for what is drawn for requests whose names had to change."""
    before = expand(scenario(), tokenizer, 3).requests
    after = expand(space().start, tokenizer, 3).requests
    for old, new in zip(before, after, strict=True):
        assert (old.delay, old.abort_after, old.speculative) == (new.delay, new.abort_after, new.speculative)
        assert (old.continues is None) == (new.continues is None)
        if old.group in ("cold", "last"):
            assert old == new
        if old.group == "warm":
            assert old.sampling.seed == new.sampling.seed
            assert len(old.new_ids) == len(new.new_ids)
    warm = [plan.new_ids[:30] for plan in after if plan.group.startswith("warm")]
    assert len(set(warm)) == 1


def test_only_the_failing_arm_is_left_with_all_it_says():
    start = space(reverts=(10846,)).start
    assert list(start.arms) == ["broken"]
    assert start.arms["broken"].revert == (19897, 10846)
    assert start.arms["broken"].mode == "record"
    assert config_of(start, "broken").max_running_requests == 4


def test_faults_stay_with_the_requests_they_are_done_to():
    """Whose new names they have; what has a fault is not dropped, and the other arms' faults are not done."""
    found = space(FAULTY)
    assert [fault.request for fault in found.start.faults_of("broken")] == ["warm-2.0", "talk-1.0.0"]
    stage = found.next_stage()
    assert stage.without(frozenset({3})) is None
    assert stage.without(frozenset({0, 1, 2, 4, 6})) is not None
    assert [str(fault) for fault in space(FAULTY, "fixed").start.faults_of("fixed")] == ["nan_kv_in_use:step=900"]


def test_too_many_requests_to_tell_apart_are_refused():
    with pytest.raises(SpecDebugError, match="600 requests are more than the 512"):
        space("name: much\nworkload: [{requests: 600, prompt: {corpus: stdlib, tokens: 4}}]", "base")


def test_names_that_are_taken_are_not_given_again():
    text = """
    name: clash
    workload:
      - {id: a, requests: 2, prompt: {corpus: stdlib, tokens: 4}}
      - {id: a-1, prompt: {corpus: stdlib, tokens: 4}}
    """
    assert sorted(ids(space(text, "base").start)) == ["a-0", "a-1", "a-1_"]


def test_dropping_a_request_leaves_the_others_as_they_were(tokenizer):
    found = space()
    before = {plan.rid: plan for plan in expand(found.start, tokenizer, 5).requests}
    smaller = found.next_stage().without(frozenset({0, 2, 4}))
    after = expand(smaller, tokenizer, 5).requests
    assert after
    assert all(plan == before[plan.rid] for plan in after)


def test_what_came_after_a_dropped_request_comes_after_what_that_came_after():
    found = space()
    without_warm = found.next_stage().without(frozenset({1, 2, 3}))
    assert without_warm.workload[-1].arrive.after == ("cold",)
    without_both = space().next_stage().without(frozenset({0, 1, 2, 3}))
    assert without_both.workload[-1].arrive.after == ()
