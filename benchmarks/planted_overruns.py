"""Overruns planted in SGLang's metadata kernels by wrong arguments, and what the memory checker says of each.

    python benchmarks/planted_overruns.py sglang==0.5.13 [--json]

Each kernel is launched twice in the environment of an installed release: as it should be, of which nothing may be told,
and with one argument that is too short or leads astray.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

HOMES = (
    {
        "cache_locs": "sglang.srt.speculative.triton_ops.cache_locs",
        "eagle": "sglang.srt.speculative.triton_ops.eagle",
        "common": "sglang.srt.mem_cache.triton_ops.common",
        "cache_move": "sglang.srt.mem_cache.triton_ops.cache_move",
        "allocator": "sglang.srt.mem_cache.triton_ops.allocator",
        "decode": "sglang.srt.layers.attention.triton_ops.decode_attention",
        "kv_indices": "sglang.srt.layers.attention.triton_ops.kv_indices",
        "position": "sglang.srt.model_executor.triton_ops.position",
    },
    {
        "cache_locs": "sglang.kernels.ops.speculative.cache_locs",
        "eagle": "sglang.kernels.ops.speculative.eagle",
        "common": "sglang.kernels.ops.memory.common",
        "cache_move": "sglang.kernels.ops.kvcache.cache_move",
        "allocator": "sglang.kernels.ops.memory.allocator",
        "decode": "sglang.kernels.ops.attention.decode_attention",
        "kv_indices": "sglang.kernels.ops.attention.kv_indices",
        "position": "sglang.kernels.ops.attention.position",
    },
)
"""Where releases have their kernels."""
TABLE = (4, 16)
"""Rows and cells of ``req_to_token``."""


@dataclass(frozen=True)
class Planted:
    """An overrun. ``launch`` is called with True for the planted one; ``argument``: what must be named."""

    home: str
    kernel: str
    what: str
    argument: str
    launch: Callable[[Any, bool], None]
    kind: str = "oob"

    @property
    def expected(self) -> str:
        return f"{self.kind}@{self.kernel}.{self.argument}"


def longs(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def table() -> torch.Tensor:
    return torch.arange(TABLE[0] * TABLE[1], dtype=torch.int32).view(TABLE)


def draft_kv_indices(kernel: Any, planted: bool) -> None:
    indices = torch.zeros(3, 20 if planted else 40, dtype=torch.int32)
    indptr, positions = torch.zeros(3, 5, dtype=torch.int32), longs(5, 5, 6, 6)
    kernel[(3, 2, 2)](
        longs(1, 2), table(), longs(5, 6), indices, indptr, positions, TABLE[1], indices.shape[1], 5, 2, 4, 4, 1
    )


def kv_indices(kernel: Any, planted: bool) -> None:
    ends = torch.tensor([0, 5, 11], dtype=torch.int32)
    out = torch.zeros(8 if planted else 11, dtype=torch.int32)
    kernel[(2,)](table(), longs(1, 2), longs(5, 6), ends, None, out, TABLE[1])


def draft_cache_locs(kernel: Any, planted: bool) -> None:
    kernel[(2,)](longs(1, 2), table(), longs(4, 13 if planted else 10), torch.zeros(12).long(), TABLE[1], 2, 3)


def extend_cache_locs(kernel: Any, planted: bool) -> None:
    out = torch.zeros(5 if planted else 7).long()
    kernel[(2,)](longs(1, 2), table(), longs(3, 4), longs(6, 8), out, TABLE[1], 2)


def write_rows(kernel: Any, planted: bool) -> None:
    prefix, end = longs(7, 8), 18 if planted else 16
    pointers = torch.tensor([prefix.data_ptr()] * 2, dtype=torch.uint64)
    kernel[(2,)](
        table(), longs(1, 2), pointers, longs(2, 2), longs(6, end), longs(4, end - 2), torch.zeros(20).long(), TABLE[1]
    )


def write_prefix(kernel: Any, planted: bool) -> None:
    prefix, length = longs(7, 8), 3 if planted else 2
    pointers = torch.tensor([prefix.data_ptr()] * 2, dtype=torch.uint64)
    kernel[(2,)](
        table(), longs(1, 2), pointers, longs(2, length), longs(6, 6), longs(4, 6 - length), torch.zeros(8).long(),
        TABLE[1],
    )  # fmt: skip


def last_loc(kernel: Any, planted: bool) -> None:
    kernel[(1,)](table(), longs(1, 4 if planted else 3), longs(5, 6), torch.zeros(2).long(), 2, TABLE[1], 256)


def move_kv(kernel: Any, planted: bool) -> None:
    layers = [torch.zeros(8, 4) for _ in range(4)]
    pointers = torch.tensor([each.data_ptr() for each in layers], dtype=torch.uint64)
    kernel[(4, 1)](pointers, longs(16, 16, 16, 16), longs(2, 8 if planted else 7), longs(3, 4), 2, 2, BYTES_PER_TILE=16)


def evict_mask(kernel: Any, planted: bool) -> None:
    kernel[(2,)](longs(5, 7), torch.ones(6 if planted else 8, dtype=torch.bool), 4, 4, 4)


def alloc_extend(kernel: Any, planted: bool) -> None:
    free = longs(3, 4) if planted else longs(3, 4, 5, 6)
    kernel[(2,)](longs(2, 0), longs(6, 8), longs(9, -1), free, torch.zeros(12).long(), 2, 4)


def alloc_decode(kernel: Any, planted: bool) -> None:
    kernel[(2,)](longs(5, 9), longs(3, 7), longs(6) if planted else longs(6, 7), torch.zeros(2).long(), 2, 4)


def positions(kernel: Any, planted: bool) -> None:
    out = torch.zeros(6 if planted else 7).long()
    kernel[(2,)](out, torch.zeros(2).long(), longs(2, 0), longs(3, 4), True)


def bonus_tokens(kernel: Any, planted: bool) -> None:
    kernel[(2,)](torch.zeros(8).long(), longs(0 if planted else 1, 2), torch.zeros(2).long(), 4)


def accept_locs(kernel: Any, planted: bool) -> None:
    kernel[(4,)](longs(0, 2, -1, 6 if planted else 5), torch.zeros(6).long(), torch.zeros(4).long(), 4)


def target_locs(kernel: Any, planted: bool) -> None:
    target = torch.zeros(3 if planted else 4).long()
    kernel[(2,)](target, torch.zeros(4).long(), longs(1, 1), longs(2, 2), torch.zeros(8).long(), 4, 4, 2)


def slot_read(kernel: Any, planted: bool) -> None:
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    pool = MHATokenToKVPool(16, 1, torch.float32, 1, 4, 1, "cpu", False)
    allocator = TokenToKVPoolAllocator(16, torch.float32, "cpu", pool, False)
    slots = allocator.alloc(4)
    pool.set_kv_buffer(SimpleNamespace(layer_id=0), slots, torch.ones(4, 1, 4), torch.ones(4, 1, 4))
    if planted:
        allocator.free(slots[3:])
    q, ends = torch.ones(1, 1, 4), longs(0, 4)
    partial, sums, one = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1), longs(1)
    kernel(q, pool.k_buffer[0], pool.v_buffer[0], q.clone(), ends, slots, partial, sums, one, 1, 1.0, 1.0, 1.0)


CACHE_LOCS, COMMON, EAGLE, ALLOCATOR = "cache_locs", "common", "eagle", "allocator"
PLANTED = (
    Planted(CACHE_LOCS, "generate_draft_decode_kv_indices", "rows without topk", "kv_indices", draft_kv_indices),
    Planted("kv_indices", "create_flashinfer_kv_indices_triton", "a short buffer", "kv_indices_ptr", kv_indices),
    Planted(CACHE_LOCS, "assign_draft_cache_locs_contiguous", "no headroom", "req_to_token", draft_cache_locs),
    Planted(CACHE_LOCS, "assign_extend_cache_locs", "a short output", "out_cache_loc", extend_cache_locs),
    Planted(COMMON, "write_req_to_token_pool_triton", "a sequence above its row", "req_to_token_ptr", write_rows),
    Planted(COMMON, "write_req_to_token_pool_triton", "a prefix above its tensor", "prefix_tensors", write_prefix),
    Planted(COMMON, "get_last_loc_kernel", "a row that is not there", "req_to_token", last_loc),
    Planted("cache_move", "copy_all_layer_kv_cache_tiled", "a slot behind the pool", "data_ptrs", move_kv),
    Planted(CACHE_LOCS, "align_evict_mask_to_page_size", "a short mask", "evict_mask", evict_mask),
    Planted(ALLOCATOR, "alloc_extend_kernel", "too few free pages", "free_page_ptr", alloc_extend),
    Planted(ALLOCATOR, "alloc_decode_kernel", "too few free pages", "free_page_ptr", alloc_decode),
    Planted("position", "compute_position_kernel", "too few positions", "positions", positions),
    Planted(EAGLE, "fill_bonus_tokens", "an accept length of 0", "accept_tokens", bonus_tokens),
    Planted(EAGLE, "fill_accept_out_cache_loc", "an index above the slots", "out_cache_loc", accept_locs),
    Planted(CACHE_LOCS, "get_target_cache_loc", "too few target slots", "tgt_cache_loc", target_locs),
    Planted("decode", "decode_attention_fwd", "a slot that was given back", "k", slot_read, "unwritten"),
)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def look() -> list[dict[str, Any]]:
    """Launch all that this release has, in the engine's own process; what was told of each."""
    from specdebug import kernel_memory
    from specdebug.kernel_memory.finding import KernelRule
    from specdebug.targets.inside.guard import EngineLook
    from specdebug.targets.sglang.inside.memory import shadow_pools
    from specdebug.targets.sglang.inside.stand_ins import STAND_INS

    homes = next(each for each in HOMES if _is_there(each["cache_locs"]))
    for stand_in in STAND_INS:
        if "decode_attention" in stand_in.places[0]:
            stand_in.put()
    watch = kernel_memory.begin([KernelRule("*")])
    shadow_pools(watch, EngineLook("planted"))
    told = []
    for each in PLANTED:
        kernel = getattr(importlib.import_module(homes[each.home]), each.kernel, None)
        if kernel is None:
            continue
        row: dict[str, Any] = {
            "kernel": each.kernel,
            "planted": each.what,
            "expected": each.expected,
        }
        for name, planted in (("sound", False), ("told", True)):
            each.launch(kernel, planted)
            row[name] = [{"signature": found.signature, "message": found.message()} for found in watch.poll()]
        told.append(row)
    return told


