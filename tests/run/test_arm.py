"""One arm inside its worker, over a stand-in engine: what it reports when the device is missing, full or gone."""

import errno
import importlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug import async_probe
from specdebug.base.errors import SpecDebugError
from specdebug.engine import progress
from specdebug.engine.errors import FlashInferError, RequestRejected
from specdebug.patching import Patch
from specdebug.patching.live import census_taken
from specdebug.run import arm, session_run
from specdebug.run.oracles.accept import over_before
from specdebug.scenario.grammar import Arm, OracleSpec, Scenario, TokenPrompt, WorkloadGroup
from specdebug.scenario.workload import RequestSampling, Workload, WorkloadRequest
from specdebug.targets import embedded
from specdebug.verdict.ledger import Ledger
from specdebug.verdict.outcome import Outcome
from specdebug.workers.job import WorkerEnd
from specdebug.workers.machine_failure import MachineFailed, MachineFailure
from tests.run.fakes import FakeEngine, ListSink

ASSERTED = torch.AcceleratorError("CUDA error: device-side assert triggered\nmore advice")
PRINTED = (
    "/p/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] "
    "Assertion `async probe nan@draft.logits` failed.\n"
)


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    async_probe.configure("off")
    progress._listeners.clear()


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows when the worker leaves without tearing down."""
    calls: list[str] = []
    monkeypatch.setattr(session_run, "leave_now", lambda: calls.append("left"))
    return calls


class Engine(FakeEngine):
    view = SimpleNamespace(worker=None)
    config = SimpleNamespace(model="tiny", dtype="float32", device="cpu", speculative=None, radix_cache=False)


def payload_of(seed: int = 0, prompt: tuple[int, ...] = (1, 2, 3, 4), **engine: Any) -> dict[str, Any]:
    scenario = Scenario(
        name="fake",
        workload=(WorkloadGroup("g0", TokenPrompt((1, 2))),),
        arms={"only": Arm("only")},
        expect={},
        engine=engine,
        oracles=OracleSpec(lossless=False, draft_kv=False, sampling=False, ends=False),
    )
    requests = (WorkloadRequest("g0.0", "g0", prompt, RequestSampling(6)),)
    return {
        "arm": "only",
        "seed": seed,
        "toggles": pickle.dumps(()),
        "packs": pickle.dumps(()),
        "elsewhere": False,
        "rework": "",
        "logprobs": False,
        "scenario": pickle.dumps(scenario),
        "workload": pickle.dumps(Workload(requests)),
    }


def run(monkeypatch: pytest.MonkeyPatch, build: Callable[..., Any], **engine: Any) -> ListSink:
    monkeypatch.setattr(embedded, "build_engine", build)
    sink = ListSink()
    arm.run_arm(payload_of(**engine), sink)
    return sink


def outcome_of(sink: ListSink, log: str = "") -> Outcome:
    ledger = Ledger()
    for event in sink.events:
        ledger.fold(event)
    return ledger.outcome(WorkerEnd("done", 0, 1.0, 100.0, log))


def raising(error: Exception) -> Callable[..., Any]:
    def build(options: Any, seed: int) -> Any:
        raise error

    return build


def in_step(number: int, error: Exception) -> Callable[..., Any]:
    """Builds an engine that fails in that step."""

    def act(engine: Engine, step: int) -> None:
        if step == number:
            raise error

    return engine_that(act)


def engine_that(act: Callable[[Engine, int], None]) -> Callable[..., Any]:
    def build(options: Any, seed: int) -> Any:
        engine = Engine()
        engine.before_step = lambda step: act(engine, step)
        return engine

    return build


def test_a_missing_device_is_the_option_s_fault(monkeypatch: pytest.MonkeyPatch, left: list[str]) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    sink = run(monkeypatch, lambda options, seed: Engine(), device="cuda")
    (usage,) = sink.of("usage")
    assert usage["option"] == ["device"]
    outcome = outcome_of(sink)
    assert (outcome.verdict, outcome.unavailable, outcome.detail) == ("unknown", True, usage["message"])
    assert sink.of("violation") == []


def in_a_capture(options: Any, seed: int) -> Any:
    """Memory that ran out is found below the capture's own error."""
    try:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    finally:
        raise torch.AcceleratorError("CUDA error: operation failed due to a previous error during capture")


