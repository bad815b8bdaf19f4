"""SGLang under the memory checker: the buffers and replays of its graph runners, its kernels, allocators and pools."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from specdebug.kernel_memory.finding import KernelRule
from specdebug.kernel_memory.watch import Watch
from specdebug.targets.inside.guard import EngineLook
from specdebug.targets.sglang.inside import graphs, launches
from specdebug.targets.sglang.inside.memory import ReplayPhases, shadow_graph_buffers, static_buffers
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
def follow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Wraps the methods of a runner of a class of its own, which stands for some runner, in the first batch."""

    def followed(name: str) -> tuple[Watch, Any]:
        watch = Watch([KernelRule("*")])
        kind: Any = type("Mine", (Runner,), dict(vars(Runner)))
        imported(monkeypatch, {"mine": {"Mine": kind}})
        prepare, replay = (Seat("", (f"srt.mine:Mine.{each}",)) for each in ("prepare", "replay"))
        ReplayPhases(watch, EngineLook("")).follow(name, prepare, replay)
        runner = kind()
        for buffer, tensor, ahead in static_buffers(runner):
            watch.static.add(buffer, tensor, ahead=ahead)
        watch.static.batch(1)
        return watch, runner

    return followed


def test_the_buffers_of_a_runner_and_its_backends_are_found_by_name() -> None:
    found = {name: ahead for name, _, ahead in static_buffers(Runner())}
    assert found == {
        "positions": False, "input_ids": False, "pp.hidden": False, "cuda_graph_custom_mask": True,
        "cuda_graph_kv_indices": False, "verify.page_table": False, "kv_indptr": False,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "stale"), [("draft", 2), ("target", 0)])
def test_rows_of_padding_that_were_not_cleared_are_told_unless_they_come_to_nothing(
    name: str, stale: int, follow: Any
) -> None:
    watch, runner = follow(name)
    with watch.operations:
        runner.replay(batch(2))
        assert watch.poll() == []
        runner.replay(batch(1))
    assert [(found.signature, found.count) for found in watch.poll()] == [("stale@draft.positions", stale)] * bool(
        stale
    )
    assert not watch.static.replaying


def test_a_preparation_apart_belongs_to_the_replay_that_follows(follow: Any) -> None:
    watch, runner = follow("draft")
    with watch.operations:
        runner.prepare(batch(2))
        assert watch.static.replaying
        runner.replay(batch(2, prepare=False))
        assert watch.poll() == []
        runner.replay(batch(2, prepare=False))
        assert [found.count for found in watch.poll()] == [4]
        runner.prepare(batch(2))  # one whose replay never comes
        runner.prepare(batch(1))
        runner.replay(batch(1, prepare=False))
    assert [found.count for found in watch.poll()] == [2]


HOMES = {
    "0.5.13": ("model_executor.cuda_graph_runner", "CudaGraphRunner", "replay_prepare", "replay"),
    "0.5.23": ("model_executor.runner.decode_cuda_graph_runner", "DecodeCudaGraphRunner", "load_batch", "execute"),
}
"""By release, where the target's runner is and what it is called."""


