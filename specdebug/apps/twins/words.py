"""A broken twin in words: what each side has, and what a reference says of it."""

from typing import Any

from specdebug.apps.twins.judge import JudgedPair
from specdebug.base.errors import one_line
from specdebug.scenario.text import Decode, decoder, load_tokenizer
from specdebug.verdict.twins import TwinBreak

SIDES = ("the arm", "its twin")
BEFORE, AFTER = 3, 8
"""Tokens that are shown of each side, before the place and from it on."""
_WRONG = {
    "first": f"{SIDES[0]} is wrong",
    "second": f"{SIDES[1]} is wrong",
    "both": "both are wrong",
    "": "either may be right",
}


def break_text(judged: JudgedPair, each: TwinBreak) -> str:
    """One break. Raises CheckpointError where the model's tokenizer cannot be read."""
    if each.what == "runs":
        at = 0 if each.right is None else 1
        outcome = judged.outcomes[at]
        return f"only {SIDES[at]} fails by itself: {outcome.signature}: {one_line(outcome.detail, 400)}"
    decode, places = _decode(judged), [f"in {side}" for side in SIDES]
    if judged.pair.other is None:
        places[1] = f"by {judged.reference}"

    def side(value: Any) -> str:
        if each.what == "tokens":
            return "its end" if value is None else f"{value} {decode([value])!r}"
        return f"{value:.5g}" if isinstance(value, float) else str(value)

    pairs = zip((each.left, each.right), places, strict=True)
    told = ", ".join(f"{side(value)} {place}" for value, place in pairs)
    place = f"{'verify' if each.what == 'accept lengths' else 'output'} {each.position}"
    return f"{each.rid} {place}, {each.what}: {told}{_reference(judged, each)}"


def _reference(judged: JudgedPair, each: TwinBreak) -> str:
    if each.drawn and each.what == "tokens":
        return "; it is sampled, with the same coins in both"
    if judged.pair.other is None or not each.weighs:
        return ""
    if each.weighed is None:
        return "; no reference could be asked which is wrong"
    return f"; {_WRONG[each.wrong]}, by {judged.reference}"


def texts_around(judged: JudgedPair, each: TwinBreak) -> tuple[str, str]:
    """The text of both sides around a token; nothing of a side that is not there."""
    part, decode = slice(max(each.position - BEFORE, 0), each.position + AFTER), _decode(judged)
    one, other = (decode(side[each.rid].output_ids[part]) if each.rid in side else "" for side in judged.served)
    return one, other


def _decode(judged: JudgedPair) -> Decode:
    return decoder(load_tokenizer(judged.pair.base.asked.model))
