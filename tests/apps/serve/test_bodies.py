"""Bodies of requests: what is wrong is told with its field, nothing is ignored, and nothing makes the server fail."""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdebug.apps.serve.answers import ASIDE_BYTES, MOST_BYTES, Growth
from specdebug.apps.serve.bodies import GENERATE_NEUTRAL, SAMPLING_NEUTRAL, read_chat, read_completion, read_generate
from specdebug.apps.serve.fields import BadField, parse
from specdebug.apps.serve.text import ChatTemplate, ModelText
from tests.apps.serve.serving import EAGLE, Serving

CONTEXT = 2048


@cache
def model() -> ModelText:
    return ModelText("tiny")


def generate_field(**body: Any) -> str:
    """The field for which a body of ``/generate`` is refused."""
    with pytest.raises(BadField) as raised:
        read_generate(body, model(), CONTEXT)
    return raised.value.field


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "text"),
        ({"text": "x", "input_ids": [1]}, "text"),
        ({"text": 5}, "text"),
        ({"text": ""}, "text"),
        ({"text": []}, "text"),
        ({"text": ["x", 5]}, "text"),
        ({"text": "\ud800"}, "text"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": ["x"]}, "input_ids"),
        ({"input_ids": [[]]}, "input_ids"),
        ({"input_ids": [-1]}, "input_ids"),
        ({"input_ids": [2048]}, "input_ids"),
        ({"text": "x", "rid": 7}, "rid"),
        ({"text": "x", "rid": ""}, "rid"),
        ({"text": ["x", "y"], "rid": ["a", "a"]}, "rid"),
        ({"text": "x", "stream": 1}, "stream"),
        ({"text": "x", "speculative": "no"}, "speculative"),
        ({"text": "x", "return_logprob": 1}, "return_logprob"),
        ({"text": "x", "top_logprobs_num": -1}, "top_logprobs_num"),
        ({"text": "x", "return_logprob": True, "logprob_start_len": 2}, "logprob_start_len"),
        ({"text": "x", "token_ids_logprob": [2048]}, "token_ids_logprob"),
        ({"text": "x", "token_ids_logprob": 3}, "token_ids_logprob"),
        ({"text": ["x", "y"], "token_ids_logprob": [[1]]}, "token_ids_logprob"),
        ({"text": "x", "sampling_params": 3}, "sampling_params"),
        ({"text": ["x", "y"], "sampling_params": [{}]}, "sampling_params"),
        ({"text": ["x", "y"], "sampling_params": [{}, {"top_p": 2}]}, "sampling_params[1].top_p"),
        ({"text": "x", "lora_path": "adapter"}, "lora_path"),
        ({"text": "x", "return_hidden_states": True}, "return_hidden_states"),
        ({"text": "x", "txet": "y"}, "txet"),
    ],
)
def test_a_bad_field_of_generate_is_named(body: dict[str, Any], field: str) -> None:
    assert generate_field(**body) == field


