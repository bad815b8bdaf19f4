"""The bodies of ``/generate`` and of OpenAI's two routes, with the fields that SGLang adds to those."""

import uuid
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specdebug.apps.serve.fields import BadField, Fields, read, text, whole
from specdebug.apps.serve.requests import LogprobWish, Wish
from specdebug.apps.serve.text import ChatTemplate, ModelText
from specdebug.base.errors import one_line
from specdebug.base.features import WITHOUT_GRAMMAR, Features
from specdebug.base.schema import Item, keys_of

MAX_BATCH = 1024  # prompts of one body
MAX_SAMPLES = 128
MAX_STOPS = 64
MAX_LOGPROBS = 128
MAX_RID = 200
MAX_STOP_CHARS = 1000
MAX_STOP_IDS = 1024
MAX_MESSAGES = 10_000
REQUEST_BYTES, TOKEN_BYTES, LOGPROB_BYTES = 48 << 10, 64, 150
"""Memory of a request, of a token of its output with its text, and of a log probability, on their way to a client."""
GREEDY_BELOW = 1e-6  # lower temperatures are greedy, as in SGLang: logits divided by them would be infinite
ROLES = ("system", "developer", "user", "assistant", "tool")

Neutral = Mapping[str, tuple[Any, ...]]  # fields that this server lacks, and the values of each that ask for nothing
_NOTHING: tuple[Any, ...] = (False, [], {}, "")
_STEERING = WITHOUT_GRAMMAR - {"logprobs", "n"}  # these two are read for all prompts of a body

SAMPLING_NEUTRAL: Neutral = {
    **dict.fromkeys(("beam_width", "stream_interval"), (1,)),
    **dict.fromkeys(("json_schema", "regex", "ebnf", "structural_tag"), ()),
    **dict.fromkeys(("stop_regex", "custom_params"), _NOTHING),
    "spaces_between_special_tokens": (True, False),
}
GENERATE_NEUTRAL: Neutral = {
    **dict.fromkeys(
        ("input_embeds", "image_data", "video_data", "audio_data", "lora_path", "lora_id", "session_params",
         "modalities", "custom_logit_processor", "extra_key", "custom_labels", "priority",
         "bootstrap_host", "bootstrap_port", "bootstrap_room", "data_parallel_rank", "conversation_id",
         "routed_dp_rank"),
        _NOTHING,
    ),
    "stream_options": ({}, {"include_usage": True}, {"include_usage": False}),  # meta_info has the usage, always
    **dict.fromkeys(
        ("return_hidden_states", "return_routed_experts", "return_bytes", "return_entropy", "background"), (False,)
    ),
    **dict.fromkeys(("log_metrics", "no_logs"), (True, False)),
    **dict.fromkeys(("validation_time", "received_time"), ()),
}  # fmt: skip
_OPENAI: Neutral = {
    **SAMPLING_NEUTRAL,
    **dict.fromkeys(
        ("lora_path", "session_params", "extra_key", "custom_labels", "priority", "cache_salt", "store", "metadata",
         "service_tier", "return_hidden_states", "return_routed_experts", "custom_logit_processor"),
        _NOTHING,
    ),
    "response_format": ({"type": "text"},),
    "continue_final_message": (False,),
    **dict.fromkeys(("separate_reasoning", "stream_reasoning"), (True, False)),
}  # fmt: skip
COMPLETION_NEUTRAL: Neutral = {**_OPENAI, "best_of": (1,), "echo": (False,), "suffix": ("",)}
CHAT_NEUTRAL: Neutral = {
    **_OPENAI,
    **dict.fromkeys(("tools", "functions", "chat_template_kwargs", "modalities", "audio", "prediction"), _NOTHING),
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
    "parallel_tool_calls": (True, False),
    "reasoning_effort": ("medium", "none"),
    "verbosity": ("medium",),
    "web_search_options": (),
}


@dataclass(frozen=True)
class SamplingFields:
    """Sampling parameters as read. ``engine``: fields of the engine's ``SamplingParams``. ``silent``: no token is asked
    for, as by who wants the prompt's log probabilities alone; the engine's one is dropped. ``samples``: how often
    the prompt is to be served."""

    engine: Mapping[str, Any]
    stops: tuple[str, ...]
    skip_special: bool
    keep_stop: bool
    silent: bool
    samples: int