def run(release: str) -> list[dict[str, Any]]:
    """Have a release's environment look. Raises SpecDebugError where it is not installed."""
    from specdebug.base.errors import SpecDebugError
    from specdebug.targets.installed import make_import_folder
    from specdebug.targets.installs.release import parse_release
    from specdebug.targets.installs.store import find_installed, store_folder
    from specdebug.targets.sglang.flags import ON_CPU_ENV
    from specdebug.targets.sglang.target import files_to_import, stand_ins_of

    here = find_installed(store_folder(None), parse_release(release))
    site = make_import_folder(here.folder, files_to_import(stand_ins_of(here), cpu=True))
    words = [here.python, __file__, "--inside", here.version]
    done = subprocess.run(
        words, env=os.environ | ON_CPU_ENV | {"PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    if done.returncode:
        raise SpecDebugError(f"{release}: {done.stderr.strip().splitlines()[-1]}")
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("release", help="such as sglang==0.5.13")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        print(json.dumps(look()))
        return 0
    sys.path.insert(0, str(Path(__file__).parents[1]))
    rows = run(given.release)
    if given.json:
        print(json.dumps(rows, indent=1))
        return 0
    print("| kernel | planted | told of it | told without it |\n|---|---|---|---|")
    for row in rows:
        told, _, words = row["told"][0]["message"].partition(" : ") if row["told"] else ("nothing", "", "")
        print(f"| `{row['kernel']}` | {row['planted']} | `{told.rpartition('.')[2]}`: {words} | {len(row['sound'])} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
