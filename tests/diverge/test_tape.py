"""Prefills of two engines by position: chunks cut anew, what a cache kept, and what only one of them computed."""

from __future__ import annotations

from array import array
from pathlib import Path

import torch

from specdebug.async_probe import SiteCall
from specdebug.diverge.align import PREFILL, by_request
from specdebug.diverge.hashes import Groups, reference
from specdebug.diverge.recording import PADDING, Descriptor, Layout, RecordedStep
from specdebug.diverge.tape import Chunks, Positions, TapeRecording, chunks_of, computed_again
from specdebug.targets.inside.tape import Tape, TapeFile

A, B = "a", "b"


def taped(path: Path, *chunks: tuple[int, int], total: int = 10, other: int | None = None) -> Path:
    """A request's chunks, each its first position and its tokens, whose ids are their positions. ``other``: a position
    at which the token is another."""
    tape = Tape(TapeFile(str(path)))
    for number, (start, rows) in enumerate(chunks, 1):
        tape.begin(number, "prefill", [A], [rows], starts=[start], totals=[total])
        ids = torch.arange(start, start + rows)
        tape.add(PREFILL, torch.where(ids == other, 99, ids) if other is not None else ids)
        tape.add("target_prefill.logits", torch.tensor([[float(start + rows)]]))
        tape.end()
    return path


def recording(path: Path, chunks: Chunks | None = None) -> TapeRecording:
    return TapeRecording(path, branches=1, nodes=2, as_in={"accept.accept_index": "int64"}, chunks=chunks)


def shown(step: RecordedStep) -> dict[str, int]:
    return {call.site: sum(call.rows) for call in step.calls if call.owners}


def test_a_prompt_is_cut_as_the_other_engine_cut_it(tmp_path: Path) -> None:
    theirs = recording(taped(tmp_path / "x", (0, 4), (4, 6))).steps
    mine = recording(taped(tmp_path / "y", (0, 7), (7, 3)), chunks_of(theirs, whole=True)).steps
    assert [shown(step)[PREFILL] for step in theirs] == [4, 6]
    assert [shown(step) for step in mine] == [{PREFILL: 4}, {PREFILL: 6, "target_prefill.logits": 1}]
    assert list(by_request(theirs, mine)) == []


def test_what_one_engine_had_cached_and_the_other_computed_is_counted_and_not_compared(tmp_path: Path) -> None:
    theirs = recording(taped(tmp_path / "x", (6, 4)))
    mine = recording(taped(tmp_path / "y", (0, 7), (7, 3)), chunks_of(theirs.steps, whole=True))
    assert [shown(step) for step in mine.steps] == [{PREFILL: 4, "target_prefill.logits": 1}]
    assert list(by_request(theirs.steps, mine.steps)) == []
    assert mine.positions == {"a": Positions(both=4, other=0, own=6)}

    again = recording(tmp_path / "y")
    fewer = recording(taped(tmp_path / "z", (7, 3)), chunks_of(again.steps, whole=True))
    assert [shown(step) for step in fewer.steps] == [{PREFILL: 3, "target_prefill.logits": 1}]
    assert list(by_request(again.steps, fewer.steps)) == []
    assert fewer.positions == {"a": Positions(both=3, other=7, own=0)}


def test_the_end_of_a_chunk_whose_rows_are_not_all_there_is_compared_still(tmp_path: Path) -> None:
    theirs = recording(taped(tmp_path / "x", (0, 10))).steps
    mine = recording(taped(tmp_path / "y", (3, 7)), chunks_of(theirs, whole=True)).steps
    assert [shown(step) for step in mine] == [{"target_prefill.logits": 1}]
    assert list(by_request(theirs, mine)) == []


DECODE = RecordedStep(9, ("a",), (Descriptor("verify.input_ids", "int64", (0,), (1,)),), array("Q", [1]))


def test_a_request_that_is_computed_again_is_told(tmp_path: Path) -> None:
    first, second = recording(taped(tmp_path / "x", (0, 4), (4, 6))).steps
    assert computed_again([first, second, DECODE]) == set()
    assert computed_again([first, DECODE, second]) == {"a"}


A, B = "a", "b"


def batched(path: Path, *, b_first: bool = False) -> Path:
    """Two requests in one batch, in either order, and a step too many of the first."""
    tape = Tape(TapeFile(str(path)))
    order = [B, A] if b_first else [A, B]
    rows = {A: [1.0], B: [3.0]}
    tape.begin(1, "prefill", order, [2 if rid == A else 1 for rid in order])
    ids = {A: [7, 8], B: [9]}
    tape.add("target_prefill.input_ids", torch.tensor([each for rid in order for each in ids[rid]]))
    tape.end()
    for number in (3, 4):
        tape.begin(number, "speculative", order)
        padding = [[0.0]] * 2
        tape.add("draft.forward.logits", torch.tensor([[each] for rid in order for each in rows[rid]] + padding))
        index = torch.tensor([[0, 1], [2, -1]], dtype=torch.int32)
        if b_first:
            index = torch.tensor([[0, -1], [2, 3]], dtype=torch.int32)
        tape.add("accept.accept_index", index)
        tape.end()
        if number == 3:
            tape.ended(A, 1)
    return path


def test_rows_have_owners_and_equal_shares_have_equal_hashes_whatever_the_order(tmp_path: Path) -> None:
    one, other = (recording(batched(tmp_path / name, b_first=name == "y")).steps for name in "xy")
    assert [step.number for step in one] == [1, 3, 4]
    assert one[0].rids == ("a", "b")
    assert other[0].rids == ("b", "a")
    shares = [
        {(part.descriptor.site, part.owner): part.digest for part in step.parts() if part.owner}
        for step in (one[1], other[1])
    ]
    assert shares[0] == shares[1]
    assert set(shares[0]) == {(site, rid) for site in ("draft.forward.logits", "accept.accept_index") for rid in "ab"}
    assert one[1].calls[1].dtype == "int64"
    assert one[1].calls[0].owners == (0, 1, PADDING)


def test_hashes_are_those_of_a_recording_on_a_device_where_that_is_asked(tmp_path: Path) -> None:
    tape = Tape(TapeFile(str(tmp_path / "x")))
    tape.begin(1, "speculative", [A, B])
    logits = torch.randn(2, 5).to(torch.bfloat16)
    tape.add("draft.forward.logits", logits)
    tape.end()
    (step,) = TapeRecording(tmp_path / "x", branches=1, nodes=2, summed=True).steps
    call = SiteCall("draft.forward.logits", "nan", logits, 0, 0, None, None)
    sums = reference(call, Groups.of(call, apart=True)).numpy().view("u8")
    assert list(step.digests) == Layout([([(0, 0, 1), (1, 1, 2)], 2)]).hashes(sums).tolist()


def test_what_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = batched(tmp_path / "x")
    whole = recording(path).steps
    path.write_bytes(path.read_bytes()[:-5])
    assert len(recording(path).steps[-1].calls) == len(whole[-1].calls) - 1
    assert recording(tmp_path / "none").steps == []
