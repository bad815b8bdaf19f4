"""Text that grows by tokens: its pieces make up the whole, however characters and stops lie across tokens."""

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.apps.serve.text import GrowingText, ModelText


@cache
def model() -> ModelText:
    return ModelText("tiny")


def cuts(ids: list[int], sizes: list[int]) -> list[int]:
    """Lengths of the output after each step, the whole last."""
    ends, at = [], 0
    for size in sizes:
        at = min(at + size, len(ids))
        ends.append(at)
    return [*ends, len(ids)]


def grown(text: GrowingText, ids: list[int], sizes: list[int], matched: int | str | None = None) -> list[str]:
    pieces = [text.grow(ids[:end]) for end in cuts(ids, sizes)]
    return [*pieces, text.finish(ids, matched)]


SIZES = st.lists(st.integers(1, 5), max_size=60)


@settings(max_examples=200)
@given(st.text(max_size=40), SIZES)
def test_pieces_of_any_text_make_up_the_text(text: str, sizes: list[int]) -> None:
    ids = model().encode(text)
    pieces = grown(GrowingText(model()), ids, sizes)
    assert "".join(pieces) == model().decode(ids)


@settings(max_examples=200)
@given(st.text("ab\n", max_size=30), st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=3), SIZES)
def test_nothing_of_a_stop_is_shown(text: str, stops: list[str], sizes: list[int]) -> None:
    """As the engine does it: the output ends with the token that completes the first stop."""
    ids = model().encode(text)
    end, matched = next(
        ((n, stop) for n in range(1, len(ids) + 1) for stop in stops if stop in model().decode(ids[:n])),
        (len(ids), None),
    )
    ids = ids[:end]
    pieces = grown(GrowingText(model(), tuple(stops)), ids, sizes, matched)
    whole = model().decode(ids)
    assert "".join(pieces) == (whole if matched is None else whole[: whole.index(matched)])


def test_a_stop_token_is_cut_off_unless_it_is_to_be_kept() -> None:
    ids = model().encode("one two")
    assert GrowingText(model()).finish(ids, ids[-1]) == model().decode(ids[:-1])
    assert GrowingText(model(), keep_stop=True).finish(ids, ids[-1]) == model().decode(ids)
