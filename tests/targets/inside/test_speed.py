"""Processes are forked that would be spawned, and Triton's interpreter, with what it does anew left out or remembered,
computes what it computed before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import language
from triton.language import core
from triton.runtime import interpreter

from specdebug.targets.inside.speed import (
    leave_overflow,
    prepare_once,
    remember_dtypes,
    type_tuples_when_asked,
)
from tests.interpreter import device

__all__ = ["device"]
BLOCK = 4


@pytest.fixture(autouse=True)
def triton_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put back, after a test, all that is replaced."""
    for owner, name in (
        (interpreter, "_patch_lang"),
        (interpreter, "_get_np_dtype"),
        (interpreter.interpreter_builder, "options"),
        (core.tuple, "__init__"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    yield
    if "type" in vars(core.tuple):
        del core.tuple.type


def test_a_second_kernel_finds_it_prepared_and_one_that_sees_none_of_it_is_told_off_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared: list[Any] = []
    monkeypatch.setattr(interpreter, "_patch_lang", prepared.append)
    seen: list[dict[str, Any]] = [{"tl": language}, {"tl": language}, {"tl": language, "core": language.core}, {}]
    first, second, other, none = (SimpleNamespace(__globals__=each) for each in seen)
    prepare_once()
    for kernel in (first, second, first, other, second, none):
        interpreter._patch_lang(kernel).restore()  # type: ignore[attr-defined]
    assert prepared == [first, other, none]


@pytest.mark.parametrize("debug", [False, True])
def test_sums_are_held_to_their_width_where_an_assertion_would_say_so(debug: bool) -> None:
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, debug=debug)
    assert builder.options.sanitize_overflow
    leave_overflow()
    assert builder.options.sanitize_overflow is debug
    assert builder.options.debug is debug


@pytest.mark.parametrize(
    ("kind", "dtype"), [(tl.int32, "int32"), (tl.float16, "float16"), (tl.int1, "bool"), (tl.bfloat16, "uint16")]
)
def test_a_dtype_is_that_of_the_elements_and_of_pointers_an_address(kind: Any, dtype: str) -> None:
    look_up, table = interpreter._get_np_dtype, tl.pointer_type(kind)
    remember_dtypes()
    for _ in range(2):
        assert interpreter._get_np_dtype(kind) == np.dtype(dtype)
        assert interpreter._get_np_dtype(tl.block_type(kind, [8])) == np.dtype(dtype)
        for pointer in (table, tl.block_type(table, [8])):
            assert interpreter._get_np_dtype(pointer) == look_up(pointer) == np.dtype("uint64")
    with pytest.raises(KeyError):
        interpreter._get_np_dtype(tl.void)


def test_a_tuple_has_the_type_of_its_values_or_the_one_it_is_given() -> None:
    values = [core.constexpr(3), core.constexpr(5)]
    wanted = core.tuple(values).type
    type_tuples_when_asked()
    late = core.tuple(values)
    assert "type" not in vars(late)
    assert late.type == wanted
    assert late.type is late.type
    named = core.tuple_type(wanted.types, ["rows", "columns"])
    given = core.tuple(values, named)
    assert given.type is named
    assert given.columns is values[1]
    late.type = named
    assert late.rows is values[0]


@triton.jit
def _scaled(value, by):
    return value * by


@triton.jit
def _gather(out, ends, slots, BLOCK: tl.constexpr):
    """Each row's slots, times so much that it wraps, and behind all rows their sum."""
    row = tl.program_id(0)
    start = tl.load(ends + row)
    length = tl.load(ends + row + 1) - start
    total = 0
    for block in range(tl.cdiv(length, BLOCK)):
        at = tl.arange(0, BLOCK) + block * BLOCK
        some = tl.load(slots + start + at, mask=at < length, other=0)
        total += tl.sum(some)
        tl.store(out + start + at, _scaled(some, 3_000_000), mask=at < length)
    tl.store(out + tl.load(ends + tl.num_programs(0)) + row, total)


def test_kernels_compute_what_they_did(device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("kernels are not interpreted where there is a GPU")
    ends = torch.tensor([0, 5, 5, 12], dtype=torch.int32)
    slots = torch.arange(12, dtype=torch.int32) * 1000

    def gathered() -> Tensor:
        out = torch.full((15,), -1, dtype=torch.int32)
        _gather[(3,)](out, ends, slots, BLOCK)
        return out

    before = gathered()
    for replace in (leave_overflow, remember_dtypes, type_tuples_when_asked):
        replace()
    assert torch.equal(gathered(), before)
    assert before[:12].tolist() == (slots * 3_000_000).tolist()  # which wraps
    assert before[12:].tolist() == [10_000, 0, 56_000]
