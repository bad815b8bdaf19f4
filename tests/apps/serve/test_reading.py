"""Bodies are measured before they are made into objects."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.apps.serve.reading import ASIDE_BYTES, MOST_BYTES, Growth
from specdebug.apps.serve.state import BODY_BYTES
from tests.apps.serve.serving import Serving

PART = 1000
"""Bytes that come in at a time."""
CODE = 'if x["a"][0] == {1: [2, 3], "b\\\\": "c"}:\n    return [f(y) for y in z]\n'


def fits(body: bytes, part: int = PART) -> bool:
    growth = Growth()
    for at in range(0, len(body), part):
        growth.take(body[at : at + part])
    return growth.bytes <= MOST_BYTES


@pytest.mark.parametrize(
    ("unit", "most"),
    [(b"[],", 1 << 18), (b"{},", 1 << 18), (b'"ab",', 1 << 18), (b"999,", 1 << 20), (b'{"a":[]},', 1 << 17)],
)
def test_json_that_grows_as_it_is_read_does_not_fit(unit: bytes, most: int) -> None:
    assert not fits(b"[" + unit * (BODY_BYTES // len(unit)) + b"0]")
    assert fits(b"[" + unit * (ASIDE_BYTES // len(unit)) + b"0]")
    assert not fits(b"[" + unit * most + b"0]")


@given(parts=st.lists(st.text('"\\[]{},a', max_size=9)))
def test_the_measure_is_the_same_in_whatever_parts_a_body_comes(parts: list[str]) -> None:
    whole, pieces = Growth(), Growth()
    whole.take("".join(parts).encode())
    for part in parts:
        pieces.take(part.encode())
    assert pieces.bytes == whole.bytes


def test_a_large_batch_fits() -> None:
    draw = random.Random(0)
    ids = [[draw.randrange(32000) for _ in range(920)] for _ in range(400)]
    assert fits(json.dumps({"input_ids": ids, "sampling_params": [{"max_new_tokens": 8}] * 400}).encode())


def test_what_is_in_strings_counts_for_nothing() -> None:
    text = CODE * 20_000
    assert fits(json.dumps({"text": text}).encode())
    assert fits(json.dumps([{"role": "user", "content": CODE}] * 10_000).encode())


@pytest.mark.parametrize(
    "body", [b'"' + b'\\"' * (1 << 20), b'"' + b"a[" * (1 << 20), b'"\\' * (1 << 16), b'\\"' * 999]
)
def test_strings_without_an_end_are_measured_too(body: bytes) -> None:
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
