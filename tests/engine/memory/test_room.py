"""The laws of room: a sound scheduler keeps them (``tests/engine/test_scheduler.py`` looks after every step), and each
way of counting wrong breaks one."""

from __future__ import annotations

from typing import Any

import pytest

from specdebug.engine.memory.room import Room
from specdebug.engine.textbook.request import Request
from tests.engine.machine import Machine
from tests.engine.parts import Parts, make_config

PROMPT = list(range(20, 29))  # 9 tokens
V1 = {"worker": "v1", "num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6}


def watching(parts: Parts) -> Room:
    """A room that has looked once, from when on it judges."""
    room = Room(parts.config, parts.cache)
    assert room.check([]) == []
    return room


@pytest.mark.parametrize(("worker", "most"), [("v1", 12), ("v2", 24)])
def test_a_holder_keeps_whole_pages_and_no_more_than_its_worker_lets_it(worker: str, most: int) -> None:
    """9 positions: v1 leaves them alone, v2 two steps of 6 behind them."""
    parts = Parts(make_config(page_size=4, num_slots=64, speculative={"worker": worker, "num_steps": 5}))
    request, room = parts.run(PROMPT), watching(parts)
    assert request.kv_len == 9
    for held in range(8, 32):
        request.kv_allocated = held
        problems = room.check([request])
        if held % 4 or not 12 <= held <= most:
            due = "12" if most == 12 else "12 to 24"
            said = f"has committed 9 positions and holds {held} slots, not {due} in whole pages"
            assert problems == [f"reserve: {request.rid} {said}"]
        else:
            assert problems == []


def test_who_decodes_has_two_steps_behind_where_it_went_on() -> None:
    """21 cells are 24 in pages of 4; less would do for one step, and more for its new length."""
    parts = Parts(make_config(page_size=4, num_slots=64, speculative={"num_steps": 5}))
    request, room = parts.run(PROMPT), watching(parts)
    for held in (20, 24, 28):
        request.kv_len, request.kv_allocated = 9, held
        room.begin([request], None, [])
        request.kv_len = 13
        room.end()
        said = f"reserve: r1 went on from 9 with {held} slots, not 24"
        assert room.check([request]) == ([] if held == 24 else [said])


def test_nothing_is_noted_before_the_first_look() -> None:
    parts = Parts(make_config(speculative={"num_steps": 5}))
    request, room = parts.run(PROMPT), Room(parts.config, parts.cache)
    room.begin([request], None, [])
    room.end()
    request.kv_len += 1
    request.kv_allocated = request.kv_len
    assert room.check([request]) == []


def crowd(**options: Any) -> tuple[Machine, list[Request]]:
    machine = Machine(num_slots=48, radix_cache=False, **options)
    requests = [machine.add([5 - n] * (5 - n), new=9) for n in range(3)]
    assert machine.step()[0] == "prefill"
    return machine, requests


def test_nobody_is_set_back_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, _ = crowd(speculative=V1)
    machine.step()
    monkeypatch.setattr(machine.scheduler.reservation, "borrowed", lambda requests: 15 * len(requests))
    with pytest.raises(AssertionError, match=r"room: r3 was set back, for \d+ slots when \d+ could be had"):
        machine.step()


def test_who_waits_first_is_admitted_once_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, _ = crowd()
    machine.add([7] * 6)
    monkeypatch.setattr(machine.scheduler.reservation, "admitted", lambda request: 40)
    with pytest.raises(AssertionError, match="room: r4 waits with 36 slots to spare, and needs 8"):
        machine.step()


def test_nobody_is_admitted_before_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, _ = crowd(page_size=4)
    machine.add([7] * 31, new=2)
    monkeypatch.setattr(machine.scheduler.reservation, "admitted", lambda request: -12)
    with pytest.raises(AssertionError, match="room: r4 was admitted with 32 slots to spare, and needs 36"):
        machine.step()


def test_nobody_is_due_while_one_who_was_set_back_waits_for_an_end() -> None:
    """There is room for the third all the time; whoever is set back from outside is not admitted before somebody
    ends, and with nobody due the law is silent."""
    machine, (first, _, third) = crowd()
    machine.scheduler.retract(third)
    while not first.finished:
        assert machine.step()[0] == "decode"
    assert machine.step()[0] == "prefill"