@dataclass(frozen=True)
class AskedPrompt:
    """One prompt of a body. ``text_logprobs``: log probabilities come with the text of their tokens."""

    wish: Wish
    sampling: SamplingFields
    text_logprobs: bool = False

    @property
    def positions(self) -> int:
        """Tokens of the prompt and its output."""
        return len(self.wish.ids) + int(self.wish.sampling["max_new_tokens"])

    @property
    def bytes(self) -> int:
        """Memory that the front needs for it until its answer is sent, at most."""
        wish = self.wish
        places = output = int(wish.sampling["max_new_tokens"])
        size = REQUEST_BYTES + 8 * len(wish.ids) + TOKEN_BYTES * output
        if wish.logprobs is None:
            return size
        if wish.logprobs.start is not None:
            places += len(wish.ids) - wish.logprobs.start
        return size + LOGPROB_BYTES * places * (2 + 2 * wish.logprobs.top + len(wish.logprobs.ids))


@dataclass(frozen=True)
class AskedBody:
    """All prompts of a body, and whether they are answered by a ``stream``. ``single``: the answer is one object, and
    no list. Of OpenAI's: ``usage``: a stream ends with how many tokens it had; ``top``: how many log probabilities of
    each position are told; ``samples``: choices of each prompt."""

    asked: tuple[AskedPrompt, ...]
    stream: bool
    single: bool = False
    usage: bool = False
    top: int | None = None
    samples: int = 1


def read_generate(data: Any, model: ModelText, context_length: int) -> AskedBody:
    """Read the body of ``/generate``. Raises BadField."""
    fields = Fields(data)
    prompts, single = _generate_prompts(fields, model, context_length)
    count = len(prompts)
    samplings = []
    for each, path in _each(fields, "sampling_params", count, {}):
        params = Fields(each, path)
        samplings.append(read_sampling(params, model, 128, least_tokens=0))
        params.close(SAMPLING_NEUTRAL)
    rids = _rids(fields, count, single)
    wanted = [read(each, path, Item.boolean) for each, path in _each(fields, "return_logprob", count, False)]
    tops = [whole(each, path, 0, MAX_LOGPROBS) for each, path in _each(fields, "top_logprobs_num", count, 0)]
    starts = [whole(each, path, -1, 2**31) for each, path in _each(fields, "logprob_start_len", count, -1)]
    for start, ids in zip(starts, prompts, strict=True):
        if start > len(ids):
            raise fields.bad("logprob_start_len", f"must be no more than the prompt's {len(ids)} tokens, got {start}")
    chosen = _token_lists(fields, count, model.vocab_size)
    texts = fields.switch("return_text_in_logprobs", False)
    speculative = fields.switch("speculative", True)
    stream = fields.switch("stream", False)
    fields.text("model")  # clients that know several servers send one; there is one here
    fields.close(GENERATE_NEUTRAL)
    asked = []
    for at, (rid, ids, sampling) in enumerate(zip(rids, prompts, samplings, strict=True)):
        logprobs = LogprobWish(tops[at], chosen[at], starts[at] if 0 <= starts[at] < len(ids) else None)
        wish = Wish(rid, ids, sampling.engine, speculative, logprobs if wanted[at] else None, sampling.silent)
        asked.append(AskedPrompt(wish, sampling, texts))
    every = _sampled(asked, fields.at("sampling_params"))
    return AskedBody(every, stream, single and len(every) == 1)


def read_completion(data: Any, model: ModelText, names: tuple[str, ...], context_length: int) -> AskedBody:
    """Read the body of ``/v1/completions``; ``names`` are the model's. Raises BadField."""
    fields = Fields(data)
    _check_model(fields, names)
    value = fields.get("prompt")
    if not isinstance(value, str | list) or value == []:
        raise fields.bad("prompt", "must be a string, a list of strings, or token ids")
    listed = value if isinstance(value, list) and not isinstance(value[0], int) else [value]
    prompts = _prompts(listed, fields, "prompt", model, context_length)
    sampling = read_sampling(fields, model, 16, tokens_name="max_tokens", openai=True)
    top = None if fields.get("logprobs") is None else fields.whole("logprobs", 0, 0, 5)
    return _openai_body(fields, prompts, sampling, top, COMPLETION_NEUTRAL)


def read_chat(
    data: Any, model: ModelText, names: tuple[str, ...], context_length: int, template: ChatTemplate
) -> AskedBody:
    """Read the body of ``/v1/chat/completions``. Raises BadField."""
    fields = Fields(data)
    _check_model(fields, names)
    messages = fields.get("messages")
    if not isinstance(messages, list) or not 0 < len(messages) <= MAX_MESSAGES:
        raise fields.bad("messages", f"must be a list of 1 to {MAX_MESSAGES} messages")
    told = [_message(Fields(each, f"messages[{number}]")) for number, each in enumerate(messages)]
    ids = _prompt_ids(template.render(told), "messages", model, context_length)
    limit = "max_tokens" if fields.get("max_completion_tokens") is None else "max_completion_tokens"
    fields.get("max_tokens")
    room = max(context_length - len(ids), 1)
    sampling = read_sampling(fields, model, room, tokens_name=limit, openai=True)
    wanted, top = fields.switch("logprobs", False), fields.whole("top_logprobs", 0, 0, 20)
    if top and not wanted:
        raise fields.bad("top_logprobs", "needs logprobs to be true")
    return _openai_body(fields, [ids], sampling, top if wanted else None, CHAT_NEUTRAL)


