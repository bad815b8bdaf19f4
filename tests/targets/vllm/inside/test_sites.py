"""What passes vLLM's stages, for recorders: as it passes, or drafts beside the verify that they are for."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from specdebug.events import BatchBegan, BatchEnded, Event, Observers, ShownNoMore
from specdebug.targets.vllm.inside.boundaries import Boundaries
from specdebug.targets.vllm.inside.sites import StepSites, StepSitesInOrder
from tests.targets.vllm.inside.fake_runner import Runner

A, B = "a", "b"


@dataclass
class Told:
    """A batch that a recorder was told of, and what passed in it."""

    batch: BatchBegan
    sites: list[str] = field(default_factory=list)
    values: list[list[Any]] = field(default_factory=list)

    @property
    def rids(self) -> tuple[str, ...]:
        return tuple(each.rid for each in self.batch.requests)

    def at(self, site: str, nth: int = 0) -> list[Any]:
        return self.values[[n for n, each in enumerate(self.sites) if each == site][nth]]


class Recorder:
    hears = (BatchBegan, BatchEnded, ShownNoMore)

    def __init__(self) -> None:
        self.batches: list[Told] = []
        self.left_out: dict[str, str] = {}

    def on(self, event: Event) -> None:
        match event:
            case BatchBegan():
                self.batches.append(Told(event))
            case ShownNoMore(rid, why):
                self.left_out[rid] = why

    def hear(self, site: str, tensor: torch.Tensor) -> None:
        self.batches[-1].sites.append(site)
        self.batches[-1].values.append(tensor.reshape(-1).tolist())


def recorded(kind: type[StepSites] = StepSitesInOrder) -> tuple[Runner, Recorder]:
    runner, recorder, observers = Runner(), Recorder(), Observers()
    observers.add(recorder)
    sites = kind(lambda rid: SimpleNamespace(rid=rid), observers, 3)  # type: ignore[arg-type, return-value]
    sites.hear = recorder.hear
    Boundaries(runner, [sites])
    return runner, recorder


def test_what_is_drafted_is_written_with_the_step_that_verifies_it_in_the_order_of_our_engine() -> None:
    runner, recorder = recorded()
    runner.add(A, [1, 2, 3])
    runner.step(**{A: 3})
    runner.step(**{A: 4})
    prefill, decode = recorder.batches
    assert (prefill.batch.kind, prefill.batch.lens, prefill.batch.starts) == ("prefill", (3,), (0,))
    assert prefill.sites[0] == "target_prefill.input_ids"
    assert not any(site.startswith("draft.") for site in prefill.sites)
    assert decode.batch.kind == "speculative"
    assert decode.sites == [
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
    assert decode.at("draft.bonus") == [4]
    assert decode.at("draft.forward.positions", 1) == [4]
    assert decode.at("verify.input_ids") == [4, 5, 6, 7]
    assert decode.rids == ("a",)


def test_rejected_tokens_are_zeros_as_ours_are() -> None:
    runner, recorder = recorded()
    runner.add(A, [1, 2, 3])
    runner.step(**{A: 3})
    runner.drafts[A] = [5, 9, 9]
    runner.step(**{A: 4})
    decode = recorder.batches[-1]
    assert decode.at("accept.predict") == [5, 6, 0, 0]
    assert decode.at("draft_extend.input_ids") == [5, 6, 0, 0]
    assert decode.at("draft_extend.features") == [4, 5, 9, 9]


def test_requests_without_counterparts_are_left_out_from_there_and_why_is_said() -> None:
    runner, recorder = recorded()
    runner.add(A, [1, 2, 3])
    runner.add(B, [1, 2])
    runner.step(**{A: 3, B: 2})
    runner.step(**{A: 3, B: 4})  # a has room for two drafts
    runner.step(**{A: 4, B: 4})
    runner.computed[B] = 0  # b was preempted
    runner.step(**{B: 2})
    assert [batch.rids for batch in recorder.batches] == [("a", "b"), ("b",), ("b",)]
    assert recorder.left_out == {
        "a": "had fewer drafts to verify there than a chain has",
        "b": "was preempted there, and computed again",
    }
    undrafted, recorder = recorded()
    undrafted.add(A, [1, 2, 3])
    undrafted.drafter.propose = lambda **_: torch.zeros(1, 3, dtype=torch.int32)  # type: ignore[method-assign]
    undrafted.step(**{A: 3})
    undrafted.step(**{A: 4})
    assert len(recorder.batches) == 1
    assert recorder.left_out == {"a": "was not drafted for there, so near to the end of its context"}


def test_beside_the_same_engine_all_is_told_as_it_passes() -> None:
    runner, recorder = recorded(StepSites)
    runner.add(A, [1, 2, 3])
    runner.add(B, [1, 2])
    runner.step(**{A: 3})
    first = [site for batch in recorder.batches for site in batch.sites]
    assert first[0] == "kv_pool.write.loc"
    assert first.index("sampler.next_token_ids") < first.index("draft.bonus") < first.index("draft.forward.logits")
    recorder.batches.clear()
    runner.step(**{A: 3, B: 2})  # a has room for two drafts, and is shown all the same
    kinds = {(batch.batch.kind, batch.rids) for batch in recorder.batches}
    assert kinds == {("speculative", ("a",)), ("prefill", ("b",))}
    assert recorder.left_out == {}
