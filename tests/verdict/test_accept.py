"""Samples of accept lengths: how far a sound run may lie from them."""

import dataclasses
import json

import pytest

from specdebug.base.errors import ContentError
from specdebug.base.yamlio import parse_yaml
from specdebug.verdict.accept import AcceptSample
from specdebug.verdict.outcome import RequestResult


def sample(*requests: tuple[tuple[int, ...], tuple[int, ...]]) -> AcceptSample:
    """Of requests' output ids and accept lengths."""
    return AcceptSample.of(
        [RequestResult(f"g.{n}", "g", output_ids=ids, accept_lengths=of) for n, (ids, of) in enumerate(requests)]
    )


FIRST = sample(((1, 2), (3, 4, 1, 4) * 5), ((3, 4), (2, 4, 2, 4) * 5))


def test_the_same_texts_are_held_closer_than_others() -> None:
    same, any_text = FIRST.interval(FIRST), FIRST.interval()
    half = FIRST.interval(sample(((1, 2), (1,)), ((9, 9), (1,))))
    assert any_text[0] < half[0] < same[0] < 3 < same[1] < half[1] < any_text[1]
    assert same[0] > 0.88 * 3


def test_a_sample_comes_back_from_plain_data() -> None:
    text = json.dumps(FIRST.to_dict())
    assert AcceptSample.read(parse_yaml(text, "x").root) == FIRST
    none = dataclasses.replace(FIRST, accept=None, verifies=0, texts={})
    assert AcceptSample.read(parse_yaml(json.dumps(none.to_dict()), "x").root) == none


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"accept": None}, "accept does not go with 40 verifies"),
        ({"accept": 0.5}, "accept must be a number from 1 to"),
        ({"verifies": 3}, "texts has more than 3 verifies"),
        ({"texts": {"g.0": "x"}}, r"texts.g.0 'x' does not fit"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ContentError, match=complaint):
        AcceptSample.read(parse_yaml(json.dumps({**FIRST.to_dict(), **change}), "x").root)
