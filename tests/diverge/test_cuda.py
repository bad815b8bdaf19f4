"""Recording on a GPU: what passes in graphs, without a wait, and the answers of the CPU. Native only."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdebug import async_probe
from specdebug.cli.main import run
from specdebug.diverge.recorder import HashRecorder, Keeper, RunListener
from specdebug.diverge.recording import RecordedStep, Writer, kept, read
from specdebug.engine import Engine, EngineConfig, SamplingParams
from tests.diverge.samples import SCENARIO
from tests.engine.driving import waits_of_decode_steps

pytestmark = pytest.mark.gpu

PREFILL = "target_prefill.input_ids"


@pytest.fixture(autouse=True)
def _nobody_listens() -> Iterator[None]:
    yield
    async_probe.on_site(None)


def engine(listener: RunListener, **options: Any) -> Engine:
    listener.listen()
    served = Engine(
        EngineConfig.from_dict(
            {
                "device": "cuda",
                "context_length": 256,
                "max_running_requests": 4,
                "speculative": {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6},
                "cuda_graph": {"max_bs": 4, "capture_bs": [4]},
                "radix_cache": False,
                "memory": {"num_slots": 2048, "fill": "zeros"},
                **options,
            }
        )
    )
    listener.attach(served)
    return served


def serve(listener: RunListener, *, late: bool = True, **options: Any) -> None:
    served = engine(listener, **options)
    for number in range(2):
        served.add_request(f"r{number}", list(range(9 + number, 40)), SamplingParams(max_new_tokens=20))
    steps = 0
    while served.has_work:
        if late and steps == 3:  # what was drafted ahead is dropped
            served.add_request("late", list(range(20, 50)), SamplingParams(max_new_tokens=10))
        served.step()
        steps += 1
    listener.finish()


def recorded(folder: Path, **options: Any) -> list[RecordedStep]:
    folder.mkdir()
    serve(HashRecorder(Writer(folder / "h")), **options)
    return read(folder / "h")


def facts(steps: list[RecordedStep]) -> list[tuple[Any, ...]]:
    return [(step.number, step.rids, step.calls, list(step.digests)) for step in steps]


def test_a_run_repeats_and_has_the_calls_of_one_without_graphs(tmp_path: Path) -> None:
    first, second = (recorded(tmp_path / name) for name in "ab")
    assert facts(first) == facts(second)
    eager = recorded(tmp_path / "eager", cuda_graph={"enabled": False})
    assert [step.rids for step in first] == [step.rids for step in eager]
    for graphs, plain in zip(first, eager, strict=True):
        # Runners have sites of their own.
        sites = [Counter(call.site for call in step.calls if "_graph." not in call.site) for step in (graphs, plain)]
        assert sites[0] == sites[1], graphs.number
    decodes = [step for step in first if PREFILL not in {call.site for call in step.calls}]
    assert decodes
    assert all("draft.forward.input_ids" in {call.site for call in step.calls} for step in decodes)


def test_what_passes_in_a_graph_is_kept(tmp_path: Path) -> None:
    steps = recorded(tmp_path / "a")
    decodes = [step for step in steps if PREFILL not in {call.site for call in step.calls}]
    step = decodes[-2]  # drafted ahead, in the step before
    places = {
        (step.number, number): call.site
        for number, call in enumerate(step.calls)
        if call.site in ("draft.forward.input_ids", "draft.bonus", "verify.input_ids", "kv_pool.write.k")
    }
    assert len(set(places.values())) == 4
    serve(Keeper(places, tmp_path))
    found = {place: kept(tmp_path, place) for place in places}
    for place, rows in found.items():
        assert rows is not None, places[place]
        assert len(rows) >= sum(step.calls[place[1]].rows), places[place]
    first = next(found[place] for place, site in places.items() if site == "draft.forward.input_ids")
    assert first is not None
    assert first.min() >= 0


def test_recording_waits_for_nothing(tmp_path: Path) -> None:
    served = engine(HashRecorder(Writer(tmp_path / "h")))
    for number in range(4):
        served.add_request(f"r{number}", list(range(9 + number, 40)), SamplingParams(max_new_tokens=150))
    for _ in range(6):
        served.step()
    steps = 6
    waits = waits_of_decode_steps(served, steps)
    assert waits == {"cudaEventSynchronize": steps}  # the engine's own


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    code = run(["diverge", "draft_positions", *argv, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == found["exit_code"]
    return found


def test_a_divergence_in_a_graph_is_named_as_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    arms = ("--arm", "fixed", "--arm", "reverted")
    there, here = answer(capsys, *arms, "--device", "cuda"), answer(capsys, *arms)
    for found in (there, here):
        assert (found["first"]["site"], found["values"]["left"]) == ("draft.forward.positions", 112)
    assert there["first"] == here["first"]
    assert there["values"] == here["values"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_differs_by_rounding_alone_is_not_counted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, dtype: str
) -> None:
    file = tmp_path / "arms.yaml"
    file.write_text(SCENARIO)
    for other, alike in (("same", True), ("one", False)):
        code = run(
            ["diverge", str(file), "--arm", "base", "--arm", other, "--device", "cuda", "--dtype", dtype, "--json"]
        )
        found = json.loads(capsys.readouterr().out)
        assert (code, found["diverged"], found["alike"]) == (0, False, alike)
