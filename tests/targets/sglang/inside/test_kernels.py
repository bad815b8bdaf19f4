"""SGLang's kernels, allocators and pools under the memory checker: on modules that stand for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specdebug.targets.launch.log import ServerLog

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("kernels run compiled here", allow_module_level=True)

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

    def process_batch_result(self):
        pass
""",
    "mem_cache/memory_pool": """
import torch

class MHATokenToKVPool:
    def __init__(self, size, page_size):
        self.size, self.page_size, self.start_layer = size, page_size, 0
        self.k_buffer = [torch.zeros(size + page_size, 1, 2)]
        self.v_buffer = [torch.zeros(size + page_size, 1, 2)]

    def set_kv_buffer(self, layer, loc, k, v, layer_id_override=None):
        pass

    def move_kv_cache(self, tgt_loc, src_loc):
        pass
""",
    "mem_cache/allocator/token": """
class TokenToKVPoolAllocator:
    page_size = 1

    def free(self, slots):
        pass

    def clear(self):
        pass
""",
    "mem_cache/allocator/paged": """
class PagedTokenToKVPoolAllocator:
    page_size = 4

    def free(self, slots):
        pass

    def free_page_ids(self, pages):
        pass

    def clear(self):
        pass
""",
}
BEGIN = """
import torch
from types import SimpleNamespace
from specdebug.targets.sglang.inside.attention import tell_read
from specdebug.targets.sglang.inside.kernels import watch_kernels
launches = watch_kernels([{"glob": "*", "mode": "record", "kinds": ["oob", "unwritten"]}])
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator as Paged
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator as Token
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
scheduler, pool, layer = Scheduler(), MHATokenToKVPool(16, 4), SimpleNamespace(layer_id=0)
longs = lambda *values: torch.tensor(values)

def read(*slots):
    tell_read("attend", pool.k_buffer[0], pool.v_buffer[0], longs(*slots), 0)
    scheduler.process_batch_result()
"""


def said(folder: Path, text: str) -> tuple[str, list[str]]:
    """What a process prints, and what it tells of findings."""
    for name, module in MODULES.items():
        file = folder / "sglang" / "srt" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(module)
    (folder / "main.py").write_text(BEGIN + text)
    root = Path(__file__).resolve().parents[4]
    env = {"PYTHONPATH": f"{folder}:{root}", "TRITON_INTERPRET": "1", "HOME": str(folder)}
    done = subprocess.run([sys.executable, str(folder / "main.py")], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "@" in line]


def test_what_a_batch_overran_is_told_after_it_with_its_number(tmp_path: Path) -> None:
    out, lines = said(tmp_path, "scheduler.run_batch(4)\nscheduler.run_batch(6)\nprint(launches())\n")
    assert out == "{'kernel.fill': 2}\n"
    [line] = lines
    assert line.startswith("specdebug inside: oob@fill.out : store of program (0, 0, 0) at managers/scheduler.py:9, ")
    assert line.endswith(" [step 2]")
    log = tmp_path / "log"
    log.write_text(f"{line}\n")
    assert [signature for signature, _ in ServerLog(log).findings()] == ["oob@fill.out"]


def test_slots_are_written_by_the_pool_and_forgotten_by_the_allocators(tmp_path: Path) -> None:
    text = """
write = lambda *slots: pool.set_kv_buffer(layer, longs(*slots), None, None)
write(4, 5, 6, 7, 8, 9)
read(0, 4, 5, 9)
Token().free(longs(9))
read(8, 9)
Paged().free(longs(5))
read(4, 8)
write(4)
pool.move_kv_cache(longs(10, 11), longs(4, 7))
read(4, 10)
read(11)
Paged().free_page_ids(longs(2))
read(8)
Paged().clear()
read(4)
"""
    _, lines = said(tmp_path, text)
    told = [line.partition(", ")[2].partition(", ")[2].partition(", ")[2] for line in lines if "attend.k" in line]
    slots = [text.partition(" of KV pool 0's k_buffer[0]")[0] for text in told]
    assert slots == ["slot 9", "slot 4", "slot 11", "slot 8", "slot 4"]
    assert len([line for line in lines if "attend.v" in line]) == 5


def test_writes_of_newer_releases_name_their_slots_in_an_object(tmp_path: Path) -> None:
    written = "pool.set_kv_buffer(None, SimpleNamespace(loc=longs(4)), None, None, layer_id_override=0)\n"
    _, lines = said(tmp_path, f"{written}read(4)\nread(5)\n")
    assert ["slot 5" in line for line in lines] == [True, True]
