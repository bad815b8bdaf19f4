"""What two engines' recordings have in common."""

from __future__ import annotations

from array import array

from specdebug.diverge.align import by_request
from specdebug.diverge.common import in_common, integers_of
from specdebug.diverge.stream import Descriptor, RecordedStep

IDS = Descriptor("target_prefill.input_ids", "int64", (0, 1), (2, 2))
LOGITS = Descriptor("verify.logits", "float32", (0, 1), (1, 1))
SLOTS = Descriptor("kv_pool.write.loc", "int64", (0, 1), (2, 2))


def steps(*calls: Descriptor, last: int) -> list[RecordedStep]:
    digests = array("Q", range(2 * len(calls)))
    digests[-1] = last
    return [RecordedStep(1, ("a", "b"), calls, digests)]


def test_only_sites_and_requests_of_both_are_compared_and_calls_keep_their_numbers() -> None:
    ours, theirs = steps(IDS, SLOTS, LOGITS, last=99), steps(IDS, LOGITS, last=100)
    theirs[0].digests[2] = ours[0].digests[4]  # type: ignore[index]
    left, right, looked = in_common(ours, theirs, {})
    assert looked.sites == ("target_prefill.input_ids", "verify.logits")
    assert looked.only == (("kv_pool.write.loc",), ())
    (found,) = by_request(left, right)
    assert (found.site, found.owner) == ("verify.logits", "b")
    assert found.left is not None
    assert found.right is not None
    assert (found.left.call, found.right.call) == (2, 1)


def test_requests_that_stand_alone_are_not_compared() -> None:
    why = {"b": "is sampled", "z": "was never there"}
    left, right, looked = in_common(steps(IDS, last=1), steps(IDS, last=2), why)
    assert looked.alone == {"b": "is sampled"}
    assert not list(by_request(left, right))


def test_integers_are_read_as_the_first_engine_has_them() -> None:
    assert integers_of(steps(IDS, LOGITS, last=0)) == {"target_prefill.input_ids": "int64"}
