"""Faults in a scheduler of SGLang's: they act at their step, on its parts, and are told with what they did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from specdebug import async_probe
from specdebug.base.trial import stream
from specdebug.faults.declare import parse_fault
from specdebug.faults.injector import Injector
from specdebug.targets.inside.words import facts_in
from specdebug.targets.sglang.faults import BETWEEN_BATCHES
from specdebug.targets.sglang.inside import faults
from specdebug.targets.sglang.inside.books import violated
from tests.targets.sglang.inside.engine import scheduler

Told = Callable[[], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def _no_faults_after() -> Any:
    yield
    async_probe.on_site(None)


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    return lambda: [facts for line in capsys.readouterr().err.splitlines() if (facts := facts_in(line))]


def acting(*texts: str, seed: int = 0) -> faults._Acting:
    return faults._Acting(Injector([parse_fault(text) for text in texts], seed, faults._Ledger(), stream))


def test_a_fault_acts_at_its_step_and_says_what_it_did(told: Told) -> None:
    engine, one = scheduler(), acting("nan_kv_in_use:step=2")
    pool = engine.token_to_kv_pool_allocator.get_kvcache()
    one.on_batch(engine, engine.running_batch, lambda: None)
    assert told() == []
    one.on_batch(engine, engine.running_batch, lambda: None)
    (injected,) = told()
    assert (injected["fault"], injected["step"], injected["request"]) == ("nan_kv_in_use", 2, "a")
    kept = torch.stack([*pool.k_buffer, *pool.v_buffer])
    assert int(kept.isnan().sum()) == 1
    slot = injected["index"][0]
    assert slot in engine.req_to_token_pool.req_to_token[1, :5].tolist()


@pytest.mark.parametrize("name", [name for name in BETWEEN_BATCHES if not name.startswith("worker_")])
def test_each_class_finds_what_it_acts_on(name: str, told: Told) -> None:
    engine, one = scheduler(), acting(name)
    one.on_batch(engine, engine.running_batch, lambda: None)
    one.tell_idle()
    lacks = {
        "req_to_token_of_another": "no other request runs",
        "generation_mismatch": "no two requests with reserved slots run",
    }
    first = told()[0]
    assert first.get("why") == lacks.get(name)
    assert first["ledger"] == ("unfired" if name in lacks else "injected")


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("slots_leaked", "ownership"),
        ("slot_used_after_free", "ownership"),
        ("cache_lock_lost", "locks"),
        ("req_to_token_out_of_range", "liveness"),
    ],
)
def test_damaged_books_break_a_law(name: str, law: str) -> None:
    engine, one = scheduler(), acting(name)
    assert violated(engine) == []
    one.on_batch(engine, engine.running_batch, lambda: None)
    assert law in {problem.partition(":")[0] for problem in violated(engine)}


def test_at_a_site_the_tensor_that_passes_is_damaged(told: Told) -> None:
    engine, one = scheduler(), acting("positions_off_by_one", "index_out_of_range:site=accept.predict,step=2")
    positions = torch.tensor([6, 6])

    def forward() -> None:
        async_probe.maybe_detect_oob(positions, 0, 100, "draft.forward.positions")

    one.on_batch(engine, engine.running_batch, forward)
    one.tell_idle()
    injected, idle = told()
    assert positions.tolist() == [7, 7]
    assert (injected["site"], injected["count"]) == ("draft.forward.positions", 2)
    assert idle["why"] == "site accept.predict was not reached in step 2"