BAD: dict[str, list[Any]] = {
    "temperature": [-1, "hot", float("inf"), 10**400],
    "top_p": [0, 1.5],
    "top_k": [0, 2.5, True],
    "max_new_tokens": [-1, 10**400],
    "stop": [[""], ["\ufffd"], 7, ["x"] * 65],
    "stop_token_ids": [["x"]],
    "ignore_eos": ["yes"],
    "sampling_seed": [-1],
    "n": [0, 129],
    **{name: [-2.5, "x"] for name in ("min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")},
    "min_new_tokens": [-1, 0.5],
    "logit_bias": [{"a": 2}, {"1": 200}, {str(10**6): 1}, [1]],
    # what the engine lacks
    "json_schema": ["{}"],
    "regex": [".*"],
    "temprature": [1],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_sampling_parameter_is_named(name: str, value: Any) -> None:
    assert generate_field(text="x", sampling_params={name: value}) == f"sampling_params.{name}"


def test_what_is_not_supported_may_be_there_as_long_as_it_asks_for_nothing() -> None:
    """Clients send all of SGLang's fields with the values that they have there by default."""
    sampling = {name: values[0] for name, values in SAMPLING_NEUTRAL.items() if values}
    body = {name: values[0] for name, values in GENERATE_NEUTRAL.items() if values}
    nulls = dict.fromkeys(("rid", "lora_path", "logprob_start_len"))
    read = read_generate({"text": "x", "sampling_params": sampling, **body, **nulls}, model(), CONTEXT)
    assert len(read.asked) == 1


@pytest.mark.parametrize(
    ("params", "name", "value"),
    [
        ({"stop_token_ids": [5]}, "stop_token_ids", [5, *model().eos_ids]),
        ({"stop_token_ids": [5], "ignore_eos": True}, "stop_token_ids", [5]),
        ({"temperature": 1e-300}, "temperature", 0),
        ({"min_p": 0, "logit_bias": {"3": -1}}, "features", {"min_p": 0.0, "logit_bias": {"3": -1.0}}),
        ({"min_new_tokens": 4, "repetition_penalty": 1}, "features", {"min_new_tokens": 4, "repetition_penalty": 1.0}),
    ],
)
def test_parameters_become_the_engine_s(params: dict[str, Any], name: str, value: Any) -> None:
    (asked,) = read_generate({"text": "x", "sampling_params": params}, model(), CONTEXT).asked
    assert asked.wish.sampling[name] == value


@pytest.mark.parametrize(
    "body", [b"", b"{nonsense", b"\xff\xfe{}", b'{"text": NaN}', b'{"text": ' + b"9" * 5000 + b"}", b"[" * 100_000]
)
def test_what_is_no_json_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(BadField, match="the body is not JSON"):
        parse(body)


CHAT = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": ["x"] * 20, "n": 100}, "n"),
        ({"prompt": "x", "model": "gpt"}, "model"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": [[], [1]]}, "prompt"),
        ({"prompt": "x", "echo": True}, "echo"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "logprobs": 6}, "logprobs"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "seed": "s"}, "seed"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "x", "stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"prompt": "x", "promt": "y"}, "promt"),
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [{"role": "queen", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({**CHAT, "tools": [{}]}, "tools"),
        ({**CHAT, "top_logprobs": 2}, "top_logprobs"),
        ({**CHAT, "response_format": {"type": "json"}}, "response_format"),
        ({**CHAT, "max_completion_tokens": 0}, "max_completion_tokens"),
    ],
)
def test_a_bad_field_of_openai_s_bodies_is_named(body: dict[str, Any], field: str) -> None:
    more = () if "prompt" in body else (ChatTemplate("tiny"),)
    read: Any = read_completion if "prompt" in body else read_chat
    with pytest.raises(BadField) as raised:
        read(body, model(), ("tiny",), CONTEXT, *more)
    assert raised.value.field == field


def test_a_chat_without_a_template_is_roles_and_contents() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    (asked,) = read_chat({"messages": messages}, model(), ("tiny",), CONTEXT, ChatTemplate("tiny")).asked
    assert model().decode(asked.wish.ids) == "system: Be brief.\nuser: Hi\nassistant:"
    assert asked.wish.sampling["max_new_tokens"] == CONTEXT - len(asked.wish.ids)


# Bodies that no client would send. The server is a real one: whatever it answers is no 5xx.

NAMES = ("text", "input_ids", "sampling_params", "rid", "stream", "return_logprob", "top_logprobs_num", "prompt",
         "messages", "model", "max_tokens", "temperature", "top_p", "top_k", "stop", "stop_token_ids", "n", "logprobs",
         "max_new_tokens", "logprob_start_len", "stream_options", "speculative", "abort_all", "role",
         "content")  # fmt: skip
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["tiny", "user", "x", "\ud800", "\ufffd", 10**400, 2**63, -1, 0]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6)
SHORT = {
    "max_new_tokens": 2,
    "max_tokens": 2,
    "messages": [{"role": "user", "content": "x"}],
    "text": "x",
    "prompt": "x",
}
BODIES = st.one_of(
    st.binary(max_size=40),
    VALUES.map(lambda value: json.dumps(value).encode()),
    OBJECTS.map(lambda value: json.dumps(value).encode()),
    st.tuples(OBJECTS, st.sampled_from(sorted(SHORT))).map(
        lambda pair: json.dumps({pair[1]: SHORT[pair[1]], **pair[0]}).encode()
    ),
    st.integers(1, 3000).map(lambda depth: b'{"text":' * depth),
)
PATHS = st.sampled_from(["/generate", "/v1/completions", "/v1/chat/completions", "/abort_request"])


@pytest.fixture(scope="module")
def small() -> Iterator[Serving]:
    """A server whose context is short: what a body asks for, if it is sound, takes no time."""
    with Serving({**EAGLE, "context_length": 64}) as server:
        yield server


