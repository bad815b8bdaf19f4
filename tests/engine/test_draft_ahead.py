"""Beginning the next step before this step's tokens are read, as a GPU engine does; here on a CPU."""

from typing import Any

import pytest

from specdebug import async_probe
from specdebug.base.attention_plans import SHIPPED
from specdebug.engine import Engine
from specdebug.engine.textbook.request import Request
from specdebug.events import Stepped
from tests.engine.conftest import Lab
from tests.engine.driving import build, greedy, run, serve

CONTEXT = 40
PLANS = [plan.name for plan in SHIPPED]


def engine(lab: Lab, *, ahead: bool, **changes: Any) -> Engine:
    base = {
        "model": str(lab.target),
        "context_length": CONTEXT,
        "max_running_requests": 4,
        "cuda_graph": {"max_bs": 4},
        "memory": {"num_slots": 512, "fill": "garbage", "guards": True},
        "speculative": {"draft_model": str(lab.eagle), "num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6},
    }
    served = build(base, **changes)
    served.view.eagle.drafts_ahead = ahead
    return served


def begun(served: Engine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The lengths of every step begun from now on, as the host gave them."""
    worker = served.view.eagle
    lengths: list[tuple[int, ...]] = []
    original = worker._begin

    def counted(requests: list[Request], lens_cpu: tuple[int, ...], **options: Any) -> Any:
        lengths.append(lens_cpu)
        return original(requests, lens_cpu, **options)

    monkeypatch.setattr(worker, "_begin", counted)
    return lengths


def crowd(served: Engine) -> list[Stepped]:
    """Requests that come, are retracted, end and are aborted at different times, plain ones among them."""
    shared = [4, 9, 2, 7, 1, 8]

    def change(report: Stepped) -> None:
        if report.step == 3:
            served.add_request("late", [*shared, 3], greedy(18))
        if report.step == 6:
            served.add_request("plain", [*shared, 6], greedy(9), speculative=False)
        if report.step == 8:
            served.abort("gone")
        if report.step == 10:
            served.add_request("last", shared[:2], greedy(12))

    for name, prompt, tokens in (("a", [3, 7, 1], 24), ("b", shared, 20), ("gone", [5] * 9, 25)):
        served.add_request(name, prompt, greedy(tokens))
    return run(served, change)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("topk", [1, 2])
@pytest.mark.parametrize("graph", [{"enabled": False}, {"max_bs": 4}, {"max_bs": 2, "capture_bs": [2]}], ids=str)
def test_every_step_does_the_same_in_a_changing_crowd(
    lab: Lab, plan: str, topk: int, graph: dict[str, Any], recording: None
) -> None:
    """Accepted lengths, retractions and all, whatever was begun for nothing; and no probe mistakes a bound for a
    length."""
    options = {
        "attention_backend": plan,
        "page_size": 4,
        "cuda_graph": graph,
        "memory": {"num_slots": 60 if topk == 1 else 104},
        "speculative": {"eagle_topk": topk, "num_draft_tokens": 4 if topk == 1 else 6},
    }
    reports, sites = [], []
    for ahead in (False, True):
        async_probe.reset()
        reports.append(crowd(engine(lab, ahead=ahead, **options)))
        assert async_probe.drain() == []
        sites.append(set(async_probe.reached()))
    assert reports[0] == reports[1]
    assert sites[0] == sites[1]
    assert {"verify.input_ids", "draft.bonus"} < sites[0]
    assert any(report.retracted for report in reports[0])


@pytest.mark.parametrize("change", ["prefill", "abort"])
def test_what_was_prepared_is_released_when_the_batch_changes(
    lab: Lab, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = engine(lab, ahead=True)
    runner = served.view.eagle.runners.verify
    assert runner is not None
    for name in ("a", "b"):
        served.add_request(name, [3, 7, 1], greedy(20))
    abandoned: list[int] = []
    original = runner.abandon
    monkeypatch.setattr(runner, "abandon", lambda: abandoned.append(served._step) or original())
    run(served, steps=3)
    assert abandoned == []
    if change == "prefill":
        served.add_request("c", [2, 4], greedy(4))
    else:
        served.abort("b")
    served.step()
    assert abandoned == [4]


def test_stops_where_a_request_could_be_past_its_context(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    served = engine(lab, ahead=True)
    lengths = begun(served, monkeypatch)
    serve(served, [[3, 7, 1]], CONTEXT - 3)
    assert max(max(batch) for batch in lengths) <= CONTEXT
