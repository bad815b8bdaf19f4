"""Two recorded runs side by side, made up by hand."""

import dataclasses
from array import array
from collections.abc import Sequence

from specdebug.diverge.align import (
    PREFILL,
    by_request,
    computed_again,
    in_common,
    in_lockstep,
    prompts_of,
    same_schedule,
    unlike_by_worker,
)
from specdebug.diverge.recording import BATCH, Descriptor, RecordedStep

BONUS, LOGITS, SLOTS = "draft.bonus", "verify.logits", "kv_pool.write.loc"


def step(number: int, rids: Sequence[str], **hashes: Sequence[int]) -> RecordedStep:
    """Sites by short name, with a hash for each request."""
    names = {"bonus": (BONUS, "int64"), "logits": (LOGITS, "float32"), "slots": (SLOTS, "int64")}
    owners = tuple(range(len(rids)))
    calls = tuple(Descriptor(*names[name], owners, (1,) * len(rids)) for name in hashes)
    return RecordedStep(number, tuple(rids), calls, [each for share in hashes.values() for each in share])


def test_equal_runs_do_not_differ() -> None:
    run = [step(1, "ab", bonus=[1, 2], logits=[3, 4])]
    assert list(in_lockstep(run, run)) == []
    assert list(by_request(run, run)) == []
    assert same_schedule(run, run) is None


def test_in_lockstep_differences_come_in_program_order() -> None:
    left = [step(1, "ab", bonus=[1, 2], logits=[3, 4]), step(2, "ab", bonus=[5, 6], logits=[7, 8])]
    right = [step(1, "ab", bonus=[1, 2], logits=[3, 9]), step(2, "ab", bonus=[9, 6], logits=[9, 8])]
    found = [(each.what, each.step, each.site, each.owner, each.soft) for each in in_lockstep(left, right)]
    assert found == [("value", 1, LOGITS, "b", True), ("value", 2, BONUS, "a", False), ("value", 2, LOGITS, "a", True)]


def test_other_requests_other_calls_and_an_end_are_told() -> None:
    one = [step(1, "a", bonus=[1])]
    (found,) = in_lockstep(one, [step(1, "b", bonus=[1])])
    assert (found.what, found.text) == ("schedule", "requests a are computed in the first arm, b in the second")
    (found,) = in_lockstep(one, [step(1, "a", bonus=[1], logits=[2])])
    assert (found.what, found.site) == ("schedule", LOGITS)
    assert found.text == f"the first arm reaches nothing more, the second reaches {LOGITS}"
    (found,) = in_lockstep(one, [*one, step(2, "a", bonus=[1])])
    assert (found.what, found.step, found.text) == ("end", 2, "only the second arm has a step 2")


def test_by_request_whenever_it_was_computed() -> None:
    together = [step(1, "ab", bonus=[1, 2], slots=[5, 6]), step(2, "ab", bonus=[3, 4], slots=[7, 8])]
    apart = [
        step(1, "a", bonus=[1], slots=[50]),
        step(2, "a", bonus=[3], slots=[70]),
        step(3, "b", bonus=[2], slots=[60]),
        step(4, "b", bonus=[9], slots=[80]),
    ]
    (found,) = by_request(together, apart)
    assert (found.what, found.step, found.owner, found.site, found.left and found.left.step) == (
        "value",
        4,
        "b",
        BONUS,
        2,
    )
    assert same_schedule(together, apart) == 1


def prefill(number: int, *rows: int, digests: Sequence[int], start: int = 0) -> RecordedStep:
    """A chunk of each request's prompt, that of the first from ``start``, and the logits of its last position."""
    rids = tuple("abc"[: len(rows)])
    owners = tuple(range(len(rids)))
    calls = (
        Descriptor("target_prefill.input_ids", "int64", owners, rows),
        Descriptor("target_prefill.logits", "float32", owners, (1,) * len(rids)),
    )
    return RecordedStep(number, rids, calls, [*(7 for _ in rows), *digests], {"a": start})


def test_chunks_of_a_prompt_have_counterparts_that_end_where_they_do() -> None:
    whole = [prefill(1, 20, 9, digests=[1, 2])]
    cut = [prefill(1, 12, digests=[5]), prefill(2, 8, 9, digests=[1, 2], start=12)]
    assert list(by_request(whole, cut)) == list(by_request(cut, whole)) == []
    (found,) = by_request(whole, [cut[0], prefill(2, 8, 9, digests=[3, 2], start=12)])
    assert (found.step, found.owner, found.site) == (2, "a", "target_prefill.logits")


def rows(number: int, start: int, *ids: int) -> RecordedStep:
    """A chunk of a request's prompt, a hash for each row."""
    owners = (0,) * len(ids)
    calls = (
        Descriptor(PREFILL, "int64", owners, (1,) * len(ids)),
        Descriptor("sampler.next_token_ids", "int64", (0,), (1,)),
    )
    return RecordedStep(number, ("a",), calls, [*ids, 100 + start + len(ids)], {"a": start})


