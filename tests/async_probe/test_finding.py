"""What an assertion says can be read back."""

from __future__ import annotations

import math

import pytest

from specdebug.async_probe import ProbeFinding, parse_message


@pytest.mark.parametrize(
    "violation",
    [
        ProbeFinding("a.b", "nan"),
        ProbeFinding("draft.step.tokens", "oob", bound="below 0"),
        ProbeFinding("a.b", "oob", step=3, index=17, value=-4886055425978319163, count=2, bound="not below 2048"),
        ProbeFinding("a.b", "oob", step=0, index=0, value=1.5e-07, count=1, bound="below 0.5"),
        ProbeFinding("a.b", "inf", step=12, index=4, value=-math.inf, count=9),
        ProbeFinding("kv.loc", "page_aligned", step=1, index=0, value=3, count=1, bound="not a multiple of 16"),
    ],
)
def test_round_trip_through_other_text(violation: ProbeFinding) -> None:
    text = f"RuntimeError: {violation.message()}\nCompile with `TORCH_USE_CUDA_DSA`"
    assert parse_message(text) == violation


def test_nan_value_round_trip() -> None:
    found = parse_message(ProbeFinding("a.b", "nan", step=1, index=2, value=math.nan, count=3).message())
    assert found is not None
    assert isinstance(found.value, float)
    assert math.isnan(found.value)
    assert (found.index, found.count) == (2, 3)


def test_as_a_gpu_driver_prints_it() -> None:
    text = (
        "/src/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] "
        "Assertion `async probe oob@move_kv_cache.src_loc: value not below 4352` failed."
    )
    assert parse_message(text) == ProbeFinding("move_kv_cache.src_loc", "oob", bound="not below 4352")
    assert parse_message("Assertion `async probe nan@verify.logits` failed.") == ProbeFinding("verify.logits", "nan")


def test_other_text_is_no_violation() -> None:
    assert parse_message("CUDA error: device-side assert triggered") is None
    assert parse_message("nan@site") is None


def test_signature() -> None:
    assert ProbeFinding("a.b", "oob", bound="below 0").signature == "oob@a.b"
