"""The body of ``/generate``, and the sampling parameters that it shares with OpenAI's routes."""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specdebug.apps.serve.fields import BadField, Fields, read, text, whole
from specdebug.apps.serve.served import LogprobWish, Wish
from specdebug.apps.serve.text import ModelText
from specdebug.base.schema import Item

MAX_BATCH = 1024
"""Prompts of one body."""
MAX_SAMPLES = 128
MAX_STOPS = 64
MAX_LOGPROBS = 128
MAX_RID = 200
MAX_STOP_CHARS = 1000
MAX_STOP_IDS = 1024
REQUEST_BYTES, TOKEN_BYTES, LOGPROB_BYTES = 48 << 10, 64, 150
"""Memory of a request, of a token of its output with its text, and of a log probability, on their way to a client."""
GREEDY_BELOW = 1e-6
"""Lower temperatures are greedy, as in SGLang: logits divided by them would be infinite."""

_NOTHING: tuple[Any, ...] = (False, [], {}, "")

SAMPLING_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "min_p": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "min_new_tokens": (0,),
    "beam_width": (1,),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "structural_tag": (),
    "stop_regex": _NOTHING,
    "custom_params": _NOTHING,
    "stream_interval": (1,),
    "logit_bias": _NOTHING,
    "spaces_between_special_tokens": (True, False),
}
"""Sampling parameters of SGLang's that this engine lacks, and the values of each that ask for nothing."""

GENERATE_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("input_embeds", "image_data", "video_data", "audio_data", "lora_path", "lora_id", "session_params",
         "modalities", "custom_logit_processor", "extra_key", "custom_labels", "priority",
         "bootstrap_host", "bootstrap_port", "bootstrap_room", "data_parallel_rank", "conversation_id",
         "routed_dp_rank"),
        _NOTHING,
    ),
    "stream_options": ({}, {"include_usage": True}, {"include_usage": False}),  # meta_info has the usage, always
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "return_bytes": (False,),
    "return_entropy": (False,),
    "background": (False,),
    "log_metrics": (True, False),
    "no_logs": (True, False),
    "validation_time": (),
    "received_time": (),
}  # fmt: skip
"""The same of the body."""


@dataclass(frozen=True)
class SamplingFields:
    """Sampling parameters as read. ``engine``: fields of the engine's ``SamplingParams``. ``silent``: no token is asked
    for, as by who wants the prompt's log probabilities alone; the engine's one is dropped. ``samples``: how often
    the prompt is to be served."""

    engine: Mapping[str, Any]
    stops: tuple[str, ...] = ()
    skip_special: bool = True
    keep_stop: bool = False
    silent: bool = False
    samples: int = 1


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
    """All prompts of a body, and whether they are answered by a stream."""

    asked: tuple[AskedPrompt, ...]
    stream: bool


@dataclass(frozen=True)
class GenerateBody(AskedBody):
    """``single``: the answer is one object, and no list."""

    single: bool


def read_generate(data: Any, model: ModelText, context_length: int) -> GenerateBody:
    """Read the body of ``/generate``. Raises BadField."""
    fields = Fields(data)
    prompts, single = _prompts(fields, model, context_length)
    count = len(prompts)
    samplings = [
        _sampling_params(Fields(each, path), model) for each, path in _each(fields, "sampling_params", count, {})
    ]
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
    wishes = [
        LogprobWish(top, own, start if 0 <= start < len(ids) else None)
        for top, own, start, ids in zip(tops, chosen, starts, prompts, strict=True)
    ]
    asked = [
        AskedPrompt(
            Wish(rid, ids, sampling.engine, speculative, logprobs if wants else None, sampling.silent),
            sampling,
            texts,
        )
        for rid, ids, sampling, wants, logprobs in zip(rids, prompts, samplings, wanted, wishes, strict=True)
    ]
    every = sampled(asked, fields.at("sampling_params"))
    return GenerateBody(every, stream, single and len(every) == 1)


def sampled(asked: Sequence[AskedPrompt], path: str) -> tuple[AskedPrompt, ...]:
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


def _sampling_params(fields: Fields, model: ModelText) -> SamplingFields:
    sampling = read_sampling(fields, model, default_tokens=128, least_tokens=0)
    fields.close(SAMPLING_NEUTRAL)
    return sampling


