"""Reading logs: real ones, our own, huge ones, and what is no text."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_every_upstream_log_is_listed_and_says_where_it_is_from() -> None:
    files = {file.stem: file for file in LOGS.glob("sglang-*.txt")}
    assert files.keys() == UPSTREAM.keys()
    for name, file in files.items():
        assert file.read_text().startswith("# sgl-project/sglang ")
        assert file.read_text().splitlines()[0].endswith(f" {name.removeprefix('sglang-')}")


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


def test_a_folded_cell_of_a_table_is_no_signature() -> None:
    found = scan(io.BytesIO("│ base │ fail │ guard@draft.kv_ind │\n│      │      │ ices              │\n".encode()))
    assert found.main is None


def test_colours_and_binary_junk_are_tolerated() -> None:
    junk = bytes(range(256)) * 300
    found = scan(io.BytesIO(junk + b"\n\x1b[1;31mbase: fail \x1b[0mnan@draft.logits\x1b[0m, 1 s\n" + junk))
    assert found.main is not None
    assert found.main.signature == "nan@draft.logits"
    assert found.main.line == 302


@given(
    st.lists(st.sampled_from([b"", b"fine", b"x: fail nan@a.b", b"\xff\x00", b"y" * 50]), max_size=30),
    st.integers(1, 64),
)
def test_line_numbers_do_not_depend_on_blocks(lines: list[bytes], block: int) -> None:
    text = b"\n".join(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "BLOCK", block)
        found = scan(io.BytesIO(text))
    assert found.size == len(text)
    # A line longer than two blocks is cut, and so may be a message in it; the others are all there.
    if found.main is not None:
        assert lines[found.main.line - 1] == b"x: fail nan@a.b"
    if b"x: fail nan@a.b" in lines and block > 20:
        assert found.main is not None
        assert found.main.line == lines.index(b"x: fail nan@a.b") + 1
        assert found.main.count == lines.count(b"x: fail nan@a.b")


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


def test_however_much_came_before_what_names_the_failure_is_kept() -> None:
    words = ("".join(chr(97 + number // 26**place % 26) for place in range(3)) for number in range(2 * MAX_FINDINGS))
    log = [f"AssertionError: {word}" for word in words]
    log += ["base: fail nan@draft.logits, 1.0 s", "AssertionError: the last"]
    found = scan(io.BytesIO("\n".join(log).encode()))
    assert found.main is not None
    assert (found.main.signature, found.main.line) == ("nan@draft.logits", 2 * MAX_FINDINGS + 1)
    assert len(found.findings) == MAX_FINDINGS


def test_a_message_deep_in_an_endless_line_is_found() -> None:
    found = scan(
        io.BytesIO(b"y " * 100_000 + b"CUDA error: an illegal memory access was encountered" + b" y" * 100_000)
    )
    assert found.main is not None
    assert (found.main.signature, found.main.line) == ("illegal-address@cuda", 1)
