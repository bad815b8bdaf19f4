"""SGLang's pools add up: each law holds of a sound engine, each way to break it is named, and faults that act there."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from specdebug import async_probe
from specdebug.base.errors import InvalidOption
from specdebug.base.trial import stream
from specdebug.events import BatchBegan, BatchEnded, Observers, StepBegan, StepOver
from specdebug.faults.declare import parse_fault
from specdebug.faults.injector import Injector
from specdebug.targets.ranks.layout import RankLayout
from specdebug.targets.sglang.faults import BETWEEN_BATCHES
from specdebug.targets.sglang.inside import scheduler as scheduling
from specdebug.targets.sglang.inside.faults import SeenEngine, SeenRequest
from specdebug.targets.sglang.inside.scheduler import Start, make_scheduler, violated
from tests.targets.sglang.inside.engine import scheduler


def test_files_that_only_reserve_the_names_of_sockets_are_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (reserved := tmp_path / "socket").touch()
    ports = SimpleNamespace(rpc_ipc_name=f"ipc://{reserved}", tokenizer_worker_ipc_name="", nccl_port=1)
    arguments = SimpleNamespace(prepare_server_args=tuple, PortArgs=SimpleNamespace(init_new=lambda args: ports))
    monkeypatch.setattr(scheduling, "in_sglang", lambda name: arguments)
    assert Start.of(["--tp", "1"]).ports is ports
    assert not reserved.exists()


def test_what_a_server_refuses_before_it_starts_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("chunked_prefill_size must be divisible by page_size")

    monkeypatch.setattr(scheduling, "in_sglang", lambda name: SimpleNamespace())
    start = Start(SimpleNamespace(check_server_args=refuse), None)
    with pytest.raises(InvalidOption, match="SGLang refuses these options: chunked_prefill_size must be divisible"):
        make_scheduler(start, RankLayout())


@pytest.mark.parametrize("running", [True, False])
def test_sound_pools_break_no_law(running: bool) -> None:
    assert violated(scheduler(running=running)) == []


def _allocated_apart(one: Any) -> None:
    """Releases up to 0.5.18."""
    one.kv = SimpleNamespace(kv_allocated_len=vars(one).pop("kv_allocated_len"))


def _all_apart(one: Any) -> None:
    """Those up to 0.5.21."""
    names = ("req_pool_idx", "cache_protected_len", "kv_committed_len", "kv_allocated_len")
    one.kv = SimpleNamespace(**{name: vars(one).pop(name) for name in names})


def _with_locks(one: Any) -> None:
    """Those from 0.5.22 on, in which a node that was the last is not always locked."""
    _all_apart(one)
    one.lock, one.last_node = SimpleNamespace(node=one.last_node), None


@pytest.mark.parametrize("keeps", [lambda one: None, _allocated_apart, _all_apart, _with_locks])
@pytest.mark.parametrize("name", ["cur_batch", "cur_batch_for_debug", "mbs", "running_mbs", "last_mbs"])
def test_what_a_request_holds_is_found_wherever_a_release_keeps_it(keeps: Callable[[Any], None], name: str) -> None:
    """Here one that only the batch has that was launched last, or another micro-batch."""
    engine = scheduler()
    (one,) = engine.running_batch.reqs
    keeps(one)
    if name.startswith("cur"):
        del engine.cur_batch
    setattr(engine, name, [None, engine.running_batch] if name.endswith("mbs") else engine.running_batch)
    engine.running_batch = engine.last_batch = None
    assert violated(engine) == []


FREE, ROWS = "token_to_kv_pool_allocator.free_pages", "req_to_token_pool.free_slots"


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (FREE, torch.tensor([5, 6, 7]), "ownership: 1 pages have no owner (first: 8)"),
        (FREE, torch.tensor([3, 5, 6, 7, 8]), "ownership: page 3 has 2 owners: free and 0123abcd-a"),
        (FREE, torch.tensor([5, 5, 6, 7, 8]), "ownership: page 5 has 2 owners: free and free"),
        (FREE, torch.tensor([5, 6, 7, 8, 9]), "liveness: free holds page 9, outside the pool"),
        (ROWS, [], "rows: row 2 is lost: neither free nor held by a request that prefills or runs"),
        (ROWS, [1, 2], "rows: row 1 is held by the free list and 0123abcd-a"),
        ("tree_cache.node.lock_ref", 2, "locks: radix node 1 has lock_ref 2, 1 requests read it: 0123abcd-a"),
        ("tree_cache.evictable_size_", 2, "locks: evictable + protected = 6, cached = 4"),
    ],
)
def test_each_broken_law_is_named(place: str, value: Any, told: str) -> None:
    engine = scheduler()
    owner, _, name = place.rpartition(".")
    setattr(attrgetter(owner)(engine), name, value)
    assert violated(engine) == [told]


def test_a_position_that_points_to_no_slot_is_named() -> None:
    engine = scheduler()
    engine.req_to_token_pool.req_to_token[1, 1] = 0
    assert violated(engine) == [
        "liveness: 0123abcd-a position 1 of 6 points to slot 0",
        "reuse: 0123abcd-a position 1 is not in the slot that the tree has it in",
    ]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("kv_committed_len", 5, "reserve: 0123abcd-a has committed 5 positions of 7 tokens"),
        ("output_ids", [6] * 4, "reserve: 0123abcd-a has committed 6 positions of 9 tokens"),
        ("output_ids", [], "reserve: 0123abcd-a has committed 6 positions of 5 tokens"),
        (
            "origin_input_ids",
            [1, 2, 9, 4, 5],
            "reuse: 0123abcd-a has 4 positions of the tree's, where token 2 is another",
        ),
        (
            "origin_input_ids",
            [1, 2, 3, 4, 9],
            "reuse: 0123abcd-a has 4 positions of the tree's, where token 4 is another",
        ),
    ],
)
def test_what_a_request_has_computed_and_what_it_has_from_the_tree_are_of_its_tokens(
    name: str, value: Any, told: str
) -> None:
    engine = scheduler()
    setattr(engine.running_batch.reqs[0], name, value)
    assert violated(engine) == [told]


def test_a_prefix_lies_where_the_tree_has_it_and_is_as_long() -> None:
    engine = scheduler()
    engine.tree_cache.node.value = torch.tensor([2, 3, 5, 4])
    assert violated(engine) == ["reuse: 0123abcd-a position 2 is not in the slot that the tree has it in"]
    engine = scheduler()
    engine.running_batch.reqs[0].cache_protected_len = 2
    assert [each for each in violated(engine) if each.startswith("reuse")] == [
        "reuse: 0123abcd-a has 2 positions of the tree's, and 4 lead to its node"
    ]


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_a_tree_keeps_whole_pages_of_what_an_ended_request_computed(outputs: int) -> None:
    """Of six or seven tokens it keeps four positions, in pages of two: the newest has no KV, and keys are of pairs."""
    ended = SimpleNamespace(rid="b", origin_input_ids=[1, 2, 3, 4, 5], output_ids_through_stop=[6, 7, 8][:outputs])
    told = ["kept: b has ended, and the tree has 4 of the 6 positions it computed"] if outputs == 3 else []
    engine = scheduler()
    assert violated(engine, [ended]) == told
    engine.tree_cache.disable_finished_insert = True
    assert violated(engine, [ended]) == []


def test_a_tree_that_shows_no_nodes_is_added_up_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_ported(_: object) -> None:
        raise NotImplementedError("root_node")

    engine = scheduler()
    engine.tree_cache.node.lock_ref = 2
    monkeypatch.setattr(type(engine.tree_cache), "root_node", property(not_ported, lambda *_: None), raising=False)
    assert violated(engine) == []
    engine.tree_cache.evictable_size_ = 2
    assert violated(engine) == ["locks: evictable + protected = 6, cached = 4"]


def test_a_lock_that_outlives_every_request_is_named() -> None:
    engine = scheduler(running=False)
    engine.tree_cache.node.lock_ref, engine.tree_cache.evictable_size_ = 1, 0
    assert violated(engine) == [
        "locks: 4 slots are protected, and no request runs",
        "locks: radix node 1 has lock_ref 1, 0 requests read it",
    ]


class Injected:
    """Faults in a scheduler, told of its batches as a session tells them; ``told``: what the injector said."""

    def __init__(self, engine: Any, *texts: str) -> None:
        self.told: list[dict[str, Any]] = []
        self._engine, self._seen, self._observers, self._steps = engine, SeenEngine(engine), Observers(), 0
        self._injector = Injector([parse_fault(text) for text in texts], 0, self, stream)
        self._injector.attach(cast(Any, SimpleNamespace(view=self._seen, observers=self._observers)))

    def emit(self, event: str, **fields: Any) -> None:
        self.told.append({"event": event, **fields})

    def run(self, act: Callable[[], None] = lambda: None) -> None:
        """Tell of a batch, in which ``act`` is done."""
        self._steps += 1
        self._seen.see_running(self._engine)
        self._observers.tell(StepBegan, self._steps)
        batch = [SeenRequest(each) for each in self._engine.running_batch.reqs]
        self._observers.tell(BatchBegan, "speculative", cast(Any, batch))
        act()
        self._observers.tell(BatchEnded, "speculative")
        self._observers.tell(StepOver)

    def finish(self) -> None:
        self._injector.finish()


def test_a_fault_acts_at_its_step_and_says_what_it_did() -> None:
    faults = Injected(engine := scheduler(), "nan_kv_in_use:step=2")
    pool = engine.token_to_kv_pool_allocator.get_kvcache()
    faults.run()
    assert faults.told == []
    faults.run()
    (injected,) = faults.told
    assert (injected["fault"], injected["step"], injected["request"]) == ("nan_kv_in_use", 2, "0123abcd-a")
    assert int(torch.stack([*pool.k_buffer, *pool.v_buffer]).isnan().sum()) == 1
    assert injected["index"][0] in engine.req_to_token_pool.req_to_token[1, :5].tolist()


@pytest.mark.parametrize("name", [name for name in BETWEEN_BATCHES if not name.startswith("worker_")])
def test_each_class_finds_what_it_acts_on(name: str) -> None:
    faults = Injected(scheduler(), name)
    faults.run()
    faults.finish()
    lacks = {
        "req_to_token_of_another": "no other request runs",
        "generation_mismatch": "no two requests with reserved slots run",
    }
    first = faults.told[0]
    assert first.get("why") == lacks.get(name)
    assert first["event"] == ("unfired" if name in lacks else "injected")


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
    faults = Injected(engine := scheduler(), name)
    assert violated(engine) == []
    faults.run()
    assert law in {problem.partition(":")[0] for problem in violated(engine)}


def test_at_a_site_the_tensor_that_passes_is_damaged() -> None:
    faults = Injected(scheduler(), "positions_off_by_one", "index_out_of_range:site=accept.predict,step=2")
    positions = torch.tensor([6, 6])
    faults.run(lambda: async_probe.maybe_detect_oob(positions, 0, 100, "draft.forward.positions"))
    faults.finish()
    injected, idle = faults.told
    assert positions.tolist() == [7, 7]
    assert (injected["site"], injected["count"]) == ("draft.forward.positions", 2)
    assert idle["why"] == "site accept.predict was not reached in step 2"
