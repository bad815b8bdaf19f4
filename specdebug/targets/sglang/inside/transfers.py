"""Prefill and decode apart, on one machine without RDMA: SGLang's own connectors, for Mooncake's transfer engine and
for NIXL's agents, write into the other process's memory by ``process_vm_writev``. What their threads have begun is
counted, so that a step can wait until all of it is over: else a step would depend on their speed."""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from specdebug.targets.sglang.inside.seats import Seat, in_sglang

_WORD = 8
_PARTS = "srt.disaggregation.common"
RECEIVING = Seat("what is handed over", (f"{_PARTS}.conn:CommonKVManager._make_worker_recv",))
QUEUE = Seat("what is handed over", (f"{_PARTS}.utils:FastQueue.get",))
_PR_SET_PTRACER = 0x59616D61
_ANY = ctypes.c_ulong(-1).value

LATE_S = 1.0


class Handovers:
    """Memory that ranks share which are forked after it was made: of each its process, and how much work for threads,
    its own or another's, it has begun and has ended."""

    def __init__(self, world: int) -> None:
        self._memory = memoryview(mmap.mmap(-1, 3 * _WORD * world)).cast("q")
        self._world, self._lock = world, threading.Lock()
        self.wrong: str | None = None
        """A fault's act upon the next transfer of this process, by the name of its class."""

    def enter(self, rank: int) -> None:
        """This process is that rank."""
        self._rank = rank
        self._memory[3 * rank] = os.getpid()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.prctl(_PR_SET_PTRACER, _ANY)  # where a process may write into none but its children

    def pid(self, rank: int) -> int:
        """The process of a rank."""
        return self._memory[3 * rank]

    def began(self, change: int = 1) -> None:
        """Work has begun that a thread will see the end of."""
        with self._lock:
            self._memory[3 * self._rank + 1] += change

    def ended(self) -> None:
        """A thread of this process has seen one through."""
        with self._lock:
            self._memory[3 * self._rank + 2] += 1

    @property
    def quiet(self) -> bool:
        """Return True if all that was begun is over."""
        ended = sum(self._memory[3 * rank + 2] for rank in range(self._world))
        return ended == sum(self._memory[3 * rank + 1] for rank in range(self._world))

    def write(self, rank: int, here: int, there: int, length: int) -> int:
        """Copy bytes from an address of this process to one of a rank's; 0, or -1 where that cannot be."""
        mine, theirs = (_Place(address, length) for address in (here, there))
        once = ctypes.c_ulong(1)
        written = self._libc.process_vm_writev(
            self.pid(rank), ctypes.byref(mine), once, ctypes.byref(theirs), once, ctypes.c_ulong(0)
        )
        return 0 if written == length else -1

    def move(self, rank: int, places: list[tuple[int, int, int]]) -> int:
        """Copy from addresses of this process to those of a rank's, each with its length, as a fault has it; 0, or -1
        where one cannot be."""
        wrong, self.wrong = self.wrong, None
        if wrong == "transfer_late":
            time.sleep(LATE_S)
        elif wrong == "transfer_lost":
            places = []
        elif wrong == "transfer_cut":
            places = places[: len(places) // 2] or [(one, two, size // 2) for one, two, size in places]
        elif wrong == "transfer_misplaced":
            places = [(one, two + size, size) for one, two, size in places]
        return min((self.write(rank, *place) for place in places), default=0)


class _Place(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def stand_in_for_connector(handovers: Handovers, rank: int, *, nixl: bool) -> None:
    """Be a rank of servers that hand requests over, by ``nixl`` or by Mooncake. Raises NoSeat."""
    handovers.enter(rank)
    socket = importlib.import_module("zmq").Socket
    if nixl:
        api: Any = ModuleType("nixl._api")
        api.nixl_agent = lambda name, _: _Agent(handovers, rank, name)
        api.nixl_agent_config, api.nixl_thread_sync_t = SimpleNamespace, SimpleNamespace(NIXL_THREAD_SYNC_STRICT=0)
        sys.modules |= {"nixl": ModuleType("nixl"), "nixl._api": api}
        socket.recv_multipart = _seen_through(socket.recv_multipart, handovers)
    else:
        engine: Any = ModuleType("mooncake.engine")
        engine.TransferEngine = lambda: _TransferEngine(handovers, rank)
        sys.modules |= {"mooncake": ModuleType("mooncake"), "mooncake.engine": engine}
        owner, name = RECEIVING.find()
        setattr(owner, name, _counted(getattr(owner, name), handovers))
    queue, get = QUEUE.find()
    setattr(queue, get, _seen_through(getattr(queue, get), handovers))
    queue.put = _begun(queue.put, handovers)
    socket.send_multipart = _begun(socket.send_multipart, handovers)
    for made in ("empty", "zeros", "ones", "full", "tensor", "arange", "empty_like"):
        setattr(torch, made, _unpinned(getattr(torch, made)))
    torch.cuda.Event = _Event  # type: ignore[assignment,misc]
    torch.cuda.current_stream = lambda *_: None  # type: ignore[assignment]


def serve_bootstrap() -> None:
    """Start the server at which decode finds prefill; called once a rank's role is published."""
    in_sglang("srt.managers.disagg_service").start_disagg_service()


def _begun(hand: Callable[..., Any], handovers: Handovers) -> Callable[..., Any]:
    """What gives a thread its work: a message, or an item of a queue."""

    def begun(*args: Any, **named: Any) -> Any:
        handovers.began()
        try:
            return hand(*args, **named)
        except BaseException:
            handovers.began(-1)
            raise

    return begun


def _counted(make: Callable[..., Any], handovers: Handovers) -> Callable[..., Any]:
    return lambda *args, **named: _seen_through(make(*args, **named), handovers)


def _seen_through(get: Callable[..., Any], handovers: Handovers) -> Callable[..., Any]:
    """What a thread gets its work from, in a loop: when it asks for more it has seen the last one through."""
    has = threading.local()

    def got(*args: Any, **named: Any) -> Any:
        if getattr(has, "work", False):
            has.work = False
            handovers.ended()
        work = get(*args, **named)
        has.work = True
        return work

    return got


def _unpinned(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, pin_memory=False, **named: make(*args, **named)


class _Event:
    """In the place of a CUDA event: what came before it is over."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record(self, *_: Any) -> None: ...
    def wait(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True


class _TransferEngine:
    """In the place of ``mooncake.engine.TransferEngine``. A session's port is its rank."""

    def __init__(self, handovers: Handovers, rank: int) -> None:
        self._handovers, self._rank = handovers, rank

    def initialize(self, *_: Any) -> int:
        return 0

    def get_rpc_port(self) -> int:
        return self._rank

    def register_memory(self, *_: Any) -> int:
        return 0

    unregister_memory = batch_register_memory = batch_unregister_memory = register_memory

    def send_probe(self, _: str) -> int:
        return 0

    def transfer_sync_write(self, session: str, here: int, there: int, length: int) -> int:
        return self.batch_transfer_sync_write(session, [here], [there], [length])

    def batch_transfer_sync_write(
        self, session: str, here: Sequence[int], there: Sequence[int], lengths: Sequence[int]
    ) -> int:
        rank = int(session.rpartition(":")[2])
        return self._handovers.move(rank, list(zip(here, there, lengths, strict=True)))


class _Agent:
    """In the place of ``nixl._api.nixl_agent``: what is to be moved has been once it is begun. Places are (address,
    length, device); the name of each agent travels with its rank."""

    def __init__(self, handovers: Handovers, rank: int, name: str) -> None:
        self._handovers, self._rank, self.name = handovers, rank, name
        self._ranks: dict[str, int] = {}

    def create_backend(self, *_: Any) -> None: ...

    def get_plugin_list(self) -> list[str]:
        return ["UCX"]

    def register_memory(self, places: Any, _: str) -> Any:
        return places

    get_xfer_descs = register_memory

    def get_agent_metadata(self) -> bytes:
        return f"{self._rank} {self.name}".encode()

    def add_remote_agent(self, metadata: bytes) -> str:
        rank, _, name = metadata.decode().partition(" ")
        self._ranks[name] = int(rank)
        return name

    def remove_remote_agent(self, name: str) -> None:
        self._ranks.pop(name, None)

    def check_remote_metadata(self, name: str) -> bool:
        return name in self._ranks

    def prep_xfer_dlist(self, peer: str, places: Any, _: str) -> tuple[str, Any]:
        """Places of runs, (address, length, device, stride, count), stand one behind the other."""
        rows = [[int(number) for number in row] for row in places]
        if rows and len(rows[0]) > len(("address", "length", "device")):
            runs = ((start, length, device, stride, range(count)) for start, length, device, stride, count in rows)
            rows = [[start + n * stride, length, device] for start, length, device, stride, each in runs for n in each]
        return peer, rows

    def make_prepped_xfer(self, _: str, here: Any, ours: Any, there: Any, theirs: Any) -> Any:
        (_, mine), (peer, others) = here, there
        return self.initialize_xfer("", [mine[each] for each in ours], [others[each] for each in theirs], peer)

    def initialize_xfer(self, _: str, here: Any, there: Any, peer: str) -> Any:
        pairs = zip(here, there, strict=True)
        return self._ranks[peer], [(int(one[0]), int(two[0]), int(one[1])) for one, two in pairs]

    def transfer(self, move: Any) -> str:
        return "DONE" if self._handovers.move(*move) == 0 else "ERR"

    def check_xfer_state(self, _: Any) -> str:
        return "DONE"
