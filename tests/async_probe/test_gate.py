"""Which probe does what."""

from __future__ import annotations

import pytest

from specdebug.async_probe.gate import Gate, Rule, mode_from_environment


def test_without_rules_every_probe_runs_in_the_mode() -> None:
    gate = Gate("record")
    assert gate.active
    assert gate.mode("a.b", "nan") == "record"


def test_with_rules_the_others_are_off() -> None:
    gate = Gate("assert", [Rule("draft.*")])
    assert gate.mode("draft.step.logits", "nan") == "assert"
    assert gate.mode("target.logits", "nan") == "off"


def test_the_last_rule_that_covers_a_probe_decides() -> None:
    gate = Gate("record", [Rule("*"), Rule("draft.*", "assert", ("oob",)), Rule("draft.noisy.*", "off")])
    assert gate.mode("verify.ids", "oob") == "record"
    assert gate.mode("draft.ids", "oob") == "assert"
    assert gate.mode("draft.ids", "nan") == "record"
    assert gate.mode("draft.noisy.ids", "oob") == "off"


def test_off_silences_every_rule() -> None:
    gate = Gate("off", [Rule("*", "assert")])
    assert not gate.active
    assert gate.mode("a.b", "nan") == "off"


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


def test_live_kinds_are_those_that_are_not_off() -> None:
    gate = Gate("assert", [Rule("a.*"), Rule("a.b", "record", ("inf",)), Rule("a.c", "off", ("nan",))])
    assert gate.live("a.b", ("nan", "inf")) == {"nan": "assert", "inf": "record"}
    assert gate.live("a.c", ("nan", "inf")) == {"inf": "assert"}
    assert gate.live("b.c", ("nan", "inf")) == {}
    assert gate.live("a.c", ("inf",)) == {"inf": "assert"}
