"""Corpus slices have exactly the tokens a tokenisation of the whole corpus would have there."""

import random
import re

import pytest

from specdebug.scenario.workload import CorpusTooShort, Slicer


def encode(text):
    """A tokenizer that splits words into pairs of letters, so that a cut word changes its last tokens."""
    ids = []
    for word in re.findall(r"\s+|\w+|[^\s\w]+", text):
        ids += [hash_of(word[i : i + 2]) for i in range(0, len(word), 2)]
    return ids


def hash_of(text):
    return sum(ord(char) * 131**place for place, char in enumerate(text)) % 50_000


LINES = [f"def function_{n}(argument, other={n * n}):\n    return argument + {n} * other" for n in range(400)]
TEXT = "\n".join(LINES)
WHOLE = encode(TEXT)


def slicer(text=TEXT):
    return Slicer("test", text, encode)


def test_draw_starts_at_a_line_and_has_the_exact_count():
    starts = {tuple(encode(line)[:6]) for line in TEXT.split("\n")}
    for seed in range(50):
        drawn = slicer().draw(random.Random(seed), 90)
        assert len(drawn) == 90
        assert drawn[:6] in starts


def test_a_longer_slice_than_the_corpus_is_refused():
    with pytest.raises(CorpusTooShort):
        slicer().draw(random.Random(0), len(WHOLE) + 1)
    with pytest.raises(CorpusTooShort):
        slicer("").draw(random.Random(0), 1)
