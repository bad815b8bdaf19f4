"""The order in which things are taken away, and how far."""

from tests.campaign.shrink.spaces import space


def test_something_must_be_left():
    stage = space().next_stage()
    assert stage.without(frozenset(range(7))) is None
    assert stage.without(frozenset(range(6))) is not None


def test_a_number_that_is_needed_is_found_by_halving():
    """A prompt of at least 23 tokens is needed: what is left is less than a fourth above it."""
    found = space(arm="fixed")
    found.next_stage()
    found.took(frozenset(range(1, 7)), frozenset())
    while (stage := found.next_stage()) is not None:
        gone = frozenset(
            index
            for index in range(len(stage.labels))
            if (left := stage.without(frozenset({index}))) is not None and left.workload[0].prompt.tokens[1] >= 23
        )
        found.took(gone, frozenset())
        current = stage.without(gone)
    assert 23 <= current.workload[0].prompt.tokens[1] <= 29
