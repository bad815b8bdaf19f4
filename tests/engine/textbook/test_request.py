"""How many tokens a request keeps, asked before it is told them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specdebug.engine.textbook.request import Request, SamplingParams


class Ends:
    """Stands for stop strings: the output's last two tokens are such a string."""

    def __init__(self, pair: tuple[int, int]) -> None:
        self.pair = pair

    def completed(self, output_ids: list[int]) -> str | None:
        return "pair" if tuple(output_ids[-2:]) == self.pair else None


tokens = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@given(
    before=st.lists(st.integers(0, 3), max_size=4),
    offered=tokens,
    left=st.integers(1, 7),
    stops=st.lists(st.integers(0, 3), max_size=2),
    pair=st.none() | st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_the_count_is_of_what_is_kept_and_changes_nothing(
    before: list[int], offered: list[int], left: int, stops: list[int], pair: tuple[int, int] | None
) -> None:
    sampling = SamplingParams(max_new_tokens=len(before) + left, stop_token_ids=tuple(stops))
    request = Request("r", [1], sampling, True, output_ids=list(before))
    request.stop_strings = None if pair is None else Ends(pair)  # type: ignore[assignment]
    count = request.count_kept(offered)
    assert (request.output_ids, request.finish_reason, request.matched_stop) == (before, None, None)
    assert request.accept_tokens(offered) == offered[:count]
    assert request.output_ids == [*before, *offered[:count]]
