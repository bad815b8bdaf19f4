"""Stop strings are found after the very token that completes one, whatever the tokenizer, looking at few tokens."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from specdebug.engine.model.tokenizer import TargetTokenizer
from specdebug.engine.textbook.request import Request, SamplingParams, StopStrings

TEXTS = ["a", "b", "\n", "é", "☃", "🙂", " a", "ab", "b\n"]


def byte_level() -> Tokenizer:
    """Every byte a token, and some longer ones, one of which ends within a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    snow, smile = (byte.pre_tokenize_str(text)[0][0] for text in ("☃", "🙂"))
    words = [*alphabet, "ab", "aba", "b" + snow[:2], snow[2] + "a", smile]
    raw = Tokenizer(models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=[]))
    raw.decoder = decoders.ByteLevel()
    return raw


def byte_fallback() -> Tokenizer:
    """As Llama 2's: pieces of text, bytes of what is in none, and the first space stripped."""
    words = ["▁", "▁a", "a", "b", "ab", "ba", "é", *(f"<0x{n:02X}>" for n in range(256))]
    raw = Tokenizer(models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=[], byte_fallback=True))
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return raw


def metaspace() -> Tokenizer:
    words = ["▁", "▁a", "a", "b", "▁ab", "☃", "é", "\n", "<x>"]
    raw = Tokenizer(models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=[]))
    raw.decoder = decoders.Metaspace()
    return raw


class Counting(TargetTokenizer):
    decoded = 0

    def decode(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids)
        return super().decode(ids)


def saved(raw: Tokenizer, folder: Path) -> Counting:
    raw.save(str(folder / "tokenizer.json"))
    return Counting(folder / "tokenizer.json")


def first_by_reading_all(ids: Sequence[int], strings: Sequence[str], tokenizer: TargetTokenizer) -> Any:
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count])
        for string in strings:
            if string in text:
                return count, string
    return None


def first(ids: Sequence[int], strings: Sequence[str], tokenizer: TargetTokenizer) -> Any:
    stops = StopStrings(strings, tokenizer)
    for count in range(1, len(ids) + 1):
        found = stops.completed(ids[:count])
        if found is not None:
            return count, found
    return None


@pytest.mark.parametrize("make", [byte_level, byte_fallback, metaspace])
def test_it_finds_what_reading_the_whole_output_after_each_token_finds(make: Any, tmp_path: Path) -> None:
    raw = make()
    tokenizer, rng, seen = saved(raw, tmp_path), random.Random(5), 0
    pieces = [[raw.token_to_id(word)] for word in raw.get_vocab() if not word.startswith("<0x")]
    if make is not metaspace:
        fallback = make is byte_fallback
        ids = [raw.token_to_id(f"<0x{n:02X}>") for n in range(256)] if fallback else byte_ids(raw)
        pieces = [[ids[n] for n in text.encode()] for text in TEXTS] * 4 + pieces[-12:]
        pieces += [[ids[n]] for n in (0xFF, 0xC3, 0xE2, 0x98, 0x9F)]
    pieces.append([10_000])  # an id of the model's that the tokenizer lacks
    for _ in range(1500):
        output = [token for _ in range(rng.randint(1, 14)) for token in rng.choice(pieces)]
        strings = ["".join(rng.choices(TEXTS, k=rng.randint(1, 3))) for _ in range(rng.randint(1, 2))]
        expected = first_by_reading_all(output, strings, tokenizer)
        assert first(output, strings, tokenizer) == expected, (output, strings)
        seen += expected is not None
    assert 300 < seen < 1490


def byte_ids(raw: Tokenizer) -> list[int]:
    """By byte, its token: byte-level tokenizers write printable bytes as Latin-1, the others from U+0100 up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [n for n in range(256) if n not in printable]
    return [raw.token_to_id(chr(n) if n in printable else chr(256 + others.index(n))) for n in range(256)]


def test_what_is_decoded_grows_with_the_output_only_as_the_output_does(tmp_path: Path) -> None:
    raw = byte_level()
    tokenizer = saved(raw, tmp_path)
    output = [raw.token_to_id("ab")] * 400
    assert first(output, ["abba"], tokenizer) is None
    assert tokenizer.decoded <= 400 * 4 * (4 + 1 + 3)


def test_a_request_keeps_tokens_up_to_the_one_that_completes_a_string(tmp_path: Path) -> None:
    raw = byte_level()
    tokenizer = saved(raw, tmp_path)
    a, b, ab = (raw.token_to_id(word) for word in ("a", "b", "ab"))

    def request(**sampling: Any) -> Request:
        params = SamplingParams(**{"max_new_tokens": 4, "stop": ("ba",), **sampling})
        return Request("r", [b], params, True, stop_strings=StopStrings(params.stop, tokenizer))

    one = request()
    assert one.accept_tokens([a]) == [a], "the prompt's b is no text of the output"
    assert one.accept_tokens([b, ab, a]) == [b, ab]
    assert (one.finish_reason, one.matched_stop, one.output_ids) == ("stop", "ba", [a, b, ab])
    for most, reason, stop in ((3, "stop", "ba"), (2, "length", None)):
        one = request(max_new_tokens=most)
        one.accept_tokens([a, b, ab, a])
        assert (one.finish_reason, one.matched_stop, len(one.output_ids)) == (reason, stop, most)
    one = request(stop_token_ids=(b,))
    assert one.accept_tokens([a, b, ab]) == [a, b]
    assert (one.finish_reason, one.matched_stop) == ("stop", b)


@pytest.mark.parametrize("stop", ["ab", ("",), ("a", "x\ufffd")])
def test_what_can_be_no_stop_string_is_refused(stop: Any) -> None:
    with pytest.raises(ValueError, match="stop must be strings"):
        SamplingParams(stop=stop)
