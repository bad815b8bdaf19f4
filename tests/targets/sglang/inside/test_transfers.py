"""What stands in the place of transfer engines: bytes arrive in another process where they are meant to, or as a fault
has it."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np
import pytest

from specdebug.targets.sglang.inside.transfers import Handovers, _Agent, _TransferEngine

ITEM = 8
ITEMS = 6


class Peers:
    """Two agents of one process, whose places are two pieces of memory."""

    def __init__(self) -> None:
        self.handovers = Handovers(2)
        for rank in (1, 0):
            self.handovers.enter(rank)
        self.here, self.there = (mmap.mmap(-1, ITEM * ITEMS) for _ in range(2))
        self.here[:] = bytes(range(ITEM * ITEMS))

    def agents(self) -> tuple[_Agent, str]:
        ours, theirs = _Agent(self.handovers, 0, "prefill"), _Agent(self.handovers, 1, "decode")
        peer = ours.add_remote_agent(theirs.get_agent_metadata())
        assert (peer, ours.check_remote_metadata(peer)) == ("decode", True)
        return ours, peer

    def address(self, memory: mmap.mmap) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def items(self, memory: mmap.mmap) -> list[int]:
        return [memory[ITEM * number] for number in range(ITEMS)]


@pytest.fixture
def peers() -> Peers:
    return Peers()


def test_an_agent_moves_the_items_of_prepared_places(peers: Peers) -> None:
    agent, peer = peers.agents()
    runs = np.array([[peers.address(peers.here), ITEM, 0, ITEM, ITEMS]], dtype=np.uint64)
    mine = agent.prep_xfer_dlist("", runs, "VRAM")
    rows = [(peers.address(peers.there) + ITEM * number, ITEM, 0) for number in range(ITEMS)]
    theirs = agent.prep_xfer_dlist(peer, agent.get_xfer_descs(rows, "VRAM"), "VRAM")
    move = agent.make_prepped_xfer("WRITE", mine, np.array([1, 5]), theirs, np.array([0, 2]))
    assert (agent.transfer(move), agent.check_xfer_state(move)) == ("DONE", "DONE")
    assert peers.items(peers.there) == [ITEM, 0, 5 * ITEM, 0, 0, 0]


def test_an_agent_moves_places_that_are_given_at_once_and_says_what_cannot_be(peers: Peers) -> None:
    agent, peer = peers.agents()
    here, there = [(peers.address(peers.here), ITEM, 0)], [(peers.address(peers.there) + ITEM, ITEM, 0)]
    assert agent.transfer(agent.initialize_xfer("WRITE", here, there, peer)) == "DONE"
    assert peers.there[: 2 * ITEM] == bytes(ITEM) + bytes(range(ITEM))
    assert agent.transfer(agent.initialize_xfer("WRITE", here, [(8, ITEM, 0)], peer)) == "ERR"
    agent.remove_remote_agent(peer)
    assert not agent.check_remote_metadata(peer)


@pytest.mark.parametrize(
    ("wrong", "arrives"),
    [
        (None, [0, ITEM, 0, 0, 0, 0]),
        ("transfer_lost", [0] * ITEMS),
        ("transfer_cut", [0, 0, 0, 0, 0, 0]),
        ("transfer_misplaced", [0, 0, ITEM, 0, 0, 0]),
    ],
)
def test_a_fault_acts_upon_the_next_transfer_alone(peers: Peers, wrong: str | None, arrives: list[int]) -> None:
    engine: Any = _TransferEngine(peers.handovers, 0)
    places = ([peers.address(memory) + ITEM * n for n in (0, 1)] for memory in (peers.here, peers.there))
    given = (*places, [ITEM, ITEM])
    peers.handovers.wrong = wrong
    assert engine.batch_transfer_sync_write("host:1", *given) == 0
    assert peers.items(peers.there) == arrives
    assert engine.batch_transfer_sync_write("host:1", *given) == 0
    assert peers.items(peers.there)[:2] == [0, ITEM]


def test_what_is_begun_is_waited_for_until_it_is_ended(peers: Peers) -> None:
    peers.handovers.began()
    assert not peers.handovers.quiet
    peers.handovers.ended()
    assert peers.handovers.quiet
    assert peers.handovers.pid(0) == os.getpid()
