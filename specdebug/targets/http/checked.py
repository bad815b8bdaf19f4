"""Answers of a server, checked once: the type, the range and the size of every field that is read of them. The tables
are all that is known of the interface; fields that they do not name are dropped, and those that are null."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import SchemaValidator, ValidationError
from pydantic_core import core_schema as form

from specdebug.base.errors import one_line

MOST = 2**31 - 1
"""The largest count, and the largest token id."""
MOST_CHARACTERS = 8 << 20
MOST_ENTRIES = 1 << 20
MOST_DRAFTS = 4096
"""The most drafts that a verify may accept, and so the longest histogram."""

Check = SchemaValidator


class BadAnswer(Exception):
    """An answer that is none of the interface's. Names route and field."""


def read(route: str, check: Check, document: Any) -> Any:
    """Return the checked answer of a route. Raises BadAnswer."""
    try:
        return check.validate_python(document)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False)[0]
    place: list[str] = []
    for key in wrong["loc"]:  # of a choice of types it also names the type
        try:
            document = document[key]
        except (KeyError, IndexError, TypeError):
            if wrong["type"] != "missing":
                continue
        place.append(one_line(str(key), 40))
    told = one_line(wrong["msg"].removeprefix("Input should be "), 200)
    what = "missing" if wrong["type"] == "missing" else f"{_shown(wrong['input'])}, not {told}"
    raise BadAnswer(f"{route}: {'.'.join(place) or 'the answer'} is {what}") from None


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    if value is None:
        return "null"
    return one_line(repr(value), 60) if not isinstance(value, int) or abs(value) < 10**40 else "a very long number"


def table(fields: Mapping[str, Any], *required: str) -> Any:
    """A mapping with these fields, of which some are required."""
    known = {name: form.typed_dict_field(each, required=name in required) for name, each in fields.items()}
    return form.no_info_after_validator_function(
        lambda made: {name: value for name, value in made.items() if value is not None},
        form.typed_dict_schema(known, extra_behavior="ignore"),
    )


def list_of(each: Any, most: int = MOST_ENTRIES) -> Any:
    return form.list_schema(each, max_length=most)


def map_of(key: Any, each: Any, most: int = MOST_DRAFTS) -> Any:
    return form.dict_schema(key, each, max_length=most)


maybe = form.nullable_schema
WHOLE = form.int_schema(ge=0, le=MOST, strict=True)
_FLAG, _NUMBER = form.bool_schema(strict=True), form.float_schema(strict=True, allow_inf_nan=False)
_TEXT, _LINE, _WORD = (form.str_schema(max_length=most) for most in (MOST_CHARACTERS, 1 << 16, 200))
_COUNT, _RATE = maybe(WHOLE), maybe(form.float_schema(ge=0, le=10**6, strict=True))
_SCALAR = maybe(form.union_schema([_FLAG, form.int_schema(strict=True), _NUMBER, _LINE]))
_STEP = {"step": _COUNT}
_LOGPROB = form.no_info_after_validator_function(
    lambda told: (*told, None)[:3],
    form.tuple_schema([form.float_schema(le=1, strict=True), WHOLE, maybe(_LINE)], variadic_item_index=2),
)
"""A log probability, its token, and where it is told that token's text."""
HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
"""Names of SGLang's histogram of correct drafts, the newer one first."""

DRAFTS = (("spec_num_correct_drafts", "spec_num_proposed_drafts"), ("spec_accept_token_num", "spec_draft_token_num"))
"""Names of the drafts that were right and of those that were made, the newer ones first."""

_META = table(
    {
        **dict.fromkeys(("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"), _COUNT),
        **dict.fromkeys(("num_retractions", "spec_verify_ct", *(name for pair in DRAFTS for name in pair)), _COUNT),
        **dict.fromkeys(("spec_accept_length", "spec_accept_rate"), _RATE),
        **dict.fromkeys(HISTOGRAMS, maybe(list_of(WHOLE, MOST_DRAFTS))),
        "finish_reason": maybe(table({"type": _WORD, "matched": maybe(form.union_schema([WHOLE, _LINE]))}, "type")),
        "output_token_logprobs": maybe(list_of(_LOGPROB)),
        "output_top_logprobs": maybe(list_of(list_of(_LOGPROB, MOST_DRAFTS))),
    }
)
_FOUND: dict[str, Any] = {
    "signature": form.str_schema(max_length=300, pattern=r"\A[\w:.-]+(@[^\s@]+)?\Z", regex_engine="python-re")
}
_FOUND |= {"detail": _LINE, **_STEP}
_OWN = table(
    {
        "speculative_switch": _FLAG,
        "engine": table({"state": _WORD, **_STEP}),
        "failure": maybe(table(_FOUND, "signature")),
        "violations": list_of(table(_FOUND, "signature", "detail"), 1000),
        "reverts": map_of(form.str_schema(max_length=20, pattern=r"^\d+$"), map_of(_WORD, WHOLE)),
        "reached_sites": map_of(_WORD, WHOLE),
        "stack": map_of(_WORD, form.union_schema([_SCALAR, map_of(_WORD, _SCALAR, 100)]), 100),
    }
)


def _answer(fields: Mapping[str, Any], *required: str) -> Check:
    return SchemaValidator(table(fields, *required))


GENERATED = _answer({"text": _TEXT, "output_ids": list_of(WHOLE), "meta_info": _META}, "meta_info")
"""An answer of ``/generate``, or an event of a streamed one."""
COMPLETED = _answer({"choices": list_of(table({"text": _TEXT}, "text"), 1)}, "choices")
"""The same of ``/v1/completions``, of one prompt; a stream's last event may have no choice."""
SERVER_INFO = _answer(
    {
        **dict.fromkeys(("version", "dtype", "speculative_algorithm", "attention_backend"), maybe(_WORD)),
        **dict.fromkeys(("stream_output", "incremental_streaming_output", "disable_radix_cache"), maybe(_FLAG)),
        **dict.fromkeys(("page_size", "max_total_num_tokens"), _COUNT),
        "model_path": maybe(_LINE),
        "internal_states": maybe(list_of(table({"avg_spec_accept_length": _RATE}), MOST_DRAFTS)),
        "specdebug": _OWN,
    }
)
MODEL_INFO = _answer({"model_path": maybe(_LINE)})