def read_sampling(
    fields: Fields,
    model: ModelText,
    *,
    default_tokens: int,
    least_tokens: int = 1,
    names: Mapping[str, str] | None = None,
) -> SamplingFields:
    """Read SGLang's ``sampling_params``; ``names``: those that have another name in this body. Raises BadField."""

    def own(name: str) -> str:
        return (names or {}).get(name, name)

    top_k = fields.whole("top_k", -1, -1)
    if top_k == 0:
        raise fields.bad("top_k", "must be -1 (all) or at least 1, got 0")
    stop_ids = fields.get("stop_token_ids")
    at = fields.at("stop_token_ids")
    if isinstance(stop_ids, list) and len(stop_ids) > MAX_STOP_IDS:
        raise BadField(at, f"must hold {MAX_STOP_IDS} at most, got {len(stop_ids)}")
    stop_ids = [whole(each, at, 0, 2**31) for each in (stop_ids if isinstance(stop_ids, list) else [stop_ids])
                if each is not None]  # fmt: skip
    stops = fields.texts("stop", MAX_STOPS)
    if any(not stop or "\ufffd" in stop for stop in stops):
        raise fields.bad("stop", "must be neither empty nor hold U+FFFD, which stands for bytes that are no text")
    if any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise fields.bad("stop", f"must have {MAX_STOP_CHARS} characters at most")
    tokens = fields.whole(own("max_new_tokens"), default_tokens, least_tokens)
    temperature = fields.number("temperature", 1.0, 0, 2**53)
    eos = () if fields.switch("ignore_eos", False) else model.eos_ids
    engine = {
        "max_new_tokens": max(tokens, 1),
        "temperature": temperature if temperature >= GREEDY_BELOW else 0.0,
        "top_p": fields.number("top_p", 1.0, 0, 1, above=True),
        "top_k": 0 if top_k == -1 else top_k,
        "stop_token_ids": list(dict.fromkeys((*stop_ids, *eos))),
        "stop": list(stops),
        "seed": fields.whole(own("sampling_seed"), 0, 0),
    }
    skip_special, keep_stop = fields.switch("skip_special_tokens", True), fields.switch("no_stop_trim", False)
    samples = fields.whole("n", 1, 1, MAX_SAMPLES)
    return SamplingFields(engine, stops, skip_special, keep_stop, silent=not tokens, samples=samples)


def new_rid() -> str:
    """An id for a request that brings none."""
    return uuid.uuid4().hex


def prompt_ids(value: str, path: str, model: ModelText, context_length: int) -> Sequence[int]:
    """The ids of a prompt's text. Raises BadField for one that is empty or longer than ``context_length`` tokens."""
    if len(value) > context_length * model.longest_token:
        raise BadField(path, f"is too long: {len(value)} characters, context_length is {context_length} tokens")
    ids = model.encode(value)
    if not ids:
        raise BadField(path, "must not be empty")
    if len(ids) > context_length:
        raise BadField(path, f"is too long: {len(ids)} tokens, context_length is {context_length}")
    return array("l", ids)


def token_ids(value: Any, path: str, model: ModelText, context_length: int) -> Sequence[int]:
    """A prompt that comes as ids, of the model's vocabulary. Raises BadField."""
    if not isinstance(value, list) or not value:
        raise BadField(path, "must be a list of token ids, at least one")
    if len(value) > context_length:
        raise BadField(path, f"is too long: {len(value)} tokens, context_length is {context_length}")
    return array("l", (whole(each, path, 0, model.vocab_size - 1) for each in value))


def request_name(value: Any, path: str) -> str:
    """A ``rid``. Raises BadField."""
    rid = text(value, path)
    if not 0 < len(rid) <= MAX_RID:
        raise BadField(path, f"must have 1 to {MAX_RID} characters")
    return rid


def _prompts(fields: Fields, model: ModelText, context_length: int) -> tuple[list[Sequence[int]], bool]:
    value, ids = fields.get("text"), fields.get("input_ids")
    if (value is None) == (ids is None):
        raise fields.bad("text", "either text or input_ids must be given, and not both")
    name = "text" if ids is None else "input_ids"
    given = value if ids is None else ids
    if not isinstance(given, str | list) or given == []:
        raise fields.bad(name, "must be a string, or a list of them" if ids is None else "must be a list of token ids")
    single = isinstance(given, str) or (name == "input_ids" and not isinstance(given[0], list))
    listed = [given] if single else given
    if len(listed) > MAX_BATCH:
        raise fields.bad(name, f"must hold {MAX_BATCH} prompts at most, got {len(listed)}")
    at = fields.at(name)
    if ids is not None:
        return [token_ids(each, at, model, context_length) for each in listed], single
    return [prompt_ids(text(each, at), at, model, context_length) for each in listed], single


def _each(fields: Fields, name: str, count: int, default: Any) -> list[tuple[Any, str]]:
    """A field's value for each prompt, given once or as a list, with its path."""
    value = fields.get(name)
    if value is None:
        value = default
    at = fields.at(name)
    if not isinstance(value, list):
        return [(value, at)] * count
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
        return [new_rid() for _ in range(count)]
    if isinstance(value, str) and not single:
        value = [f"{value}_{number}" for number in range(count)]
    listed = value if isinstance(value, list) else [value]
    at = fields.at("rid")
    rids = [request_name(each, at) for each in listed]
    if len(rids) != count or len(set(rids)) != count:
        raise fields.bad("rid", f"must name each of the {count} prompts, no two alike")
    return rids