def _openai_body(
    fields: Fields, prompts: Sequence[Sequence[int]], sampling: SamplingFields, top: int | None, neutral: Neutral
) -> AskedBody:
    stream, usage = fields.switch("stream", False), False
    if (stream_options := fields.get("stream_options")) is not None:
        if not stream:
            raise fields.bad("stream_options", "needs stream to be true")
        options = Fields(stream_options, fields.at("stream_options"))
        usage = options.switch("include_usage", False)
        options.close({"continuous_usage_stats": (False,), "include_obfuscation": (False, True)})
    fields.text("user")
    given = fields.get("rid")
    rid = uuid.uuid4().hex if given is None else _rid(given, fields.at("rid"))
    speculative = fields.switch("speculative", True)
    fields.close(neutral)
    rids = [rid] if len(prompts) == 1 else [f"{rid}_{number}" for number in range(len(prompts))]
    logprobs = None if top is None else LogprobWish(top)
    asked = [
        AskedPrompt(Wish(own, ids, sampling.engine, speculative, logprobs), sampling)
        for own, ids in zip(rids, prompts, strict=True)
    ]
    every = _sampled(asked, fields.at("n"))
    return AskedBody(every, stream, usage=usage, top=top, samples=sampling.samples)


def read_sampling(
    fields: Fields,
    model: ModelText,
    default_tokens: int,
    *,
    least_tokens: int = 1,
    tokens_name: str = "max_new_tokens",
    openai: bool = False,
) -> SamplingFields:
    """Read SGLang's ``sampling_params``, some of which have other names in OpenAI's bodies. Raises BadField."""
    top_k = fields.whole("top_k", -1, -1)
    if top_k == 0:
        raise fields.bad("top_k", "must be -1 (all) or at least 1, got 0")
    stop_ids = fields.listed(
        "stop_token_ids", MAX_STOP_IDS, lambda each, at: None if each is None else whole(each, at, 0, 2**31)
    )
    stops = tuple(fields.listed("stop", MAX_STOPS, text))
    if any(not stop or "\ufffd" in stop for stop in stops):
        raise fields.bad("stop", "must be neither empty nor hold U+FFFD, which stands for bytes that are no text")
    if any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise fields.bad("stop", f"must have {MAX_STOP_CHARS} characters at most")
    tokens = fields.whole(tokens_name, default_tokens, least_tokens)
    temperature = fields.number("temperature", 1.0, 0, 2**53)
    eos = () if fields.switch("ignore_eos", False) else model.eos_ids
    engine = {
        "max_new_tokens": max(tokens, 1),
        "temperature": temperature if temperature >= GREEDY_BELOW else 0.0,
        "top_p": fields.number("top_p", 1.0, 0, 1, above=True),
        "top_k": 0 if top_k == -1 else top_k,
        "stop_token_ids": list(dict.fromkeys((*(each for each in stop_ids if each is not None), *eos))),
        "stop": list(stops),
        "seed": fields.whole("seed" if openai else "sampling_seed", 0, 0),
    }
    beside = {}
    for key in keys_of(Features):
        given = "min_tokens" if openai and key.name == "min_new_tokens" else key.name
        if key.name in _STEERING and (value := fields.get(given)) is not None:
            beside[key.name] = read(value, fields.at(given), key.kind.read)
    if any(int(token) >= model.vocab_size for token in beside.get("logit_bias", ())):
        raise fields.bad("logit_bias", f"must name tokens below {model.vocab_size}")
    if beside:
        engine["features"] = beside
    skip_special, keep_stop = fields.switch("skip_special_tokens", True), fields.switch("no_stop_trim", False)
    samples = fields.whole("n", 1, 1, MAX_SAMPLES)
    return SamplingFields(engine, stops, skip_special, keep_stop, silent=not tokens, samples=samples)


def _sampled(asked: Sequence[AskedPrompt], path: str) -> tuple[AskedPrompt, ...]:
    """Each prompt as often as it is to be served, the samples of one together. Raises BadField."""
    samples = {each.sampling.samples for each in asked}
    if len(samples) > 1:
        raise BadField(path, f"must have one n for all prompts, got {', '.join(map(str, sorted(samples)))}")
    (n,) = samples
    if n == 1:
        return tuple(asked)
    if n * len(asked) > MAX_BATCH:
        raise BadField(path, f"must ask for {MAX_BATCH} outputs at most, got {n * len(asked)}")
    return tuple(
        replace(each, wish=replace(each.wish, rid=f"{each.wish.rid}_{number}")) for each in asked for number in range(n)
    )


