"""Recordings of two engines, or of two workers, are cut down to what they have in common."""

from __future__ import annotations

from array import array

from specdebug.diverge.align import by_request
from specdebug.diverge.common import in_common, integers_of, unlike_by_worker
from specdebug.diverge.stream import BATCH, Descriptor, RecordedStep

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
    left, right, looked = in_common(ours, theirs, {}, "engines")
    assert looked.sites == ("target_prefill.input_ids", "verify.logits")
    assert looked.only == (("kv_pool.write.loc",), ())
    (found,) = by_request(left, right)
    assert (found.site, found.owner) == ("verify.logits", "b")
    assert found.left is not None
    assert found.right is not None
    assert (found.left.call, found.right.call) == (2, 1)


def test_requests_that_stand_alone_are_not_compared() -> None:
    why = {"b": "is sampled", "z": "was never there"}
    left, right, looked = in_common(steps(IDS, last=1), steps(IDS, last=2), why, "engines")
    assert looked.alone == {"b": "is sampled"}
    assert not list(by_request(left, right))


def test_integers_are_read_as_the_first_engine_has_them() -> None:
    assert integers_of(steps(IDS, LOGITS, last=0)) == {"target_prefill.input_ids": "int64"}


WRITTEN = Descriptor("kv_pool.write.k", "float32", (0, 1), (4, 4))
RAGGED = Descriptor("kv_pool.write.k", "float32", (BATCH,), (5,))
EXTENDED = Descriptor("draft_extend.topk_index", "int64", (0, 1), (1, 1))


def decodes(*batches: tuple[Descriptor, ...], first: int = 1) -> list[RecordedStep]:
    """Decode steps of two requests, whose hashes count from ``first``."""
    made = []
    for number, calls in enumerate(batches, 1):
        size = sum(len(call.owners) for call in calls)
        made.append(RecordedStep(number, ("a", "b"), calls, array("Q", range(first, first + size))))
    return made


def test_workers_may_write_other_rows_but_not_verify_others() -> None:
    v1, v2 = decodes((LOGITS, RAGGED), ()), decodes((LOGITS, WRITTEN), ())
    unlike = unlike_by_worker(v1, v2)
    assert {(rid, site) for rid, _, _, site, _ in unlike} == {("a", "kv_pool.write.k"), ("b", "kv_pool.write.k")}
    assert not list(by_request(v1, v2, unlike))
    assert [each.site for each in by_request(v1, v2)] == ["kv_pool.write.k"] * 2
    wide = Descriptor("verify.logits", "float32", (0, 1), (2, 2))
    other = decodes((wide, WRITTEN), ())
    assert {each.site for each in by_request(v1, other, unlike_by_worker(v1, other))} == {"verify.logits"}


def test_equal_rows_that_workers_write_are_compared() -> None:
    v1, v2 = decodes((WRITTEN,)), decodes((WRITTEN,), first=7)
    assert [each.what for each in by_request(v1, v2, unlike_by_worker(v1, v2))] == ["value", "value"]


def test_of_a_request_s_last_step_the_draft_s_extend_is_not_compared() -> None:
    v1, v2 = decodes((EXTENDED,), (EXTENDED,)), decodes((EXTENDED,), (EXTENDED,), first=7)
    assert [each.step for each in by_request(v1, v2, unlike_by_worker(v1, v2))] == [1, 1]


def test_a_step_that_one_worker_alone_made_is_a_difference() -> None:
    v1, v2 = decodes((EXTENDED, RAGGED)), decodes((EXTENDED, WRITTEN), (EXTENDED, WRITTEN))
    found = list(by_request(v1, v2, unlike_by_worker(v1, v2)))
    assert [(each.what, each.step, each.owner) for each in found] == [("shape", 2, "a"), ("shape", 2, "b")]
