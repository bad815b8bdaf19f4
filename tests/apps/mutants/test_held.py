"""A release's tensors are held against the sound engine's tape: what counts as another result, and what as none."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from specdebug.apps.mutants.held import BatchTape, HeldListener, ReleaseListener, TapedBatch
from specdebug.events import Observers, StepBegan

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


def listened(listener: ReleaseListener, some: Batches) -> None:
    """Have a listener hear of batches, a step each."""
    observers, sites = Observers(), SimpleNamespace(hear=None)
    listener.attach(SimpleNamespace(observers=observers, sites=sites), beside_ours=True)
    for number, (kind, rids, lens, passed) in enumerate(some, 1):
        observers.tell(StepBegan, number)
        with observers.computing(kind, [SimpleNamespace(rid=rid) for rid in rids], tuple(lens)):  # type: ignore[arg-type]
            for site, tensor in passed:
                sites.hear(site, tensor)
    listener.finish()


def taped(path: Path, some: Batches) -> list[TapedBatch]:
    listened(BatchTape(path), some)
    found: list[TapedBatch] = pickle.loads(path.read_bytes())
    return found


@pytest.fixture
def sound(tmp_path: Path) -> list[TapedBatch]:
    return taped(tmp_path / "tape", batches())


def held(sound: list[TapedBatch], some: Batches) -> HeldListener:
    listener = HeldListener(sound, 1, 2, lambda site: 1e-6)
    listened(listener, some)
    return listener


def test_the_same_again_and_other_slots_are_no_other_result(sound: list[TapedBatch]) -> None:
    for same in (batches(), batches(slots=9)):
        assert (held(sound, same).first, held(sound, same).sites) == (None, [])


def test_a_wrong_value_is_named_with_its_request(sound: list[TapedBatch]) -> None:
    found = held(sound, batches(tokens=torch.tensor([8, 10])))
    assert found.first == ("value", 2, "verify.input_ids", "a", "9 in the sound engine, 10 with the mutant")
    assert found.sites == ["verify.input_ids"]
    both = held(sound, batches(tokens=torch.tensor([8, 10]), logits=LOGITS + 1))
    assert both.sites == ["verify.input_ids", "verify.logits"]


def test_rounding_is_told_apart_and_gives_way_to_more(sound: list[TapedBatch]) -> None:
    hair = LOGITS * (1 + 2e-7)
    only = held(sound, batches(logits=hair))
    assert only.first is not None
    assert (only.first[0], only.first[2], only.sites) == ("rounding", "verify.logits", [])
    more = held(sound, [*batches(logits=hair), ("plain", ["a"], [], [])])
    assert more.first == ("end", 3, "", None, "only the mutant has a batch in step 3")


def test_rows_that_pad_a_batch_decide_nothing(tmp_path: Path) -> None:
    def padded(last: float) -> Batches:
        return [("speculative", ["a"], [], [("draft.forward.logits", torch.tensor([[1.0], [last]]))])]

    assert held(taped(tmp_path / "padded", padded(0.0)), padded(7.0)).first is None


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (batches()[:1], ("end", "only the sound engine has a batch in step 2")),
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
def test_another_course_ends_the_comparison(sound: list[TapedBatch], other: Batches, what: tuple[str, str]) -> None:
    found = held(sound, other)
    assert found.first is not None
    assert found.first[0] == what[0]
    assert what[1] in found.first[4]
    assert found.over