def _generate_prompts(fields: Fields, model: ModelText, context_length: int) -> tuple[list[Sequence[int]], bool]:
    """The prompts, and whether there is one that stands alone."""
    value, ids = fields.get("text"), fields.get("input_ids")
    if (value is None) == (ids is None):
        raise fields.bad("text", "either text or input_ids must be given, and not both")
    name, given = ("text", value) if ids is None else ("input_ids", ids)
    if not isinstance(given, str | list) or given == []:
        raise fields.bad(name, "must be a string, or a list of them" if ids is None else "must be a list of token ids")
    single = isinstance(given, str) or (name == "input_ids" and not isinstance(given[0], list))
    listed = [given] if single else given
    return _prompts(listed, fields, name, model, context_length), single


def _prompts(
    listed: Sequence[Any], fields: Fields, name: str, model: ModelText, context_length: int
) -> list[Sequence[int]]:
    """Texts, or lists of ids; a field of one name may hold both."""
    if len(listed) > MAX_BATCH:
        raise fields.bad(name, f"must hold {MAX_BATCH} prompts at most, got {len(listed)}")
    return [
        _token_ids(each, name, model, context_length)
        if name == "input_ids" or (name == "prompt" and isinstance(each, list))
        else _prompt_ids(text(each, name), name, model, context_length)
        for each in listed
    ]


def _prompt_ids(value: str, path: str, model: ModelText, context_length: int) -> Sequence[int]:
    """The ids of a prompt's text. Raises BadField for one that is empty or longer than ``context_length`` tokens."""
    if len(value) > context_length * model.longest_token:
        raise BadField(path, f"is too long: {len(value)} characters, context_length is {context_length} tokens")
    ids = model.encode(value)
    if not ids:
        raise BadField(path, "must not be empty")
    if len(ids) > context_length:
        raise BadField(path, f"is too long: {len(ids)} tokens, context_length is {context_length}")
    return array("l", ids)


def _token_ids(value: Any, path: str, model: ModelText, context_length: int) -> Sequence[int]:
    """A prompt that comes as ids, of the model's vocabulary. Raises BadField."""
    if not isinstance(value, list) or not value:
        raise BadField(path, "must be a list of token ids, at least one")
    if len(value) > context_length:
        raise BadField(path, f"is too long: {len(value)} tokens, context_length is {context_length}")
    return array("l", (whole(each, path, 0, model.vocab_size - 1) for each in value))


def _each(fields: Fields, name: str, count: int, default: Any) -> list[tuple[Any, str]]:
    """A field's value for each prompt, given once or as a list, with its path."""
    value = fields.get(name)
    at = fields.at(name)
    if not isinstance(value, list):
        return [(default if value is None else value, at)] * count
    if len(value) != count:
        raise fields.bad(name, f"must hold one for each of the {count} prompts, got {len(value)}")
    return [(default if each is None else each, f"{at}[{number}]") for number, each in enumerate(value)]


def _token_lists(fields: Fields, count: int, vocab_size: int) -> list[list[int]]:
    """``token_ids_logprob``: ids for all prompts, or a list of them for each."""
    value = fields.get("token_ids_logprob") or []
    at = fields.at("token_ids_logprob")
    if not isinstance(value, list):
        raise BadField(at, "must be a list of token ids")
    each = value if value and isinstance(value[0], list) else [value] * count
    if len(each) != count or any(not isinstance(ids, list) or len(ids) > MAX_LOGPROBS for ids in each):
        raise BadField(at, f"must be a list of at most {MAX_LOGPROBS} token ids, or one for each prompt")
    return [[whole(token, at, 0, vocab_size - 1) for token in ids] for ids in each]


def _rids(fields: Fields, count: int, single: bool) -> Sequence[str]:
    value = fields.get("rid")
    if value is None:
        return [uuid.uuid4().hex for _ in range(count)]
    if isinstance(value, str) and not single:
        value = [f"{value}_{number}" for number in range(count)]
    rids = [_rid(each, fields.at("rid")) for each in (value if isinstance(value, list) else [value])]
    if len(rids) != count or len(set(rids)) != count:
        raise fields.bad("rid", f"must name each of the {count} prompts, no two alike")
    return rids


def _rid(value: Any, path: str) -> str:
    rid = text(value, path)
    if not 0 < len(rid) <= MAX_RID:
        raise BadField(path, f"must have 1 to {MAX_RID} characters")
    return rid


def _check_model(fields: Fields, names: tuple[str, ...]) -> None:
    name = fields.text("model")
    if name is not None and name not in names:
        raise BadField("model", f"there is no model {one_line(name, 80)!r}; this server has {names[0]!r}", 404)


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