LACKING = FlashInferError("FlashInfer cannot compile its attention (nvcc: not found): or set attention_backend: triton")
TOO_SMALL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")
MORE_THAN_THERE_IS = RuntimeError(f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {2**62} bytes.")


@pytest.mark.parametrize(
    ("build", "detail"),
    [
        (raising(TOO_SMALL), "out of CUDA memory (8.00 GiB asked for): lower memory.num_slots"),
        (in_a_capture, "out of CUDA memory (2.00 GiB asked for): lower memory.num_slots"),
        (raising(LACKING), str(LACKING)),  # no usage error, which would end the command: other arms may not need it
        (in_step(2, LACKING), str(LACKING)),
        (raising(MORE_THAN_THERE_IS), "the engine asks for more memory than this machine has"),
        (in_step(2, MORE_THAN_THERE_IS), "the engine asks for more memory than this machine has"),
    ],
)
def test_what_this_machine_lacks_is_unknown_in_one_line(
    build: Any, detail: str, monkeypatch: pytest.MonkeyPatch, left: list[str]
) -> None:
    sink = run(monkeypatch, build)
    outcome = outcome_of(sink)
    assert (outcome.verdict, outcome.violations, outcome.unavailable) == ("unknown", (), True)
    assert (outcome.exit_code, outcome.machine, sink.of("usage"), left) == (125, None, [], [])
    assert outcome.detail.startswith(detail)


@pytest.mark.parametrize(
    ("position", "kept"), [(None, [3, 1, 4]), (9, [3, 1, 4]), (8, [3, 1]), (4, [3]), (3, []), (0, [])]
)
def test_verifies_are_compared_as_far_as_two_texts_are_one(position: int | None, kept: list[int]) -> None:
    """The prefill's token is output 0; the verifies' are 1 to 3, 4, and 5 to 8."""
    assert over_before(position, [3, 1, 4]) == kept


def gone() -> Any:
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def test_a_lost_device_ends_the_worker_with_its_first_error_and_all_it_knew(
    monkeypatch: pytest.MonkeyPatch, left: list[str]
) -> None:
    def act(engine: Engine, step: int) -> None:
        if step == 2:
            engine.pool_problems = ["ownership: slot 7 has 2 owners"]
        if step == 3:
            engine.check_guards = gone  # type: ignore[method-assign]
            monkeypatch.setattr(async_probe, "poll", gone)
            raise ASSERTED

    sink = run(monkeypatch, engine_that(act))
    assert [event["kind"] for event in sink.of("violation")] == ["pools", "assert"]
    assert left == ["left"]
    plain = outcome_of(sink)
    assert [v.signature for v in plain.violations] == ["pools@ownership", "assert@engine"]
    assert "the last step completed is 2" in plain.violations[1].detail
    told = outcome_of(sink, PRINTED)
    assert [v.signature for v in told.violations] == ["pools@ownership", "nan@draft.logits"]
    assert len(told.requests[0].output_ids) == 2


def test_a_failure_that_first_shows_while_looking_is_the_step_s(
    monkeypatch: pytest.MonkeyPatch, left: list[str]
) -> None:
    def act(engine: Engine, step: int) -> None:
        if step == 4:
            monkeypatch.setattr(async_probe, "poll", gone)

    outcome = outcome_of(run(monkeypatch, engine_that(act)))
    assert (outcome.signature, outcome.where_step, left) == ("illegal-address@engine", 4, ["left"])


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (torch.AcceleratorError("CUDA error: no CUDA-capable device is detected\nadvice"), "device"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "disk"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes."), "memory"),
    ],
)
def test_a_machine_that_fails_is_no_verdict_wherever_it_does(
    error: Exception, cause: str, monkeypatch: pytest.MonkeyPatch, left: list[str]
) -> None:
    loading, serving = (outcome_of(run(monkeypatch, build)) for build in (raising(error), in_step(3, error)))
    for outcome in (loading, serving):
        assert (outcome.verdict, outcome.violations, outcome.unavailable) == ("unknown", (), True)
        assert outcome.machine is not None
        assert (outcome.machine.cause, outcome.reasons) == (cause, (outcome.machine.reason,))
    assert len(serving.requests[0].output_ids) == 2  # what it had come to is kept
    assert left == (["left"] * 2 if cause == "device" else [])


