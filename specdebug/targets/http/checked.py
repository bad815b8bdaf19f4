"""Answers of a server, checked once: the type, the range and the size of every field that is read of them. The tables
at the end are all that is known of the interface; fields that they do not name are dropped."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from specdebug.base.errors import one_line

MOST = 2**31 - 1
"""The largest count, and the largest token id."""
MOST_CHARACTERS = 8 << 20
MOST_ENTRIES = 1 << 20
MOST_DRAFTS = 4096
"""The most drafts that a verify may accept, and so the longest histogram."""

MISSING = object()
"""In the place of the value of a field that is not there."""

Check = Callable[[Any], Any]


class BadAnswer(Exception):
    """An answer that is none of the interface's. Names route and field."""


class Wrong(Exception):
    """A value is not what its field must be. ``place``: of the value inside the one that was checked."""

    def __init__(self, value: Any, wanted: str, place: str = "") -> None:
        super().__init__(wanted)
        self.value = value
        self.wanted = wanted
        self.place = place

    def within(self, place: str) -> Wrong:
        """The same as seen from around."""
        return Wrong(self.value, self.wanted, f"{place}.{self.place}" if self.place else place)


def read(route: str, check: Check, document: Any) -> Any:
    """Return the checked answer of a route. Raises BadAnswer."""
    try:
        return check(document)
    except Wrong as wrong:
        what = "missing" if wrong.value is MISSING else f"{_shown(wrong.value)}, not {wrong.wanted}"
        raise BadAnswer(f"{route}: {wrong.place or 'the answer'} is {what}") from None


def whole(value: Any, low: int = 0, high: int = MOST) -> int:
    """A whole number from ``low`` to ``high``."""
    if type(value) is not int or not low <= value <= high:
        raise Wrong(value, f"a whole number from {low} to {high}")
    return value


def real(low: float, high: float) -> Check:
    """A number from ``low`` to ``high``."""

    def check(value: Any) -> Any:
        if type(value) not in (int, float) or not low <= value <= high:
            raise Wrong(value, f"a number from {low:g} to {high:g}")
        return value

    return check


def text(most: int = MOST_CHARACTERS, form: str = "") -> Check:
    """Text of at most so many characters, of a ``form`` if there is one."""
    shape = re.compile(form, re.DOTALL) if form else None

    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value) > most or (shape is not None and not shape.fullmatch(value)):
            raise Wrong(value, f"text of at most {most} characters{f' like {form}' if form else ''}")
        return value

    return check


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise Wrong(value, "true or false")
    return value


def maybe(check: Check) -> Check:
    """The same, or null."""
    return lambda value: None if value is None else check(value)


def one_of(*checks: Check) -> Check:
    def check(value: Any) -> Any:
        wanted = []
        for each in checks:
            try:
                return each(value)
            except Wrong as wrong:
                wanted.append(wrong.wanted)
        raise Wrong(value, " or ".join(wanted))

    return check


def list_of(each: Check, most: int = MOST_ENTRIES, least: int = 0) -> Check:
    """A list of so many of the same."""

    def check(value: Any) -> list[Any]:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise Wrong(value, f"a list of {least} to {most} entries")
        made = []
        for number, entry in enumerate(value):
            try:
                made.append(each(entry))
            except Wrong as wrong:
                raise wrong.within(str(number)) from None
        return made

    return check


def map_of(key: Check, each: Check, most: int = MOST_DRAFTS) -> Check:
    """A mapping of at most so many of the same."""

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > most:
            raise Wrong(value, f"an object of at most {most} fields")
        made = {}
        for name, entry in value.items():
            try:
                made[key(name)] = each(entry)
            except Wrong as wrong:
                raise wrong.within(one_line(name, 40)) from None
        return made

    return check


def table(fields: Mapping[str, Check], required: tuple[str, ...] = ()) -> Check:
    """A mapping with these fields, of which some are ``required``; those that are null are left out."""

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Wrong(value, "an object")
        made = {}
        for name, each in fields.items():
            if name not in value:
                if name in required:
                    raise Wrong(MISSING, "there", name)
                continue
            try:
                made[name] = each(value[name])
            except Wrong as wrong:
                raise wrong.within(name) from None
        return {name: entry for name, entry in made.items() if entry is not None}

    return check


