from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specdebug.campaign.loops.steplog import EngineStep
from specdebug.report.html.steps import spans
from tests.report.samples import step

LENGTHS = st.lists(st.lists(st.integers(1, 6), max_size=4), min_size=1, max_size=300)


@given(LENGTHS, st.integers(1, 40))
def test_spans_lose_no_step_and_keep_the_sums(lengths: list[list[int]], most: int) -> None:
    steps = [
        EngineStep.of(step(n, accept={f"r{i}": length for i, length in enumerate(those)}))
        for n, those in enumerate(lengths, 1)
    ]
    drawn = spans(steps, most)
    assert len(drawn) <= most
    assert sum(span.kinds.total() for span in drawn) == len(steps)
    assert sum(span.emitted for span in drawn) == 2 * len(steps)
    assert (drawn[0].first, drawn[-1].last) == (1, len(steps))
    for span in drawn:
        within = [length for those in lengths[span.first - 1 : span.last] for length in those]
        assert span.accept == (sum(within) / len(within) if within else None)
        if span.accept is not None:
            assert span.accept_low <= span.accept + 1e-9
            assert span.accept <= span.accept_high + 1e-9
