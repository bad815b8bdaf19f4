"""SGLang's graph runners under the memory checker: which buffers they have, and when a replay begins and ends."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from specdebug.kernel_memory.rules import KernelRule
from specdebug.kernel_memory.watch import Watch
from specdebug.targets.inside.guard import EngineLook
from specdebug.targets.sglang.inside import graphs, kernel_reads
from specdebug.targets.sglang.inside.graph_buffers import Leftovers, ReplayPhases, shadow_graph_buffers, static_buffers
from specdebug.targets.sglang.inside.seats import Seat
from tests.targets.sglang.inside.engine import imported
from tests.targets.sglang.inside.launching import decode

POOL = torch.zeros(4, 8, dtype=torch.int32)


@dataclass
class Proxy:
    hidden: Tensor


class Runner:
    """A runner for two requests of two tokens, which reads all its positions and fills those of the batch."""

    max_bs = 2

    def __init__(self) -> None:
        inner = SimpleNamespace(kv_indptr=torch.zeros(3, dtype=torch.int32), req_to_token=POOL)
        backend = SimpleNamespace(
            attn_backends=[inner], cuda_graph_custom_mask=torch.zeros(4, dtype=torch.uint8), req_to_token=POOL,
            workspace_buffer=torch.zeros(4, dtype=torch.uint8), cuda_graph_attn_lse=torch.zeros(2),
            cuda_graph_kv_indices=[torch.zeros(4, dtype=torch.int32)], decode={"page_table": torch.zeros(2), 4: None},
            verify={"page_table": torch.zeros(2, dtype=torch.int32)}, max_context_len=8,
        )  # fmt: skip
        self.model_runner = SimpleNamespace(attn_backend=backend, req_to_token_pool=SimpleNamespace(req_to_token=POOL))
        self.buffers = SimpleNamespace(
            positions=torch.zeros(4, dtype=torch.int64), input_ids=torch.zeros(4, dtype=torch.int64),
            pp=Proxy(torch.zeros(2)), embeds=None,
        )  # fmt: skip

    def prepare(self, batch: Any) -> None:
        self.buffers.positions[: 2 * batch.batch_size] = 5

    def replay(self, batch: Any) -> Tensor:
        if batch.prepare:
            self.prepare(batch)
        return self.buffers.positions + 1


def batch(size: int, *, prepare: bool = True) -> SimpleNamespace:
    return SimpleNamespace(batch_size=size, prepare=prepare)


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> tuple[Watch, Any]:
    """A runner of a class of its own, whose methods are wrapped, in the first batch."""
    watch = Watch([KernelRule("*")])
    kind: Any = type("Mine", (Runner,), dict(vars(Runner)))
    imported(monkeypatch, {"mine": {"Mine": kind}})
    prepare, replay = (Seat("", (f"srt.mine:Mine.{name}",)) for name in ("prepare", "replay"))
    ReplayPhases(watch, EngineLook("")).follow("draft", prepare, replay)
    runner = kind()
    for name, tensor, ahead in static_buffers(runner):
        watch.static.add(name, tensor, ahead=ahead)
    watch.static.batch(1)
    return watch, runner


def test_the_buffers_of_a_runner_and_its_backends_are_found_by_name() -> None:
    found = {name: ahead for name, _, ahead in static_buffers(Runner())}
    assert found == {
        "positions": False, "input_ids": False, "pp.hidden": False, "cuda_graph_custom_mask": True,
        "cuda_graph_kv_indices": False, "verify.page_table": False, "kv_indptr": False,
    }  # fmt: skip


def test_rows_of_padding_that_were_not_cleared_are_told(followed: tuple[Watch, Any]) -> None:
    watch, runner = followed
    with watch.operations:
        runner.replay(batch(2))
        assert watch.poll() == []
        runner.replay(batch(1))
    [found] = watch.poll()
    assert (found.signature, found.count) == ("stale@draft.positions", 2)
    assert not watch.static.replaying


def test_a_preparation_whose_replay_never_came_is_an_earlier_one(followed: tuple[Watch, Any]) -> None:
    watch, runner = followed
    with watch.operations:
        runner.prepare(batch(2))
        runner.prepare(batch(1))
        runner.replay(batch(1, prepare=False))
    assert [found.count for found in watch.poll()] == [2]


def test_what_may_be_left_over_begins_with_the_rows_of_padding() -> None:
    runner = Runner()
    target, draft = Leftovers("target", runner, 1), Leftovers("draft", runner, 1)
    assert (target("input_ids"), target("cuda_graph_kv_indices"), draft("input_ids")) == (2, None, None)
    assert Leftovers("target", runner, 2)("input_ids") == 4


HOMES = {
    "0.5.13": ("model_executor.cuda_graph_runner", "CudaGraphRunner", "replay_prepare", "replay"),
    "0.5.23": ("model_executor.runner.decode_cuda_graph_runner", "DecodeCudaGraphRunner", "load_batch", "execute"),
}
"""By release, where the target's runner is and what it is called."""


class Scheduler:
    def run_batch(self, act: Any) -> Any:
        return act()


@pytest.mark.parametrize("release", HOMES)
def test_batches_of_a_scheduler_are_followed_from_the_first_capture_on(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, name, prepare, replay = HOMES[release]
    kind: Any = type("Mine", (Runner,), {prepare: Runner.prepare, replay: Runner.replay})
    drafts: Any = type("Draft", (), {replay: Runner.replay})
    modules = {
        "managers.scheduler": {"Scheduler": type("Mine", (Scheduler,), {"run_batch": Scheduler.run_batch})},
        home: {name: kind},
        "speculative.eagle_draft_cuda_graph_runner": {"EAGLEDraftCudaGraphRunner": drafts},
        "speculative.eagle_draft_extend_cuda_graph_runner": {"EAGLEDraftExtendCudaGraphRunner": drafts},
    }
    imported(monkeypatch, modules)
    monkeypatch.setattr(graphs, "_captured", [])
    monkeypatch.setattr(kernel_reads, "_listeners", [])
    watch = Watch([KernelRule("*")])
    shadow_graph_buffers(watch, EngineLook(""))
    scheduler, runner = modules["managers.scheduler"]["Scheduler"](), kind()
    for told in graphs._captured:
        told(runner)
    indices = runner.model_runner.attn_backend.cuda_graph_kv_indices[0]
    q, o, kv = torch.zeros(2, 1, 2), torch.zeros(2, 1, 2), torch.zeros(8, 1, 2)

    def attend(batch: Any) -> None:
        indices[: batch.batch_size] = 3
        ends = torch.tensor([0, 1, 2], dtype=torch.int32)
        decode(q, kv, kv, o, ends, indices, 1.0)

    monkeypatch.setattr(Runner, "prepare", lambda self, batch: attend(batch))
    for size in (2, 1):
        scheduler.run_batch(lambda size=size: getattr(runner, replay)(batch(size)))
    [found] = watch.poll()
    assert (found.signature, found.count) == ("stale@decode_attention_fwd.kv_indices", 1)
    assert found.access.program == (1, 0, 0)
    assert found.words.endswith("in target's replay in batch 2, last written by target's replay in batch 1")
