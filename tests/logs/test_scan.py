"""Reading logs: real ones, our own, huge ones, and what is no text."""

import io
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdebug.logs import scan as scanning
from specdebug.logs.findings import MAX_FINDINGS
from specdebug.logs.scan import scan

LOGS = Path(__file__).parent / "quoted"

UPSTREAM = {
    "sglang-15638": ("assert@IndexKernelUtils.cu", "oob", 2),
    "sglang-7139": ("assert@Indexing.cu", "oob", 2),
    "sglang-30418": ("nan@sampler.next_token_logits", "nan", 2),
    "sglang-5491": ("illegal-address@cuda", "illegal-address", 3),
    "sglang-11970": ("pools@token_to_kv_pool_allocator", "pools", 2),
    "sglang-27789": ("pools@SWA_Pool", "pools", 3),
    "sglang-14369": ("nan@sampler.logits", "nan", 2),
    "sglang-6888": ("pools@token_to_kv_pool_allocator", "pools", 2),
    "sglang-3513": ("oob@tensor", "oob", 2),
    "sglang-3730": ("assert@cuda", "assert", 2),
}
"""Excerpts that issues of SGLang quote (the number is in the file): signature, kind of damage, line."""


@pytest.mark.parametrize("name", UPSTREAM)
def test_logs_quoted_in_issues_of_sglang(name: str) -> None:
    with open(LOGS / f"{name}.txt", "rb") as stream:
        main = scan(stream).main
    assert main is not None
    assert (main.signature, main.means, main.line) == UPSTREAM[name]


def test_settings_are_read() -> None:
    with open(LOGS / "sglang-5491.txt", "rb") as stream:
        facts = scan(stream).facts
    assert (facts.backend, facts.topk) == ("flashinfer", 2)
    assert facts.functions == {"run_scheduler_process"}
    told = b"server_args=ServerArgs(attention_backend='fa3', page_size=64, speculative_eagle_topk=4)\n"
    facts = scan(io.BytesIO(told + b"Prefill batch. #cached-token: 0\nPrefill batch. #cached-token: 96,\n")).facts
    assert (facts.backend, facts.page_size, facts.topk, facts.cached_tokens) == ("fa3", 64, 4, 96)
    facts = scan(io.BytesIO(b"export SGLANG_DEBUG_REVERT_PR=27338,27360\n")).facts
    assert facts.reverted == {27338, 27360}


def test_the_strongest_message_names_the_failure_wherever_it_stands() -> None:
    log = (
        b"Segmentation fault (core dumped)\n"
        b"CUDA error: an illegal memory access was encountered\n"
        b"base: run, step 3, found mismatch@draft_kv\n"
        b"base: fail nan@draft.logits, 1.0 s\n"
    )
    found = scan(io.BytesIO(log))
    assert [one.signature for one in found.ranked()] == [
        "nan@draft.logits",
        "mismatch@draft_kv",
        "illegal-address@cuda",
        "crash:SIGSEGV",
    ]


class Endless(io.RawIOBase):
    """So many blocks of a server's log, made as they are read, with a failure at the end."""

    def __init__(self, size: int) -> None:
        line = b"[2026-01-01 00:00:00 TP0] Decode batch. #running-req: 3, #token: 512, gen throughput (token/s): 31\n"
        self._block = line * (scanning.BLOCK // len(line))
        self._parts = self._made(size)

    def _made(self, size: int) -> Iterator[bytes]:
        for _ in range(size // len(self._block)):
            yield self._block
        yield b"CUDA error: an illegal memory access was encountered\n"

    def read(self, size: int = -1) -> bytes:
        return next(self._parts, b"")


@pytest.mark.slow
def test_a_log_of_a_gigabyte_takes_no_more_memory_than_a_few_blocks() -> None:
    tracemalloc.start()
    try:
        found = scan(Endless(1 << 30))  # type: ignore[arg-type]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.size > 1 << 30 - 1
    assert found.main is not None
    assert (found.main.signature, found.main.line) == ("illegal-address@cuda", found.lines)
    assert peak < 16 * scanning.BLOCK


def test_no_log_fills_the_memory_with_findings() -> None:
    log = b"".join(b"  then nan@site.%d.x at step 3\n" % number for number in range(2 * MAX_FINDINGS))
    found = scan(io.BytesIO(log))
    assert len(found.findings) == MAX_FINDINGS
