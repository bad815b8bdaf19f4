"""Requests that are passed over while others are served, and orders of serving that pass over none."""

from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.engine import Engine
from specdebug.events import Aborting, Queued, Stepped
from specdebug.run.oracles.base import Bench
from specdebug.run.oracles.turns import PATIENCE, TurnsOracle
from specdebug.verdict.outcome import Violation
from tests.run.fakes import oracle_settings
from tests.run.oracles.serving import ALONE, serve
from tests.run.oracles.test_graphs import plant

NO_SESSION: Any = None


class Queue:
    """Requests a to e have arrived in this order, and the oracle is told of steps."""

    def __init__(self) -> None:
        self.found: list[Violation] = []
        self.oracle = TurnsOracle(Bench(oracle_settings(), NO_SESSION, None, self.found.append, print, str))
        for rid in "abcde":
            self.oracle.on(Queued(SimpleNamespace(rid=rid)))

    def prefill(self, rids: str, *, whole: bool = True) -> None:
        self.oracle.on(Stepped(1, "prefill", tuple(rids), {rid: [5] for rid in rids if whole}))

    def decode(self, rids: str, *, times: int = 1, **facts: Any) -> None:
        for _ in range(times):
            self.oracle.on(Stepped(1, "decode", tuple(rids), {rid: [5] for rid in rids}, **facts))

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(each.data["rid"], each.data["kind"]) for each in self.found]


def test_a_request_that_decodes_is_not_left_out() -> None:
    queue = Queue()
    queue.prefill("ab")
    queue.decode("a", times=PATIENCE)
    assert queue.said == []
    queue.decode("a")
    assert queue.said == [("b", "decode")]
    assert (queue.found[0].signature, queue.found[0].detail) == (
        "ends@turns",
        "b was passed over in 9 decode steps on end",
    )
    queue.decode("a", times=PATIENCE + 1)
    assert len(queue.said) == 1, "it is said once"


def test_a_turn_that_comes_begins_the_count_anew() -> None:
    queue = Queue()
    queue.prefill("ab")
    for _ in range(3):
        queue.decode("a", times=PATIENCE)
        queue.decode("ab")
    assert queue.said == []


def test_a_prompt_that_came_first_is_not_overtaken_again_and_again() -> None:
    queue = Queue()
    for _ in range(PATIENCE):
        queue.prefill("c", whole=False)
    assert queue.said == []
    queue.prefill("c")
    assert queue.said == [("a", "prefill"), ("b", "prefill")]


def test_requests_wait_for_those_that_came_before_them_and_for_prompts() -> None:
    queue = Queue()
    queue.prefill("a")
    queue.decode("a", times=20)  # the others do not fit
    for _ in range(20):
        queue.prefill("b", whole=False)  # a prompt goes before decodes
    queue.oracle.on(Aborting(SimpleNamespace(rid="b")))
    queue.prefill("c")
    queue.decode("ac", retracted=())
    queue.decode("c", times=20, retracted=("a",))  # it was given back, though it came first
    queue.decode("c", finished=("c",))
    queue.prefill("ade")
    queue.decode("ade", finished=("d",))
    queue.decode("ae", times=20)
    assert queue.said == []


def test_a_prompt_that_is_set_back_as_soon_as_it_is_computed_had_its_turn() -> None:
    queue = Queue()
    for _ in range(4):
        for _ in range(PATIENCE - 1):
            queue.prefill("c", whole=False)
        queue.oracle.on(Stepped(1, "prefill", ("c",), {}, retracted=("a", "b")))
    assert queue.said == []


SHIPPED = ("cache_hit", "retracted_chunk_tail", "frozen_kv_retraction", "v1_retraction")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_sound_engine_gives_every_request_its_turns(name: str) -> None:
    found, judge, _ = serve(name, **ALONE)
    assert [each.signature for each in found] == []
    assert judge.bench.looks["turns"] > 10


def test_an_engine_that_decodes_one_request_at_a_time_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, Engine, "_decode", "list(self._scheduler.running)", "list(self._scheduler.running)[:1]")
    found, _, _ = serve("request_ends", **ALONE, pools=False, ends=False)
    assert "ends@turns" in [each.signature for each in found]
