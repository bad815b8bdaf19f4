"""What requests can ask for beside: read, told by name, and refused where a target has not got it."""

from __future__ import annotations

from typing import Any

import pytest

from specdebug.base.errors import ContentError, ContentErrors
from specdebug.base.features import ALL, NONE, Features, features_of
from specdebug.base.yamlio import parse_yaml
from specdebug.scenario.checks import check_features, scenario_of
from specdebug.scenario.workload import RequestSampling
from specdebug.targets.http.request import sampling_params
from specdebug.targets.settings import parse_target


def read(text: str) -> Features:
    return Features.read(parse_yaml(text, "f.yaml").root)


def test_what_is_asked_for_is_told_by_the_engine_s_names() -> None:
    assert NONE.asked == {}
    found = read("{logprobs: 0, json_schema: '{}', logit_bias: {\"7\": -2}}")
    assert found.asked == {"logprobs": 0, "json_schema": "{}", "logit_bias": {"7": -2.0}}
    assert found.asked.keys() < ALL


@pytest.mark.parametrize(
    ("text", "steers"),
    [
        ("{logprobs: 3, n: 2, min_p: 0.1}", False),
        ("{ignore_eos: true, priority: -1}", False),
        ("{frequency_penalty: -0.5}", True),
        ("{repetition_penalty: 1.2}", True),
        ("{min_new_tokens: 3}", True),
        ("{regex: a+}", True),
        ("{bad_words: [def]}", True),
        ("{allowed_token_ids: [1]}", True),
    ],
)
def test_what_changes_logits_is_told_from_what_does_not(text: str, *, steers: bool) -> None:
    assert read(text).steers is steers


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{regex: a, json_schema: '{}'}", "regex does not go with 'json_schema'"),
        ("{logit_bias: {a: 1}}", "token 'a' does not fit"),
        ("{repetition_penalty: 0}", "above 0"),
        ("{min_pee: 0.1}", "did you mean 'min_p'"),
    ],
)
def test_what_cannot_be_is_named(text: str, says: str) -> None:
    with pytest.raises(ContentError, match=says):
        read(text)


def test_an_engine_s_own_parameters_ask_for_nothing() -> None:
    assert features_of(object()) is NONE


SCENARIO = """
name: asks
engine: {model: tiny}
workload:
- {id: told, prompt: {text: a}, features: {logprobs: 2, n: 2}}
- {id: bent, prompt: {text: a}, features: {json_schema: "{}", min_p: 0.2}}
"""


def test_a_target_that_has_it_not_refuses_it_by_name_at_its_place() -> None:
    scenario = scenario_of(parse_yaml(SCENARIO, "asks.yaml"), None)
    with pytest.raises(ContentErrors) as caught:
        check_features(scenario, "base")
    (problem,) = caught.value.problems
    assert str(problem) == ("asks.yaml:6:43: workload[1].features: target embedded has no json_schema (arm 'base')")
    check_features(scenario.on(parse_target("vllm==0.32.0")), "base")


def test_sglang_is_asked_by_its_own_names_and_a_grammar_ends_with_the_model_s_text() -> None:
    def asked(**features: Any) -> dict[str, Any]:
        return sampling_params(RequestSampling(4, features=Features(**features)))

    assert asked() == {"max_new_tokens": 4, "temperature": 0.0, "skip_special_tokens": False, "ignore_eos": True}
    bent = asked(min_new_tokens=2, logit_bias={"3": 1.0}, logprobs=4, n=2)
    assert (bent["min_new_tokens"], bent["logit_bias"]) == (2, {"3": 1.0})
    assert not {"logprobs", "n"} & bent.keys()  # of another part of the request
    assert asked(schema="{}")["json_schema"] == "{}"
    assert asked(regex="a")["ignore_eos"] is False
