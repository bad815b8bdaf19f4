"""What a request can ask for beside its length, its sampling and its stops, by the names of SGLang's own parameters.

An engine is asked by its own parameters. What a target has none for is refused by name (``Traits.features``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from specdebug.base.schema import (
    ANY_TEXT,
    FLAG,
    TEXT,
    Gather,
    Item,
    Key,
    Part,
    Schema,
    keys_of,
    list_of,
    map_of,
    real,
    whole,
)

MOST_LOGPROBS = 20
"""Most of the likeliest tokens of a position that are told; vLLM's own bound."""
BIAS = (-100, 100)
_ABOVE_ONE = 2


@dataclass(frozen=True)
class Features(Part):
    """What requests ask for beside. Greedy ones are chosen by the logits that penalties and biases have changed."""

    schema_beside: ClassVar[Schema] = {"not": {"required": ["json_schema", "regex"]}}

    logprobs: Annotated[
        int | None,
        whole(0, MOST_LOGPROBS),
        "tell each token's log probability, and those of so many likeliest tokens",
        Key(default="none"),
    ] = None
    frequency_penalty: Annotated[float, real(-2, 2), "taken from a token's logit each time that it was given"] = 0.0
    presence_penalty: Annotated[float, real(-2, 2), "taken from the logit of a token that was given"] = 0.0
    repetition_penalty: Annotated[
        float, real(0, _ABOVE_ONE, above=True), "divides positive logits of tokens that were there, multiplies others"
    ] = 1.0
    min_new_tokens: Annotated[int, whole(0, 2**20), "no stop token is given before so many tokens"] = 0
    min_p: Annotated[float, real(0, 1), "least probability of a sampled token, as a part of the likeliest one's"] = 0.0
    logit_bias: Annotated[
        dict[str, float], map_of(real(*BIAS), "token", r"[0-9]{1,10}"), "added to the logits of these token ids"
    ] = field(default_factory=dict)
    bad_words: Annotated[tuple[str, ...], list_of(TEXT), "texts that are not given"] = ()
    allowed_token_ids: Annotated[tuple[int, ...], list_of(whole(0, 2**31 - 1)), "no other tokens are given"] = ()
    schema: Annotated[
        str | None,
        ANY_TEXT,
        "the output is JSON of this schema, which is JSON too",
        Key(name="json_schema", default="none"),
    ] = None
    regex: Annotated[str | None, ANY_TEXT, "the output fits this regular expression", Key(default="none")] = None
    ignore_eos: Annotated[
        bool, FLAG, "the text goes on behind the token that ends it, and behind the end of a grammar"
    ] = False
    priority: Annotated[int, whole(-(2**20), 2**20), "less is served first, where the engine's policy heeds it"] = 0
    n: Annotated[int, whole(1, 64), "completions of each prompt; they are requests `<id>.<request>.<completion>`"] = 1

    @classmethod
    def settle(cls, item: Item, table: Any, values: dict[str, Any], gather: Gather) -> None:
        if {"json_schema", "regex"} <= table.keys():
            gather.note(table["regex"].error("does not go with 'json_schema'"), table["regex"].path)

    @property
    def asked(self) -> dict[str, Any]:
        """Those that ask for something, by name."""
        pairs = ((key.name, getattr(self, key.field), getattr(NONE, key.field)) for key in keys_of(Features))
        return {name: value for name, value, nothing in pairs if value != nothing}

    @property
    def grammar(self) -> bool:
        """A grammar says which tokens may follow."""
        return self.schema is not None or self.regex is not None

    @property
    def steers(self) -> bool:
        """Tokens are not chosen by the model's own logits, so that a plain reference cannot judge them."""
        return bool(self.asked.keys() - {"logprobs", "min_p", "n", "ignore_eos", "priority"})


NONE = Features()
ALL = frozenset(key.name for key in keys_of(Features))
WITHOUT_LISTS = ALL - {"bad_words", "allowed_token_ids", "ignore_eos", "priority"}
"""Engines that forbid no tokens by name offer these, and no order of their requests either."""
WITHOUT_GRAMMAR = WITHOUT_LISTS - {"json_schema", "regex"}


def features_of(sampling: object) -> Features:
    """What a request's sampling asks for beside: nothing, where an engine of ours holds its own parameters."""
    found: Features = getattr(sampling, "features", NONE)
    return found