def test_a_device_that_does_not_answer_is_told_with_its_own_words(
    monkeypatch: pytest.MonkeyPatch, left: list[str]
) -> None:
    def claim(*arguments: Any) -> Any:
        raise MachineFailed(MachineFailure("device", "CUDA unknown error"))

    monkeypatch.setattr("specdebug.workers.device.claim", claim)
    sink = run(monkeypatch, lambda options, seed: Engine(), device="cuda")
    outcome = outcome_of(sink)
    assert (outcome.verdict, outcome.detail) == ("unknown", "machine: the device is gone: CUDA unknown error")
    assert (sink.of("stack"), sink.of("usage")) == ([], [])


def test_what_was_found_before_the_machine_failed_stands(monkeypatch: pytest.MonkeyPatch, left: list[str]) -> None:
    def act(engine: Engine, step: int) -> None:
        if step == 2:
            engine.pool_problems = ["ownership: slot 7 has 2 owners"]
        if step == 3:
            raise MemoryError

    outcome = outcome_of(run(monkeypatch, engine_that(act)))
    assert (outcome.verdict, outcome.signature, outcome.unavailable) == ("fail", "pools@ownership", False)
    assert outcome.reasons == ("machine: there is no memory left: MemoryError",)


@pytest.mark.parametrize(("rid", "place"), [("g0.0", "<scenario>: arm 'only': "), ("other", "")])
def test_a_request_that_the_engine_rejects_is_named_with_its_group_s_line(
    rid: str, place: str, monkeypatch: pytest.MonkeyPatch, left: list[str]
) -> None:
    (usage,) = run(monkeypatch, raising(RequestRejected(rid, "needs 9 positions"))).of("usage")
    assert usage["message"] == f"{place}request '{rid}' needs 9 positions"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module to patch."""
    (tmp_path / "toy_of_nests.py").write_text("def width():\n    return 3\n\n\ndef height():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("toy_of_nests")
    del sys.modules["toy_of_nests"]


def in_nest(monkeypatch: pytest.MonkeyPatch, patches: Mapping[int, Patch], act: Callable[..., Any]) -> list[int]:
    """Builds an arm with these patches in force, as a nest does; returns the seeds that engines were built with."""
    seeds: list[int] = []

    def build(options: Any, seed: int) -> Any:
        seeds.append(seed)
        return engine_that(act)(options, seed)

    monkeypatch.setattr(arm, "_built", None)
    monkeypatch.setattr(embedded, "build_engine", build)
    arm.build(patched(payload_of(), patches))
    return seeds


def patched(payload: dict[str, Any], patches: Mapping[int, Patch]) -> dict[str, Any]:
    found = {number: [patch] for number, patch in patches.items()}
    return {**payload, "engine": "toy", "worker": "", "patches": pickle.dumps(found)}


def test_what_is_built_once_goes_on_with_another_s_workload_and_tells_all_that_was_told(
    monkeypatch: pytest.MonkeyPatch, left: list[str], toy: Any
) -> None:
    patches = {
        7: Patch.of("fix 7", "toy_of_nests:width", ("return 3", "return 4")),
        0: Patch.of("no fix", "toy_of_nests:height", ("return 1", "return 2")),
    }
    widths: list[int] = []
    seeds = in_nest(monkeypatch, patches, lambda engine, step: widths.append(toy.width() * toy.height()))
    assert (seeds, widths) == ([0], [])
    sink = ListSink()
    arm.run_arm(patched(payload_of(seed=5, prompt=(9,)), patches), sink)
    assert (seeds, widths) == ([0], [8] * 6), "nothing is built again"
    names = [event["event"] for event in sink.events]
    assert names.index("reverts") < names.index("stack") < names.index("stage"), "what was told while it was built"
    assert [event["name"] for event in sink.of("stage")] == ["revert", "build", "run"]
    (reverts,), (covered,), (done,) = sink.of("reverts"), sink.of("coverage"), sink.of("done")
    assert (reverts["hits"], covered["hits"]) == ({"7": {"fix 7#1": 0}}, {"7": {"fix 7#1": 6}})
    assert done["warm"] == "built"
    assert next(each["emitted"] for each in sink.of("step") if each.get("emitted")) == {"g0.0": [10]}
    assert outcome_of(sink).verdict == "pass"


def test_patches_that_are_in_force_already_are_counted_and_not_put_in_again(
    monkeypatch: pytest.MonkeyPatch, left: list[str]
) -> None:
    put: list[Any] = []

    def put_in_place(patches: Any) -> Callable[[], dict[str, dict[str, int]]]:
        put.append(patches)
        return lambda: {"7": {"fix 7#1": 6}}

    monkeypatch.setattr(session_run, "_reverted", None)
    monkeypatch.setattr(session_run, "put_in_place", put_in_place)
    monkeypatch.setattr(embedded, "build_engine", engine_that(lambda engine, step: None))
    payload = patched(payload_of(), {7: Patch.of("fix 7", "some.module:width", ("return 3", "return 4"))})
    session_run.revert({**payload, "base": False})
    arm.run_arm(payload, sink := ListSink())
    assert [each["hits"] for each in sink.of("coverage")] == [{"7": {"fix 7#1": 6}}]
    arm.run_arm(patched(payload, {}), ListSink())
    assert [list(each) for each in put] == [[7], []], "others are another matter"


def test_fixes_are_taken_out_of_what_has_the_patches_of_no_fix_in_force(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "toy_of_bases.py").write_text("def width():\n    return 3\n\n\ndef height():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    toy = importlib.import_module("toy_of_bases")
    monkeypatch.setattr(session_run, "_reverted", None)
    no_fix = Patch.of("no fix", "toy_of_bases:height", ("return 1", "return 2"))
    fix = Patch.of("fix 7", "toy_of_bases:width", ("return 3", "return 4"))
    session_run.revert({"patches": pickle.dumps({0: [no_fix]}), "base": True})
    assert (toy.width(), toy.height(), census_taken()) == (3, 2, True)
    whole = pickle.dumps({7: [fix], 0: [no_fix]})
    session_run.revert({"patches": whole, "base": False})
    assert (toy.width(), toy.height(), census_taken()) == (4, 2, False)
    assert session_run._reverted is not None
    assert (session_run._reverted[0], session_run._reverted[1]()) == (whole, {"7": {"fix 7#1": 1}})


def test_an_arm_that_is_not_built_says_so(monkeypatch: pytest.MonkeyPatch, left: list[str]) -> None:
    (done,) = run(monkeypatch, engine_that(lambda engine, step: None)).of("done")
    assert done["warm"] == "cold"


def test_a_nest_whose_patches_do_not_fit_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecDebugError, match="its reverts cannot be put in place"):
        in_nest(monkeypatch, {7: Patch.of("fix 7", "no_such_module_here:width", ("return 3", "return 4"))}, print)
