"""Which probe does what, and that what an assertion says can be read back."""

import math

import pytest

from specdebug.async_probe.gate import Gate, ProbeFinding, Rule, mode_from_environment, parse_message


def test_the_last_rule_that_covers_a_probe_decides() -> None:
    gate = Gate("record", [Rule("*"), Rule("draft.*", "assert", ("oob",)), Rule("draft.noisy.*", "off")])
    assert gate.mode("verify.ids", "oob") == "record"
    assert gate.mode("draft.ids", "oob") == "assert"
    assert gate.mode("draft.ids", "nan") == "record"
    assert gate.mode("draft.noisy.ids", "oob") == "off"


def test_rules_that_are_all_off_leave_nothing_active() -> None:
    assert not Gate("record", [Rule("*", "off")]).active


def test_unknown_words_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown probe mode 'asert', expected one of off, assert, record"):
        Gate("asert")
    with pytest.raises(ValueError, match="unknown probe mode 'rec'"):
        Rule("*", "rec")
    with pytest.raises(ValueError, match="unknown probe kind 'nans', expected one of nan, inf, oob"):
        Rule("*", kinds=("nans",))


@pytest.mark.parametrize(
    ("environment", "mode"),
    [
        *(({"SGLANG_ENABLE_ASYNC_ASSERT": text}, "assert") for text in ("1", "true", "Yes", " ON ")),
        *(({"SGLANG_ENABLE_ASYNC_ASSERT": text}, "off") for text in ("0", "False", "no", "off", "")),
        ({}, "off"),
    ],
)
def test_the_environment_asks_for_assertions_or_for_none(environment: dict[str, str], mode: str) -> None:
    assert mode_from_environment(environment) == mode


def test_environment_that_says_neither_is_an_error() -> None:
    expected = "SGLANG_ENABLE_ASYNC_ASSERT is 'maybe', expected 1/true/yes/on or 0/false/no/off"
    with pytest.raises(ValueError, match=expected):
        mode_from_environment({"SGLANG_ENABLE_ASYNC_ASSERT": "maybe"})


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


def test_as_a_gpu_driver_prints_it() -> None:
    text = (
        "/src/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] "
        "Assertion `async probe oob@move_kv_cache.src_loc: value not below 4352` failed."
    )
    assert parse_message(text) == ProbeFinding("move_kv_cache.src_loc", "oob", bound="not below 4352")
    assert parse_message("Assertion `async probe nan@verify.logits` failed.") == ProbeFinding("verify.logits", "nan")