@pytest.mark.parametrize("release", HOMES)
def test_batches_of_a_scheduler_are_followed_from_the_first_capture_on(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, name, prepare, replay = HOMES[release]
    kind: Any = type("Mine", (Runner,), {prepare: Runner.prepare, replay: Runner.replay})
    drafts: Any = type("Draft", (), {replay: Runner.replay})
    modules = {
        "managers.scheduler": {"Scheduler": type("Mine", (), {"run_batch": lambda self, act: act()})},
        home: {name: kind},
        "speculative.eagle_draft_cuda_graph_runner": {"EAGLEDraftCudaGraphRunner": drafts},
        "speculative.eagle_draft_extend_cuda_graph_runner": {"EAGLEDraftExtendCudaGraphRunner": drafts},
    }
    imported(monkeypatch, modules)
    monkeypatch.setattr(graphs, "_captured", [])
    monkeypatch.setattr(launches, "_listeners", [])
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


MODULES = {
    "managers/scheduler": """
import torch
import triton
import triton.language as tl

@triton.jit
def fill(out, count, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, 1, mask=at < count)

class Scheduler:
    def run_batch(self, count):
        fill[(1,)](torch.zeros(4, dtype=torch.int32), count, BLOCK=8)
""",
    "mem_cache/memory_pool": """
import torch

class MHATokenToKVPool:
    def __init__(self, size, page_size):
        self.size, self.page_size, self.start_layer = size, page_size, 0
        self.k_buffer = [torch.zeros(size + page_size, 1, 2)]
        self.v_buffer = [torch.zeros(size + page_size, 1, 2)]

    def set_kv_buffer(self, layer, loc, k, v, layer_id_override=None): ...
    def move_kv_cache(self, tgt_loc, src_loc): ...
""",
    "mem_cache/allocator/token": """
class TokenToKVPoolAllocator:
    page_size = 1

    def free(self, slots): ...
    def clear(self): ...
""",
    "mem_cache/allocator/paged": """
class PagedTokenToKVPoolAllocator:
    page_size = 4

    def free(self, slots): ...
    def free_page_ids(self, pages): ...
    def clear(self): ...
""",
}
BEGIN = """
import torch
from types import SimpleNamespace
from specdebug import kernel_memory
from specdebug.kernel_memory.finding import KernelRule
from specdebug.targets.sglang.inside.attention import tell_read
from specdebug.targets.sglang.inside.memory import watch_kernels
watch_kernels([KernelRule("*", "record", ("oob", "unwritten"))])
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator as Paged
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator as Token
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
scheduler, pool, layer = Scheduler(), MHATokenToKVPool(16, 4), SimpleNamespace(layer_id=0)
longs = lambda *values: torch.tensor(values)

def read(*slots):
    tell_read("attend", pool.k_buffer[0], pool.v_buffer[0], longs(*slots), 0)
    show()

def show():
    for finding in kernel_memory.poll():
        print(finding.message())
"""
compiled_here = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run compiled here")


def said(folder: Path, text: str) -> list[str]:
    """The lines that a process prints."""
    for name, module in MODULES.items():
        file = folder / "sglang" / "srt" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(module)
    (folder / "main.py").write_text(BEGIN + text)
    root = Path(__file__).resolve().parents[4]
    env = {"PYTHONPATH": f"{folder}:{root}", "TRITON_INTERPRET": "1", "HOME": str(folder)}
    done = subprocess.run([sys.executable, str(folder / "main.py")], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@compiled_here
def test_what_a_batch_overran_is_found_with_its_place(tmp_path: Path) -> None:
    run = "scheduler.run_batch(4)\nshow()\nscheduler.run_batch(6)\nshow()\nprint(kernel_memory.launches())\n"
    line, launches = said(tmp_path, run)
    assert line.startswith("oob@fill.out : store of program (0, 0, 0) at managers/scheduler.py:9, ")
    assert launches == "{'kernel.fill': 2}"


@compiled_here
def test_slots_are_written_by_the_pool_and_forgotten_by_the_allocators(tmp_path: Path) -> None:
    text = """
write = lambda *slots: pool.set_kv_buffer(layer, longs(*slots), None, None)
write(4, 5, 6, 7, 8, 9)
read(0, 4, 5, 9)
Token().free(longs(9))
read(8, 9)
Paged().free(longs(5))
read(4, 8)
pool.set_kv_buffer(None, SimpleNamespace(loc=longs(4)), None, None, layer_id_override=0)  # as newer releases do
pool.move_kv_cache(longs(10, 11), longs(4, 7))
read(4, 10)
read(11)
Paged().free_page_ids(longs(2))
read(8)
Paged().clear()
read(4)
"""
    lines = said(tmp_path, text)
    told = [line.partition(", ")[2].partition(", ")[2].partition(", ")[2] for line in lines if "attend.k" in line]
    slots = [text.partition(" of KV pool 0's k_buffer[0]")[0] for text in told]
    assert slots == ["slot 9", "slot 4", "slot 11", "slot 8", "slot 4"]
    assert len([line for line in lines if "attend.v" in line]) == 5