QUIET: Any = {"suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}


@settings(max_examples=80, **QUIET)
@given(PATHS, BODIES)
def test_no_body_makes_the_server_fail(small: Serving, path: str, body: bytes) -> None:
    response = small.http.post(path, content=body)
    assert response.status_code < 500, (body, response.text)
    assert response.status_code != 422
    if response.status_code >= 400:
        assert response.json()["error"]["message"]
    assert not small.said
    small.http.post("/abort_request", json={"abort_all": True})


def test_a_body_that_is_too_big_is_refused(serving: Serving) -> None:
    most = serving.state.max_body_bytes
    for body in (b"x" * (most + 1), (b"x" * (1 << 16) for _ in range(most // (1 << 16) + 1))):
        assert serving.http.post("/generate", content=body).status_code == 413
    assert serving.generate(text="x", sampling_params={"max_new_tokens": 1})["text"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"input_ids": [1] * 2049}, "is too long: 2049 tokens, context_length is 2048"),
        ({"input_ids": [[1] * 2049] * 3}, "is too long: 2049 tokens, context_length is 2048"),
        ({"text": "x y" * 2048}, "context_length is 2048"),
        ({"text": "x", "sampling_params": {"stop": "x" * 1001}}, "must have 1000 characters at most"),
        ({"text": "x", "sampling_params": {"stop_token_ids": [1] * 1025}}, "must hold 1024 at most, got 1025"),
        ({"text": "x", "rid": "x" * 201}, "must have 1 to 200 characters"),
        ({"text": "x", "x" * 10**5: 1}, "unknown field"),
        ({"text": "x", "sampling_params": {"temprature": 1}}, "did you mean 'temperature'"),
    ],
)
def test_what_is_too_long_is_measured_before_it_is_looked_at(body: dict[str, Any], told: str) -> None:
    with pytest.raises(BadField, match=re.escape(told)) as raised:
        read_generate(body, model(), CONTEXT)
    assert len(str(raised.value)) < 200


PART = 1000
"""Bytes that come in at a time."""
CODE = 'if x["a"][0] == {1: [2, 3], "b\\\\": "c"}:\n    return [f(y) for y in z]\n'


def fits(body: bytes, part: int = PART) -> bool:
    growth = Growth()
    for at in range(0, len(body), part):
        growth.take(body[at : at + part])
    return growth.bytes <= MOST_BYTES


@given(parts=st.lists(st.text('"\\[]{},a', max_size=9)))
def test_the_measure_is_the_same_in_whatever_parts_a_body_comes(parts: list[str]) -> None:
    whole, pieces = Growth(), Growth()
    whole.take("".join(parts).encode())
    for part in parts:
        pieces.take(part.encode())
    assert pieces.bytes == whole.bytes


@pytest.mark.parametrize(
    "body",
    [
        b'"' + b'\\"' * (1 << 20),
        b'"' + b"a[" * (1 << 20),
        b'"\\' * (1 << 16),
        b'\\"' * 999,
        json.dumps([{"role": "user", "content": CODE}] * 10_000).encode(),
        json.dumps({"input_ids": [[31999] * 920] * 400, "sampling_params": [{"max_new_tokens": 8}] * 400}).encode(),
    ],
    ids=range(6),
)
def test_what_is_in_strings_counts_for_nothing_and_a_large_batch_fits(body: bytes) -> None:
    assert fits(body)


def test_every_json_that_fits_takes_no_more_than_it_may() -> None:
    """The weights are those of the objects that there are, by Python's own word."""
    import sys

    for unit in (b"999,", b"1.5,", b"[0],", b'{"a":0},', b'"abc",'):
        body = b"[" + unit * 2000 + b"0]"
        values = json.loads(body)
        inside = sum(sys.getsizeof(value) for value in values) + sys.getsizeof(values)
        count = body.count(b",") * 36 + body.count(b'"') * 30 + (body.count(b"[") + body.count(b"{")) * 100
        if unit != b'{"a":0},':  # small dictionaries take more than a list
            assert inside < 1.25 * count, unit
        assert inside < 2.5 * count, unit


def test_a_body_that_grows_is_refused_and_the_server_goes_on(serving: Serving) -> None:
    body = b'{"input_ids": [' + b"[]," * (1 << 20) + b"[]]}"
    answer = serving.http.post("/generate", content=body)
    assert answer.status_code == 400
    assert f"more than {MOST_BYTES >> 20} MiB" in answer.json()["error"]["message"]
    assert serving.http.post("/abort_request", content=b" " * (ASIDE_BYTES + 1)).status_code == 413
    assert serving.generate(text="x", sampling_params={"max_new_tokens": 1})["text"]
