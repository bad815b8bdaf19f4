"""What single lines tell of."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.logs.findings import FoundFailures
from specdebug.logs.rule import KINDS, Hit, Strength
from specdebug.logs.rules import RULES
from specdebug.logs.scan import LogReader
from specdebug.verdict.outcome import RANK
from tests.logs.by_line import hits_in as hits_in_bytes

LINES = {
    "reverted: fail guard@draft.kv_indices->draft.kv_indptr, 3.8 s": "guard@draft.kv_indices->draft.kv_indptr",
    "    then guard@draft.draft_tokens->end of arena at step 2  overran": "guard@draft.draft_tokens->end of arena",
    "x: reverted fail hang (12.0 s)": "hang",
    '  "signature": "oom",': "oom",
    '<failure message="hang after 12 s">': "hang",
    "base: fail oom, 3.1 s": "oom",
    "base: fail crash:SIGSEGV, 3.1 s": "crash:SIGSEGV",
    "RuntimeError: async probe oob@draft.forward.positions: value not below 128 [step 3, 2 bad, first 128 at 0]":
        "oob@draft.forward.positions",
    "Assertion `NaN detected! verify: target model logits` failed.": "nan@verify.target_model_logits",
    "Assertion `Inf detected! draft: logits` failed.": "inf@draft.logits",
    "RuntimeError: OOB indices not in [0, 32000): draft topk_index": "oob@draft_topk_index",
    "Assertion `index < 0 (negative / unmasked sentinel?): embed input_ids` failed": "oob@embed_input_ids",
    "Assertion `index >= 128256 (out of range): embed input_ids` failed": "oob@embed_input_ids",
    "page-misaligned indices (page_size=64): tgt_cache_loc": "page_aligned@tgt_cache_loc",
    "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1500: indexSelectSmallIndex: block: [32,0,0], thread: [63,0,0] "
    "Assertion `srcIndex < srcSelectDimSize` failed.": "assert@Indexing.cu",
    "/x/TensorCompare.cu:110: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion "
    "`probability tensor contains either `inf`, `nan` or element < 0` failed.": "nan@sampler.probs",
    "ValueError: Detected errors during sampling! NaN in the logits.": "nan@sampler.logits",
    "IndexError: index out of range in self": "oob@embedding",
    "IndexError: index 40000 is out of bounds for dimension 0 with size 32000": "oob@index",
    "ValueError: token id 128300 is out of vocabulary": "oob@vocabulary",
    "ValueError: token_to_kv_pool_allocator memory leak detected! available_size=1":
        "pools@token_to_kv_pool_allocator",
    "RuntimeError: CUDA error: an illegal memory access was encountered": "illegal-address@cuda",
    "RuntimeError: Triton Error [CUDA]: device-side assert triggered": "assert@cuda",
    "torch.AcceleratorError: CUDA error: an illegal instruction was encountered": "launch-failure@cuda",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": "oom@cuda",
    "Fatal Python error: Segmentation fault": "crash:SIGSEGV",
    "Segmentation fault (core dumped)": "crash:SIGSEGV",
    "Aborted (core dumped)": "crash:SIGABRT",
    "##[error]Process completed with exit code 137.": "crash:SIGKILL",
    "subprocess exited with status -11": "crash:SIGSEGV",
    "worker exit code: 134": "crash:SIGABRT",
    "./run.sh: line 22: 103525 Killed                  python -m server": "crash:SIGKILL",
    "[812.4] Out of memory: Killed process 4242 (python) total-vm:1kB": "oom",
    "[2026-01-01 00:00:00 TP0] Watchdog timeout (self.watchdog_last_forward_ct=5)": "hang",
    "E   Failed: Timeout >300.0s": "hang",
    "foo.cc:12: void f(): Assertion `x > 0' failed.": "assert:x>#@foo.cc",
    "foo.c:12: f: Assertion 'x > 0' failed.": "assert:x>#@foo.c",
    "NaN detected!": "nan@unknown",
    "NaN in logits": "nan@sampler.logits",
    "RuntimeError: NaN detected in the draft logits": "nan@sampler.logits",
    "ValueError: probabilities contain NaN": "nan@sampler.probs",
    "!!!!!!! Segfault encountered !!!!!!!": "crash:SIGSEGV",
    "Error: Process completed with exit code 143.": "crash:SIGTERM",
    "httpx.ReadTimeout: The read operation timed out": "error:ReadTimeout:The read operation timed out",
    "E       assert 0.96 > 0.961": "assert:# > #",
    "FAILED tests/a.py::test_b[c-1] - assert 53 >= 66": "assert:# >= #",
    "FAILED tests/a.py::test_b[c-1]": "test:tests/a.py::test_b[c-1]",
    "ERROR tests/a.py": "test:tests/a.py",
    "FAIL: test_b (tests.a.Case.test_b)": "test:tests.a.Case.test_b",
    "==== 1 failed, 3 passed in 2.10s ====": "test:unnamed",
    "WARNING: '(ReadTimeoutError(\"HTTPSConnectionPool(host='x', port=443): Read timed out.\"), 'x')' thrown":
        "error:ReadTimeoutError",
    "[rank2]:[E ProcessGroupNCCL.cpp:607] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)":
        "hang",
    "CUDA Error: CUDA_ERROR_ILLEGAL_ADDRESS /x/fmhaKernels.cuh 257": "illegal-address@cuda",
    "an illegal instruction was encountered": "launch-failure@cuda",
    "unspecified launch failure": "launch-failure@cuda",
    "+ EXIT CODE 139": "crash:SIGSEGV",
    "E       AssertionError: expected 12 got 13": "assert:expected # got #",
    "ValueError: something else": "error:ValueError:something else",
}  # fmt: skip


def hits_in(line: str) -> list[Hit]:
    return hits_in_bytes(line.encode("utf-8", "replace"))


@pytest.mark.parametrize("line", LINES)
def test_a_line_names_its_failure(line: str) -> None:
    assert [hit.signature for hit in hits_in(line)][:1] == [LINES[line]]


@pytest.mark.parametrize("line", LINES)
def test_prefixes_of_ci_systems_hide_nothing(line: str) -> None:
    for prefix in ("2026-01-02T03:04:05.6789Z ", "[worker pid=952, ip=10.1.2.3] "):
        if LINES[line] not in ("crash:SIGKILL", "crash:SIGABRT", "test:unnamed") or prefix.startswith("2026"):
            assert LINES[line] in [hit.signature for hit in hits_in(prefix + line)]


@pytest.mark.parametrize("line", LINES)
def test_no_line_that_tells_something_is_passed_over_by_the_search_for_words(line: str) -> None:
    assert any(word in line.encode() for rule in RULES for word in rule.words)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[TP0] Decode batch. #running-req: 3, #token: 512, token usage: 0.01, gen throughput (token/s): 31.2",
        "Process completed with exit code 0.",
        "Process completed with exit code 1.",
        "contact: error@example.com",
        "signature: nan@draft*",
        "  reverted: {verdict: fail, signature: 'nan@draft*'}",
        "the index of the page is 5",
        "0 errors, 12 passed",
        "0 failed, 12 passed in 3.1s",
        "ERROR [repo_utils.py:66] Error retrieving file list: Server error '504 Gateway Timeout'",
        "requests: 3 failed, retrying",
        "nan@...",
    ],
)
def test_an_innocent_line_tells_nothing(line: str) -> None:
    assert hits_in(line) == []


def test_the_kinds_are_those_of_verdicts() -> None:
    assert set(KINDS) == {*RANK, "oom"}


@pytest.mark.parametrize("kind", [*RANK, "oom"])
def test_every_kind_of_ours_is_known(kind: str) -> None:
    (hit,) = hits_in(f"base: fail {kind}@some.where, 1.0 s")
    assert (hit.signature, hit.strength, hit.means) == (f"{kind}@some.where", Strength.VERDICT, kind)
    (hit,) = hits_in(f"  then {kind}@some.where at step 3")
    assert hit.strength == Strength.NAMED


SAID = st.sampled_from(
    [*LINES, "ordinary", "", "exit code 9", "Process completed with exit code 137 after ValueError: x"]
)
DIGITS = st.integers(0, 10**6)


@given(st.lists(st.tuples(SAID, DIGITS, st.sampled_from(["", "12:34:56 ", "x "])), max_size=40))
def test_the_reader_says_what_reading_line_by_line_says(told: list[tuple[str, int, str]]) -> None:
    """Lines that differ in digits only are read together; no count may depend on that."""
    lines = [prefix + said.replace("12", str(number)) for said, number, prefix in told]
    first: dict[str, int] = {}
    counts: Counter[str] = Counter()
    for number, line in enumerate(lines, start=1):
        for hit in hits_in(line):
            first.setdefault(hit.signature, number)
            counts[hit.signature] += 1
    found = FoundFailures()
    reader = LogReader()
    reader._findings = found
    reader.feed("\n".join(lines).encode())
    reader.close()
    plain = {name: found._by_key[name] for name in first if name in found._by_key}
    assert {name: one.count for name, one in plain.items()} == {name: counts[name] for name in plain}
    assert sum(one.count for one in found) == counts.total()
