from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specdebug.campaign.loops.steplog import EngineStep
from specdebug.report.html.series import chunks, spans
from tests.report.samples import step

LENGTHS = st.lists(st.lists(st.integers(1, 6), max_size=4), min_size=1, max_size=300)


@given(st.lists(st.integers()), st.integers(1, 50))
def test_chunks_are_all_of_it_and_few(items: list[int], most: int) -> None:
    parts = chunks(items, most)
    assert [item for part in parts for item in part] == items
    assert len(parts) <= most
    assert len({len(part) for part in parts[:-1]}) <= 1


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


def test_a_span_says_what_it_was() -> None:
    one = spans([EngineStep.of(step(3, "prefill", finished=["a"], retracted=["b"], s=0.25))])[0]
    assert one.tip == "step 3: prefill\nbatch 1\n2 tokens\n250.0 ms\nfinished: a\nretracted: b"
    many = [f"r{n}" for n in range(9)]
    events = [step(1, "prefill"), step(2, accept={"g.0": 3}, finished=many), step(3, accept={"g.0": 4})]
    (three,) = spans([EngineStep.of(event) for event in events], 1)
    assert three.name == "steps 1-3"
    assert three.kind == "decode 2, prefill 1"
    assert "accept length 3.50" in three.tip
    assert "finished: r0, r1, r2, r3, r4, r5 and 3 more" in three.tip
