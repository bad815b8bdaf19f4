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


@pytest.mark.parametrize(("offset", "tokens"), [(0, 1), (0, 700), (661, 9), (1234, 300)])
def test_at_agrees_with_tokenising_everything(offset, tokens):
    assert slicer().at(offset, tokens) == tuple(WHOLE[offset : offset + tokens])


def test_at_reaches_the_last_token_and_no_further():
    assert slicer().at(len(WHOLE) - 5, 5) == tuple(WHOLE[-5:])
    with pytest.raises(CorpusTooShort, match=f"'test' has {len(WHOLE)} tokens, too few for 6 from offset"):
        slicer().at(len(WHOLE) - 5, 6)


def test_a_slice_does_not_depend_on_what_was_cut_before():
    fresh, used = slicer(), slicer()
    used.at(0, 3000)
    used.draw(random.Random(1), 500)
    assert fresh.at(100, 50) == used.at(100, 50)
    assert fresh.draw(random.Random(2), 50) == used.draw(random.Random(2), 50)


def test_draw_starts_at_a_line_and_has_the_exact_count():
    starts = {tuple(encode(line)[:6]) for line in TEXT.split("\n")}
    for seed in range(50):
        drawn = slicer().draw(random.Random(seed), 90)
        assert len(drawn) == 90
        assert drawn[:6] in starts


def test_draws_differ_between_streams():
    assert len({slicer().draw(random.Random(seed), 40) for seed in range(20)}) > 15


def test_a_slice_as_long_as_the_corpus_is_the_corpus():
    assert slicer().draw(random.Random(0), len(WHOLE)) == tuple(WHOLE)


def test_a_longer_slice_than_the_corpus_is_refused():
    with pytest.raises(CorpusTooShort):
        slicer().draw(random.Random(0), len(WHOLE) + 1)
    with pytest.raises(CorpusTooShort):
        slicer("").draw(random.Random(0), 1)


def test_no_more_is_tokenised_than_needed():
    seen = []
    recording = Slicer("test", TEXT * 20, lambda text: seen.append(len(text)) or encode(text))
    recording.draw(random.Random(0), 100)
    assert sum(seen) < 5_000
