"""Another engine's recording, read as steps: whose the rows are, what does not count, and the tensors behind."""

from __future__ import annotations

from pathlib import Path

import torch

from specdebug.async_probe import SiteCall
from specdebug.diverge.device_hashes import Groups, reference
from specdebug.diverge.stream import PADDING
from specdebug.diverge.sums import Layout
from specdebug.diverge.tape import TapeRecording
from specdebug.diverge.values import kept
from specdebug.targets.inside.tape import Tape

A, B = "0123abcd-a", "0123abcd-b"


def taped(path: Path, *, b_first: bool = False, slot: int = 0) -> Path:
    """Two requests in one batch, in either order, and a step too many of the first; the engine's own check between."""
    tape = Tape(str(path))
    order = [B, A] if b_first else [A, B]
    rows = {A: [1.0], B: [3.0]}
    tape.begin(1, "prefill", order, [2 if rid == A else 1 for rid in order])
    ids = {A: [7, 8], B: [9]}
    tape.add("target_prefill.input_ids", torch.tensor([each for rid in order for each in ids[rid]]))
    tape.end()
    tape.begin(2, "prefill", ["HEALTH_CHECK"], [1])
    tape.add("target_prefill.input_ids", torch.tensor([1]))
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


def recording(path: Path) -> TapeRecording:
    return TapeRecording(path, branches=1, nodes=2, as_in={"accept.accept_index": "int64"})


def test_rows_have_owners_and_equal_shares_have_equal_hashes_whatever_the_order(tmp_path: Path) -> None:
    one, other = (recording(taped(tmp_path / name, b_first=name == "y")).steps for name in "xy")
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
    tape = Tape(str(tmp_path / "x"))
    tape.begin(1, "speculative", [A, B])
    logits = torch.randn(2, 5).to(torch.bfloat16)
    tape.add("draft.forward.logits", logits)
    tape.end()
    (step,) = TapeRecording(tmp_path / "x", branches=1, nodes=2, summed=True).steps
    call = SiteCall("draft.forward.logits", "nan", logits, 0, 0, None, None)
    sums = reference(call, Groups.of(call, apart=True)).numpy().view("u8")
    assert list(step.digests) == Layout([([(0, 0, 1), (1, 1, 2)], 2)]).hashes(sums).tolist()


def test_a_step_after_a_requests_end_does_not_count(tmp_path: Path) -> None:
    last = recording(taped(tmp_path / "x")).steps[-1]
    assert {part.owner for part in last.parts()} == {"b", None}


def test_what_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = taped(tmp_path / "x")
    whole = recording(path).steps
    path.write_bytes(path.read_bytes()[:-5])
    assert len(recording(path).steps[-1].calls) == len(whole[-1].calls) - 1
    assert recording(tmp_path / "none").steps == []


def test_tensors_are_found_by_step_and_call(tmp_path: Path) -> None:
    found = recording(taped(tmp_path / "x"))
    found.keep([(3, 0)], tmp_path)
    values = kept(tmp_path, (3, 0))
    assert values is not None
    assert values.reshape(-1).tolist() == [1.0, 3.0, 0.0, 0.0]
