"""The bodies of OpenAI's two routes, with the fields that SGLang adds to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdebug.apps.serve.bodies import (
    MAX_BATCH,
    SAMPLING_NEUTRAL,
    AskedBody,
    AskedPrompt,
    SamplingFields,
    new_rid,
    prompt_ids,
    read_sampling,
    request_name,
    sampled,
    token_ids,
)
from specdebug.apps.serve.chat import ChatTemplate
from specdebug.apps.serve.fields import BadField, Fields, text
from specdebug.apps.serve.served import LogprobWish, Wish
from specdebug.apps.serve.text import ModelText
from specdebug.base.errors import one_line

MAX_MESSAGES = 10_000
ROLES = ("system", "developer", "user", "assistant", "tool")
_NOTHING: tuple[Any, ...] = (False, [], {}, "")

_BOTH: Mapping[str, tuple[Any, ...]] = {
    **SAMPLING_NEUTRAL,
    **dict.fromkeys(
        ("lora_path", "session_params", "extra_key", "custom_labels", "priority", "cache_salt", "store", "metadata",
         "service_tier", "return_hidden_states", "return_routed_experts", "custom_logit_processor"),
        _NOTHING,
    ),
    "min_tokens": (0,),
    "response_format": ({"type": "text"},),
    "continue_final_message": (False,),
    "separate_reasoning": (True, False),
    "stream_reasoning": (True, False),
}  # fmt: skip

COMPLETION_NEUTRAL: Mapping[str, tuple[Any, ...]] = {**_BOTH, "best_of": (1,), "echo": (False,), "suffix": ("",)}
CHAT_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **_BOTH,
    **dict.fromkeys(("tools", "functions", "chat_template_kwargs", "modalities", "audio", "prediction"), _NOTHING),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "reasoning_effort": ("medium", "none"),
    "verbosity": ("medium",),
    "web_search_options": (),
}


@dataclass(frozen=True)
class OpenAIBody(AskedBody):
    """``usage``: a stream ends with how many tokens it had. ``top``: of a chat, how many log probabilities of each
    position are told. ``samples``: choices of each prompt."""

    usage: bool
    top: int | None
    samples: int


def read_completion(data: Any, model: ModelText, names: tuple[str, ...], context_length: int) -> OpenAIBody:
    """Read the body of ``/v1/completions``; ``names`` are the model's. Raises BadField."""
    fields = Fields(data)
    _check_model(fields, names)
    prompts = _prompts(fields, model, context_length)
    sampling = read_sampling(
        fields, model, default_tokens=16, names={"max_new_tokens": "max_tokens", "sampling_seed": "seed"}
    )
    top = None if fields.get("logprobs") is None else fields.whole("logprobs", 0, 0, 5)
    return _body(fields, prompts, sampling, top, COMPLETION_NEUTRAL)


def read_chat(
    data: Any, model: ModelText, names: tuple[str, ...], context_length: int, template: ChatTemplate
) -> OpenAIBody:
    """Read the body of ``/v1/chat/completions``. Raises BadField."""
    fields = Fields(data)
    _check_model(fields, names)
    prompt = template.render(_messages(fields))
    ids = prompt_ids(prompt, "messages", model, context_length)
    limit = "max_tokens" if fields.get("max_completion_tokens") is None else "max_completion_tokens"
    fields.get("max_tokens")
    room = max(context_length - len(ids), 1)
    sampling = read_sampling(
        fields, model, default_tokens=room, names={"max_new_tokens": limit, "sampling_seed": "seed"}
    )
    wanted, top = fields.switch("logprobs", False), fields.whole("top_logprobs", 0, 0, 20)
    if top and not wanted:
        raise fields.bad("top_logprobs", "needs logprobs to be true")
    return _body(fields, [ids], sampling, top if wanted else None, CHAT_NEUTRAL)


def _body(
    fields: Fields,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingFields,
    top: int | None,
    neutral: Mapping[str, tuple[Any, ...]],
) -> OpenAIBody:
    stream = fields.switch("stream", False)
    usage = False
    if (stream_options := fields.get("stream_options")) is not None:
        if not stream:
            raise fields.bad("stream_options", "needs stream to be true")
        options = Fields(stream_options, fields.at("stream_options"))
        usage = options.switch("include_usage", False)
        options.close({"continuous_usage_stats": (False,), "include_obfuscation": (False, True)})
    fields.text("user")
    given = fields.get("rid")
    rid = new_rid() if given is None else request_name(given, fields.at("rid"))
    speculative = fields.switch("speculative", True)
    fields.close(neutral)
    rids = [rid] if len(prompts) == 1 else [f"{rid}_{number}" for number in range(len(prompts))]
    logprobs = None if top is None else LogprobWish(top)
    asked = [
        AskedPrompt(Wish(own, ids, sampling.engine, speculative, logprobs), sampling)
        for own, ids in zip(rids, prompts, strict=True)
    ]
    return OpenAIBody(sampled(asked, fields.at("n")), stream, usage, top, sampling.samples)


def _check_model(fields: Fields, names: tuple[str, ...]) -> None:
    name = fields.text("model")
    if name is not None and name not in names:
        raise _NoModel("model", f"there is no model {one_line(name, 80)!r}; this server has {names[0]!r}")


class _NoModel(BadField):
    status = 404


def _prompts(fields: Fields, model: ModelText, context_length: int) -> list[Sequence[int]]:
    value = fields.get("prompt")
    if not isinstance(value, str | list) or value == []:
        raise fields.bad("prompt", "must be a string, a list of strings, or token ids")
    listed = value if isinstance(value, list) and not isinstance(value[0], int) else [value]
    if len(listed) > MAX_BATCH:
        raise fields.bad("prompt", f"must hold {MAX_BATCH} prompts at most, got {len(listed)}")
    return [
        token_ids(each, "prompt", model, context_length)
        if isinstance(each, list)
        else prompt_ids(text(each, "prompt"), "prompt", model, context_length)
        for each in listed
    ]


def _messages(fields: Fields) -> list[dict[str, str]]:
    value = fields.get("messages")
    if not isinstance(value, list) or not 0 < len(value) <= MAX_MESSAGES:
        raise fields.bad("messages", f"must be a list of 1 to {MAX_MESSAGES} messages")
    return [_message(Fields(each, f"messages[{number}]")) for number, each in enumerate(value)]


def _message(fields: Fields) -> dict[str, str]:
    role = fields.text("role")
    if role not in ROLES:
        raise fields.bad("role", f"must be one of {', '.join(ROLES)}")
    content = fields.get("content")
    if isinstance(content, list):
        content = "".join(_part(Fields(each, f"{fields.at('content')}[{at}]")) for at, each in enumerate(content))
    content = text(content, fields.at("content"))
    fields.text("name")
    fields.close(dict.fromkeys(("tool_calls", "refusal", "audio", "function_call", "reasoning_content"), _NOTHING))
    return {"role": role, "content": content}


def _part(fields: Fields) -> str:
    if fields.text("type") != "text":
        raise fields.bad("type", "must be text: the server takes no other content")
    found = fields.text("text")
    if found is None:
        raise fields.bad("text", "must be a string")
    fields.close({})
    return found