def token_ids(value: Any) -> list[int]:
    """A list of token ids. Asked of every event of a stream, so it is checked as a whole."""
    if not isinstance(value, list) or len(value) > MOST_ENTRIES:
        raise Wrong(value, f"a list of at most {MOST_ENTRIES} token ids")
    if wrong := [each for each in value if type(each) is not int or not 0 <= each <= MOST]:
        raise Wrong(wrong[0], f"a token id from 0 to {MOST}")
    return value


def logprob(value: Any) -> tuple[float, int, str | None]:
    """A log probability with its token and, where it is told, that token's text."""
    if not isinstance(value, list) or len(value) < 2:
        raise Wrong(value, "a list of a log probability, a token and a text")
    chance = real(-math.inf, 1.0)(value[0])
    return float(chance), whole(value[1]), maybe(text(4096))(value[2]) if len(value) > 2 else None


_WORD, _LINE, _COUNT = text(200), text(1 << 16), maybe(whole)
_SCALAR = maybe(one_of(flag, real(-math.inf, math.inf), _LINE))
_STEP = {"step": _COUNT}
SIGNATURE = text(300, r"[\w:.-]+(@[^\s@]+)?")
HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
"""Names of SGLang's histogram of correct drafts, the newer one first."""

DRAFTS = (("spec_num_correct_drafts", "spec_num_proposed_drafts"), ("spec_accept_token_num", "spec_draft_token_num"))
"""Names of the drafts that were right and of those that were made, the newer ones first."""

_META = table(
    {
        **dict.fromkeys(("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"), _COUNT),
        **dict.fromkeys(("num_retractions", "spec_verify_ct", *(name for pair in DRAFTS for name in pair)), _COUNT),
        **dict.fromkeys(("spec_accept_length", "spec_accept_rate"), maybe(real(0, 10**6))),
        **dict.fromkeys(HISTOGRAMS, maybe(list_of(whole, MOST_DRAFTS))),
        "finish_reason": maybe(table({"type": _WORD, "matched": maybe(one_of(whole, _LINE))}, required=("type",))),
        "output_token_logprobs": maybe(list_of(logprob)),
        "output_top_logprobs": maybe(list_of(list_of(logprob, MOST_DRAFTS))),
    }
)
GENERATED = table({"text": text(), "output_ids": token_ids, "meta_info": _META}, required=("meta_info",))
"""An answer of ``/generate``, or an event of a streamed one."""
COMPLETED = table({"choices": list_of(table({"text": text()}, required=("text",)), 1)}, required=("choices",))
"""The same of ``/v1/completions``, of one prompt; a stream's last event may have no choice."""

_FOUND = {"signature": SIGNATURE, "detail": _LINE, **_STEP}
_OWN = table(
    {
        "speculative_switch": flag,
        "engine": table({"state": _WORD, **_STEP}),
        "failure": maybe(table(_FOUND, required=("signature",))),
        "violations": list_of(table(_FOUND, required=("signature", "detail")), 1000),
        "reverts": map_of(text(20, r"\d+"), map_of(_WORD, whole)),
        "reached_sites": map_of(_WORD, whole),
        "stack": map_of(_WORD, one_of(_SCALAR, map_of(_WORD, _SCALAR, 100)), 100),
    }
)
SERVER_INFO = table(
    {
        **dict.fromkeys(("version", "dtype", "speculative_algorithm", "attention_backend"), maybe(_WORD)),
        **dict.fromkeys(("stream_output", "incremental_streaming_output", "disable_radix_cache"), maybe(flag)),
        **dict.fromkeys(("page_size", "max_total_num_tokens"), _COUNT),
        "model_path": maybe(_LINE),
        "internal_states": maybe(list_of(table({"avg_spec_accept_length": maybe(real(0, 10**6))}), MOST_DRAFTS)),
        "specdebug": _OWN,
    }
)
MODEL_INFO = table({"model_path": maybe(_LINE)})


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    if value is None:
        return "null"
    return one_line(repr(value), 60) if not isinstance(value, int) or abs(value) < 10**40 else "a very long number"
