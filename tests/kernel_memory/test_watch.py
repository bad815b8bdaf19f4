"""Rules and modes, and that nothing is left of it when it ends."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime import interpreter

from specdebug import kernel_memory
from specdebug.kernel_memory.finding import Access, KernelRule, MemoryFinding, mode_of
from specdebug.kernel_memory.interpreter import HOOKED
from specdebug.kernel_memory.watch import Watch
from specdebug.logs.scan import LogReader
from tests.kernel_memory import kernels

FAR = 1 << 40


def overrun() -> None:
    dst = torch.zeros(2, dtype=torch.int32)
    kernels.copy[(1,)](torch.zeros(2, dtype=torch.int32), dst, FAR, 2, BLOCK=2)


def test_of_the_rules_that_cover_a_site_the_last_decides() -> None:
    rules = [KernelRule("*"), KernelRule("copy.*", "off"), KernelRule("copy.dst", "assert", ("oob",))]
    assert mode_of(rules, "fill.dst", "oob") == "record"
    assert mode_of(rules, "copy.src", "oob") == "off"
    assert mode_of(rules, "copy.dst", "oob") == "assert"
    assert mode_of(rules, "copy.dst", "unwritten") == "off"
    assert mode_of([], "copy.dst", "oob") == "off"


def test_a_site_that_is_off_is_not_told(watch: Watch) -> None:
    kernel_memory.begin([KernelRule("*"), KernelRule("copy.src", "off")])
    overrun()
    assert kernel_memory.poll() == []


def test_assert_mode_ends_the_launch_with_the_finding(watch: Watch) -> None:
    kernel_memory.begin([KernelRule("*", "assert")])
    with pytest.raises(interpreter.InterpreterError, match=r"oob@copy\.src : load of program"):
        overrun()
    overrun_again = pytest.raises(interpreter.InterpreterError, match=r"oob@copy\.src")
    with overrun_again:
        overrun()


def test_when_it_ends_triton_is_as_it_was() -> None:
    owners = {"GridExecutor": interpreter.GridExecutor, "InterpreterBuilder": interpreter.InterpreterBuilder}
    there = [(owners.get(owner, interpreter), name) for owner, name in HOOKED]
    before = [getattr(owner, name) for owner, name in there]
    kernel_memory.begin([KernelRule("*")])
    assert all(getattr(owner, name) is not old for (owner, name), old in zip(there, before, strict=True))
    kernel_memory.end()
    assert [getattr(owner, name) for owner, name in there] == before
    assert (kernel_memory.poll(), kernel_memory.launches()) == ([], {})


def test_a_wrong_call_of_a_kernel_fails_as_it_does_without(watch: Watch) -> None:
    with pytest.raises(TypeError):
        kernels.add_at[(1,)](torch.zeros(1, dtype=torch.int32))


@pytest.mark.parametrize("kind", ["oob", "unwritten"])
def test_the_line_of_a_finding_is_read_back_from_a_log(kind: str) -> None:
    found = MemoryFinding("gen_kv", "kv_indices", kind, Access("store", (0, 1, 0), "a/b.py:7"), "1 element out", 5, 2)
    assert found.message(9) == (
        f"{kind}@gen_kv.kv_indices : store of program (0, 1, 0) at a/b.py:7, 1 element out; "
        "5 elements in 2 accesses [step 9]"
    )
    reader = LogReader(settings=False)
    reader.feed(f"specdebug inside: {found.message(9)}\n".encode())
    assert [hit.signature for hit in reader.close().ranked()] == [found.signature]
