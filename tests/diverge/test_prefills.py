"""Prefills of two engines by position: chunks cut anew, what a cache kept, and what only one of them computed."""

from __future__ import annotations

from array import array
from pathlib import Path

import torch

from specdebug.diverge.align import PREFILL, by_request
from specdebug.diverge.prefills import Chunks, Positions, chunks_of, computed_again
from specdebug.diverge.stream import Descriptor, RecordedStep
from specdebug.diverge.tape import TapeRecording
from specdebug.targets.inside.tape import Tape

A = "0123abcd-a"


def taped(path: Path, *chunks: tuple[int, int], total: int = 10, other: int | None = None) -> Path:
    """A request's chunks, each its first position and its tokens, whose ids are their positions. ``other``: a position
    at which the token is another."""
    tape = Tape(str(path))
    for number, (start, rows) in enumerate(chunks, 1):
        tape.begin(number, "prefill", [A], [rows], starts=[start], totals=[total])
        ids = torch.arange(start, start + rows)
        tape.add(PREFILL, torch.where(ids == other, 99, ids) if other is not None else ids)
        tape.add("target_prefill.logits", torch.tensor([[float(start + rows)]]))
        tape.end()
    return path


def recording(path: Path, chunks: Chunks) -> TapeRecording:
    return TapeRecording(path, branches=1, nodes=1, chunks=chunks)


def shown(step: RecordedStep) -> dict[str, int]:
    return {call.site: sum(call.rows) for call in step.calls if call.owners}


def test_a_prompt_is_cut_as_the_other_engine_cut_it(tmp_path: Path) -> None:
    theirs = recording(taped(tmp_path / "x", (0, 4), (4, 6)), {}).steps
    mine = recording(taped(tmp_path / "y", (0, 7), (7, 3)), chunks_of(theirs, whole=True)).steps
    assert [shown(step)[PREFILL] for step in theirs] == [4, 6]
    assert [shown(step) for step in mine] == [{PREFILL: 4}, {PREFILL: 6, "target_prefill.logits": 1}]
    assert list(by_request(theirs, mine)) == []


def test_a_row_that_differs_is_found_at_its_position_whatever_the_cuts(tmp_path: Path) -> None:
    theirs = recording(taped(tmp_path / "x", (0, 4), (4, 6)), {}).steps
    mine = recording(taped(tmp_path / "y", (0, 7), (7, 3), other=8), chunks_of(theirs, whole=True)).steps
    (found,) = by_request(theirs, mine)
    assert (found.site, found.owner) == (PREFILL, "a")
    assert found.left is not None
    assert found.left.step == 2


def test_what_one_engine_had_cached_and_the_other_computed_is_counted_and_not_compared(tmp_path: Path) -> None:
    theirs = recording(taped(tmp_path / "x", (6, 4)), {})
    mine = recording(taped(tmp_path / "y", (0, 7), (7, 3)), chunks_of(theirs.steps, whole=True))
    assert [shown(step) for step in mine.steps] == [{PREFILL: 4, "target_prefill.logits": 1}]
    assert list(by_request(theirs.steps, mine.steps)) == []
    assert mine.positions == {"a": Positions(both=4, other=0, own=6)}

    again = recording(tmp_path / "y", {})
    fewer = recording(taped(tmp_path / "z", (7, 3)), chunks_of(again.steps, whole=True))
    assert [shown(step) for step in fewer.steps] == [{PREFILL: 3, "target_prefill.logits": 1}]
    assert list(by_request(again.steps, fewer.steps)) == []
    assert fewer.positions == {"a": Positions(both=3, other=7, own=0)}


def test_the_end_of_a_chunk_whose_rows_are_not_all_there_is_compared_still(tmp_path: Path) -> None:
    theirs = recording(taped(tmp_path / "x", (0, 10)), {}).steps
    mine = recording(taped(tmp_path / "y", (3, 7)), chunks_of(theirs, whole=True)).steps
    assert [shown(step) for step in mine] == [{"target_prefill.logits": 1}]
    assert list(by_request(theirs, mine)) == []


def decode() -> RecordedStep:
    return RecordedStep(9, ("a",), (Descriptor("verify.input_ids", "int64", (0,), (1,)),), array("Q", [1]))


def test_a_prefill_that_a_run_ended_in_is_not_cut_by(tmp_path: Path) -> None:
    steps = recording(taped(tmp_path / "x", (0, 4), (4, 6)), {}).steps
    assert chunks_of(steps, whole=True) == {"a": (4, 6)}
    assert chunks_of(steps, whole=False) == {}
    assert chunks_of([*steps, decode()], whole=False) == {"a": (4, 6)}


def test_a_request_that_is_computed_again_is_told(tmp_path: Path) -> None:
    first, second = recording(taped(tmp_path / "x", (0, 4), (4, 6)), {}).steps
    assert computed_again([first, second, decode()]) == set()
    assert computed_again([first, decode(), second]) == {"a"}
