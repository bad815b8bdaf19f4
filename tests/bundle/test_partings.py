"""Where two traces part."""

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specdebug.bundle import partings as module
from specdebug.bundle.partings import Parting, partings
from specdebug.scenario.workload import RequestSampling, WorkloadRequest

GREEDY = RequestSampling(max_new_tokens=99, temperature=0.0, top_k=1, top_p=1.0, seed=0)
LENGTHS = st.lists(st.integers(1, 4), min_size=1, max_size=6)


def request(rid: str, **changes: Any) -> WorkloadRequest:
    return replace(WorkloadRequest(rid=rid, group="g", new_ids=(1, 2), sampling=GREEDY), **changes)


@dataclass(frozen=True)
class Served:
    """What a request was given: its first token, then so many a verify."""

    tokens: tuple[int, ...]
    lengths: tuple[int, ...]


def trace(served: dict[str, Served]) -> list[str]:
    """All in one batch, from the first step on until each is done."""
    lines = []
    for step in range(max(len(one.lengths) for one in served.values()) + 1):
        live = {rid: one for rid, one in served.items() if step <= len(one.lengths)}
        emitted, accept = {}, {}
        for rid, one in live.items():
            start = 1 + sum(one.lengths[: step - 1]) if step else 0
            emitted[rid] = list(one.tokens[start : start + (one.lengths[step - 1] if step else 1)])
            if step:
                accept[rid] = one.lengths[step - 1]
        done = [rid for rid, one in live.items() if step == len(one.lengths)]
        facts = [step + 1, "decode" if step else "prefill", list(live), emitted, accept, {}, done, []]
        lines.append(json.dumps(facts))
    return lines


def served(draw: st.DrawFn, rid: str) -> Served:
    lengths = draw(LENGTHS)
    count = 1 + sum(lengths)
    return Served(tuple(draw(st.lists(st.integers(3, 9), min_size=count, max_size=count))), tuple(lengths))


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Served]:
    return {rid: served(draw, rid) for rid in ("a.0", "b.0", "c.0")[: draw(st.integers(1, 3))]}


@given(runs(), st.data())
def test_another_token_is_found_where_it_is(run: dict[str, Served], data: st.DataObject) -> None:
    rid = data.draw(st.sampled_from(sorted(run)))
    one = run[rid]
    at = data.draw(st.integers(0, len(one.tokens) - 1))
    tail = data.draw(st.lists(st.integers(3, 9), min_size=len(one.tokens) - at, max_size=len(one.tokens) - at))
    assume(tail[0] != one.tokens[at])
    other = {**run, rid: Served((*one.tokens[:at], *tail), one.lengths)}
    step = 1 + next(n for n in range(len(one.lengths) + 1) if at < 1 + sum(one.lengths[:n]))
    (found,) = partings([request(rid) for rid in run], trace(run), trace(other)) or ()
    ids = (1, 2, *one.tokens[:at])
    assert found == Parting(step, "token", rid, at, one.tokens[at], tail[0], ids)


@given(runs(), LENGTHS, st.data())
def test_another_number_of_accepted_drafts_is_found_where_it_is(
    run: dict[str, Served], lengths: list[int], data: st.DataObject
) -> None:
    rid = data.draw(st.sampled_from(sorted(run)))
    one = run[rid]
    step = next((n for n, (a, b) in enumerate(zip(one.lengths, lengths, strict=False)) if a != b), None)
    assume(step is not None)
    assert step is not None
    tokens = (*one.tokens, *([3] * sum(lengths)))[: 1 + sum(lengths)]
    found = partings([request(rid) for rid in run], trace(run), trace({**run, rid: Served(tokens, tuple(lengths))}))
    assert found is not None
    before = 1 + sum(one.lengths[:step])
    depth = min(one.lengths[step], lengths[step])
    expected = Parting(
        step + 2, "draft", rid, before + depth - 1, one.lengths[step], lengths[step],
        (1, 2, *one.tokens[:before]), one.tokens[before : before + depth], depth,
    )  # fmt: skip
    assert found == (expected,)


def line(step: int, emitted: dict[str, list[int]], accept: dict[str, int] | None = None, **facts: Any) -> str:
    named = {"kind": "decode", "rids": list(emitted), "cached": {}, "finished": [], "retracted": [], **facts}
    return json.dumps(
        [step, named["kind"], named["rids"], emitted, accept or {}]
        + [named[name] for name in ("cached", "finished", "retracted")]
    )


A, B = request("a.0"), request("b.0")


def kinds(*given: Any) -> list[tuple[str, int, str]]:
    return [(one.kind, one.step, one.request) for one in partings(*given) or ()]


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "prefill"}, {"rids": ["a.0", "b.0"]}, {"cached": {"a.0": 7}}, {"retracted": ["a.0"]},
        {"finished": ["a.0"]},
    ],
    ids=str,
)  # fmt: skip
def test_what_no_choice_decides_is_the_schedule(changed: dict[str, Any]) -> None:
    alike = line(1, {"a.0": [4]})
    assert kinds([A, B], [alike, line(2, {"a.0": [5]})], [alike, line(2, {"a.0": [5]}, **changed)]) == [
        ("schedule", 2, "")
    ]


def test_another_schedule_is_not_excused_by_a_later_choice() -> None:
    before = [line(1, {"a.0": [4]}), line(2, {"a.0": [5]})]
    after = [line(1, {"a.0": [4]}, cached={"a.0": 1}), line(2, {"a.0": [6]})]
    assert kinds([A], before, after) == [("schedule", 1, ""), ("token", 2, "a.0")]


def test_what_goes_on_from_another_output_is_not_compared() -> None:
    on = request("b.0", continues="a.0")
    before = [line(1, {"a.0": [4]}), line(2, {"b.0": [5]})]
    assert kinds([A, on], before, [line(1, {"a.0": [4]}), line(2, {"b.0": [6]})]) == [("token", 2, "b.0")]
    assert kinds([A, on], before, [line(1, {"a.0": [9]}), line(2, {"b.0": [6]})]) == [("token", 1, "a.0")]
    (found,) = partings([A, on], before, [before[0], line(2, {"b.0": [6]})]) or ()
    assert found.ids == (1, 2, 4, 1, 2)


@pytest.mark.parametrize("wrong", ["", "[1]", '{"step": 1}', "[1,2,3,4,5,6,7,8]", line(1, {"a.0": [-1]})])
def test_a_trace_that_cannot_be_read_parts_nowhere(wrong: str) -> None:
    assert partings([A], [wrong], [line(1, {"a.0": [4]})]) is None


def test_a_trace_of_too_many_values_is_not_compared_and_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_VALUES", 10)
    monkeypatch.setattr(module.json, "loads", lambda line: pytest.fail("was parsed"))
    assert partings([request("g.0")], ["[[],[],[]]", "[[],[],[]]"], []) is None
