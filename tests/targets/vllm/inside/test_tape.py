"""The tape of vLLM's steps: drafts beside the verify that they are for, and requests that have no counterpart."""

from __future__ import annotations

from pathlib import Path

import torch

from specdebug.diverge.recording import RecordedStep
from specdebug.diverge.rounding import kept
from specdebug.diverge.tape import TapeRecording
from specdebug.targets.inside.tape import Tape, TapeFile
from specdebug.targets.vllm.inside.boundaries import Boundaries
from specdebug.targets.vllm.inside.tape import StepTape
from tests.targets.vllm.inside.fake_runner import Runner

A, B = "a", "b"


def taped(path: Path) -> Runner:
    runner = Runner()
    Boundaries(runner, [StepTape(Tape(TapeFile(str(path))), 3)])
    return runner


def recording(path: Path) -> TapeRecording:
    return TapeRecording(path, branches=1, nodes=4)


def sites(step: RecordedStep) -> list[str]:
    return [call.site for call in step.calls]


def values(found: TapeRecording, step: RecordedStep, site: str, folder: Path, nth: int = 0) -> list[float]:
    place = [n for n, call in enumerate(step.calls) if call.site == site][nth]
    found.keep([(step.number, place)], folder)
    rows = kept(folder, (step.number, place))
    assert rows is not None
    return list(rows.reshape(-1).tolist())


def test_what_is_drafted_is_written_with_the_step_that_verifies_it_in_the_order_of_our_engine(tmp_path: Path) -> None:
    runner = taped(tmp_path / "t")
    runner.add(A, [1, 2, 3])
    runner.step(**{A: 3})
    runner.step(**{A: 4})
    found = recording(tmp_path / "t")
    prefill, decode = found.steps
    assert sites(prefill)[0] == "target_prefill.input_ids"
    assert not any(site.startswith("draft.") for site in sites(prefill))
    assert sites(decode) == [
        "draft.bonus",
        *["draft.forward.positions", "draft.forward.input_ids", "draft.forward.logits"] * 2,
        "verify.input_ids",
        "verify.logits",
        "verify.hidden_states",
        "accept.predict",
        "accept.num_correct_drafts",
        "draft_extend.features",
        "draft_extend.input_ids",
        "draft_extend.logits",
        "draft_extend.topk_index",
    ]
    assert values(found, decode, "draft.bonus", tmp_path) == [4]
    assert values(found, decode, "draft.forward.positions", tmp_path, 1) == [4]
    assert values(found, decode, "verify.input_ids", tmp_path) == [4, 5, 6, 7]
    assert {part.owner for part in decode.parts()} == {"a"}


def test_rejected_tokens_are_zeros_as_ours_are(tmp_path: Path) -> None:
    runner = taped(tmp_path / "t")
    runner.add(A, [1, 2, 3])
    runner.step(**{A: 3})
    runner.drafts[A] = [5, 9, 9]
    runner.step(**{A: 4})
    found = recording(tmp_path / "t")
    decode = found.steps[-1]
    assert values(found, decode, "accept.predict", tmp_path) == [5, 6, 0, 0]
    assert values(found, decode, "draft_extend.input_ids", tmp_path) == [5, 6, 0, 0]
    assert values(found, decode, "draft_extend.features", tmp_path) == [4, 5, 9, 9]


def test_requests_without_counterparts_are_left_out_from_there_and_why_is_said(tmp_path: Path) -> None:
    runner = taped(tmp_path / "t")
    runner.add(A, [1, 2, 3])
    runner.add(B, [1, 2])
    runner.step(**{A: 3, B: 2})
    runner.step(**{A: 3, B: 4})  # a has room for two drafts
    runner.step(**{A: 4, B: 4})
    runner.computed[B] = 0  # b was preempted
    runner.step(**{B: 2})
    found = recording(tmp_path / "t")
    assert [step.rids for step in found.steps] == [("a",), ("b",), ("b",), ("b",)]
    assert found.left_out == {
        "a": "had fewer drafts to verify there than a chain has",
        "b": "was preempted there, and computed again",
    }
    undrafted = taped(tmp_path / "u")
    undrafted.add(A, [1, 2, 3])
    undrafted.drafter.propose = lambda **_: torch.zeros(1, 3, dtype=torch.int32)  # type: ignore[method-assign]
    undrafted.step(**{A: 3})
    undrafted.step(**{A: 4})
    found = recording(tmp_path / "u")
    assert len(found.steps) == 1
    assert found.left_out == {"a": "was not drafted for there, so near to the end of its context"}