def test_rows_of_a_prompt_have_counterparts_at_their_position() -> None:
    whole = [rows(1, 0, *range(10))]
    cached = [rows(1, 4, *range(4, 7)), rows(2, 7, *range(7, 10))]
    assert list(by_request(whole, cached)) == list(by_request(cached, whole)) == []
    assert prompts_of(whole, cached) == (6, 4, 0)
    assert prompts_of(cached, whole) == (6, 0, 4)
    assert prompts_of(whole, [step(1, "a", bonus=[1])]) == (0, 0, 0)
    (found,) = by_request(whole, [cached[0], rows(2, 7, 7, 99, 9)])
    assert (found.step, found.site, found.right and found.right.first_row) == (2, PREFILL, 1)


def test_a_step_may_prefill_one_request_and_decode_another() -> None:
    both = RecordedStep(
        2,
        ("a", "b"),
        (
            Descriptor(PREFILL, "int64", (0,), (2,)),
            Descriptor("draft_extend.logits", "float32", (0,), (1,)),
            Descriptor("draft_extend.logits", "float32", (1,), (1,)),
        ),
        [5, 6, 7],
        {"a": 3},
    )
    alone = Descriptor("draft_extend.logits", "float32", (0,), (1,))
    other = [
        RecordedStep(1, ("b",), (alone,), [7]),
        RecordedStep(2, ("a",), (Descriptor(PREFILL, "int64", (0,), (2,)), alone), [5, 6], {"a": 3}),
    ]
    assert list(by_request([both], other)) == list(by_request(other, [both])) == []
    assert computed_again([both]) == set()
    assert computed_again([RecordedStep(1, ("a",), (alone,), [1]), both]) == {"a"}


def test_a_request_that_is_shown_no_more_is_compared_up_to_there() -> None:
    whole = [step(1, "a", bonus=[1]), step(2, "a", bonus=[2])]
    cut = [dataclasses.replace(whole[0], gone={"a": "was preempted"})]
    assert list(by_request(cut, whole)) == list(by_request(whole, cut)) == []
    _, _, looked = in_common(cut, whole, {}, "engines")
    assert looked.left_out == {"a": "was preempted"}
    assert [found.what for found in by_request(whole[:1], whole)] == ["shape"]


IDS = Descriptor("target_prefill.input_ids", "int64", (0, 1), (2, 2))
LOGITS_CALL = Descriptor("verify.logits", "float32", (0, 1), (1, 1))
SLOTS_CALL = Descriptor("kv_pool.write.loc", "int64", (0, 1), (2, 2))


def steps(*calls: Descriptor, last: int) -> list[RecordedStep]:
    digests = array("Q", range(2 * len(calls)))
    digests[-1] = last
    return [RecordedStep(1, ("a", "b"), calls, digests)]


def test_only_sites_and_requests_of_both_are_compared_and_calls_keep_their_numbers() -> None:
    ours, theirs = steps(IDS, SLOTS_CALL, LOGITS_CALL, last=99), steps(IDS, LOGITS_CALL, last=100)
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
    v1, v2 = decodes((LOGITS_CALL, RAGGED), ()), decodes((LOGITS_CALL, WRITTEN), ())
    unlike = unlike_by_worker(v1, v2)
    assert {(rid, site) for rid, _, _, site, _ in unlike} == {("a", "kv_pool.write.k"), ("b", "kv_pool.write.k")}
    assert not list(by_request(v1, v2, unlike))
    assert [each.site for each in by_request(v1, v2)] == ["kv_pool.write.k"] * 2
    wide = Descriptor("verify.logits", "float32", (0, 1), (2, 2))
    other = decodes((wide, WRITTEN), ())
    assert {each.site for each in by_request(v1, other, unlike_by_worker(v1, other))} == {"verify.logits"}


def test_of_a_request_s_last_step_the_draft_s_extend_is_not_compared() -> None:
    v1, v2 = decodes((EXTENDED,), (EXTENDED,)), decodes((EXTENDED,), (EXTENDED,), first=7)
    assert [each.step for each in by_request(v1, v2, unlike_by_worker(v1, v2))] == [1, 1]


def test_a_step_that_one_worker_alone_made_is_a_difference() -> None:
    v1, v2 = decodes((EXTENDED, RAGGED)), decodes((EXTENDED, WRITTEN), (EXTENDED, WRITTEN))
    found = list(by_request(v1, v2, unlike_by_worker(v1, v2)))
    assert [(each.what, each.step, each.owner) for each in found] == [("shape", 2, "a"), ("shape", 2, "b")]
