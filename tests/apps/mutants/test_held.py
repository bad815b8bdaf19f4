"""A release's tensors are held against the sound engine's tape: what counts as another result, and what as none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from specdebug.apps.mutants.held import HeldRecords
from specdebug.diverge.tape import TapeRecording
from specdebug.targets.inside.tape import Tape, TapeFile

Batches = list[tuple[str, list[str], list[int], list[tuple[str, Tensor]]]]

PROMPT = torch.tensor([5, 6, 7])
LOGITS = torch.arange(10.0).reshape(2, 5)


def batches(*, logits: Tensor = LOGITS, tokens: Tensor | None = None, slots: int = 3) -> Batches:
    """A prefill of two requests, and a step that verifies two nodes of one."""
    return [
        ("prefill", ["a", "b"], [1, 2], [("target_prefill.input_ids", PROMPT)]),
        (
            "speculative",
            ["a"],
            [],
            [
                ("kv_pool.write.loc", torch.tensor([slots, 4])),
                ("verify.input_ids", torch.tensor([8, 9]) if tokens is None else tokens),
                ("verify.logits", logits),
            ],
        ),
    ]


def taped(tape: Tape, some: Batches) -> None:
    for number, (kind, rids, lens, sites) in enumerate(some, 1):
        tape.begin(number, kind, rids, lens)
        for site, tensor in sites:
            tape.add(site, tensor)
        tape.end()
    tape.wait()


@pytest.fixture
def sound(tmp_path: Path) -> TapeRecording:
    taped(Tape(TapeFile(str(tmp_path / "tape"))), batches())
    return TapeRecording(tmp_path / "tape", branches=1, nodes=2)


def held(sound: TapeRecording, some: Batches) -> HeldRecords:
    records = HeldRecords(sound, lambda site: 1e-6)
    taped(Tape(records), some)
    records.end()
    return records


def test_the_same_again_and_other_slots_are_no_other_result(sound: TapeRecording) -> None:
    for same in (batches(), batches(slots=9)):
        assert (held(sound, same).first, held(sound, same).sites) == (None, [])


def test_a_wrong_value_is_named_with_its_request(sound: TapeRecording) -> None:
    found = held(sound, batches(tokens=torch.tensor([8, 10])))
    assert found.first == ("value", 2, "verify.input_ids", "a", "9 in the sound engine, 10 with the mutant")
    assert found.sites == ["verify.input_ids"]
    both = held(sound, batches(tokens=torch.tensor([8, 10]), logits=LOGITS + 1))
    assert both.sites == ["verify.input_ids", "verify.logits"]


def test_rounding_is_told_apart_and_gives_way_to_more(sound: TapeRecording) -> None:
    hair = LOGITS * (1 + 2e-7)
    only = held(sound, batches(logits=hair))
    assert only.first is not None
    assert (only.first[0], only.first[2], only.sites) == ("rounding", "verify.logits", [])
    more = held(sound, [*batches(logits=hair), ("plain", ["a"], [], [])])
    assert more.first == ("end", 3, "", None, "only the mutant has a batch 3")


def test_rows_that_pad_a_batch_decide_nothing(tmp_path: Path) -> None:
    def padded(last: float) -> Batches:
        return [("speculative", ["a"], [], [("draft.forward.logits", torch.tensor([[1.0], [last]]))])]

    taped(Tape(TapeFile(str(tmp_path / "padded"))), padded(0.0))
    sound = TapeRecording(tmp_path / "padded", branches=1, nodes=2)
    assert held(sound, padded(7.0)).first is None


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (batches()[:1], ("end", "only the sound engine has a batch 2")),
        ([batches()[0], ("speculative", ["b"], [], [])], ("schedule", "speculative of a, with the mutant")),
        (
            [batches()[0], (*batches()[1][:3], batches()[1][3][:2])],
            ("schedule", "the sound engine passes verify.logits"),
        ),
        (
            [batches()[0], (*batches()[1][:3], batches()[1][3][1:])],
            ("schedule", "passes kv_pool.write.loc, the mutant"),
        ),
        (batches(logits=LOGITS[:1]), ("shape", "[2, 5] in the sound engine, [1, 5] with the mutant")),
    ],
)
def test_another_course_ends_the_comparison(sound: TapeRecording, other: Batches, what: tuple[str, str]) -> None:
    found = held(sound, other)
    assert found.first is not None
    assert found.first[0] == what[0]
    assert what[1] in found.first[4]
    assert found.failed
