"""A flight recorder of collectives: what each rank of a run has entered, and what it waits in, on a board that all
ranks share, so that it can be read when a rank answers no more.

It stands at the methods of torch's process groups, through which its functions in Python pass. On a GPU a collective is
left when it is queued.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

SIDED = ("send", "recv")
"""Of a message each side has its own."""
METHODS = (
    *("allreduce", "broadcast", "allgather", "_allgather_base", "reduce", "gather", "scatter"),
    *("reduce_scatter", "_reduce_scatter_base", "alltoall", "alltoall_base", "barrier", *SIDED),
)
"""Methods of a process group that are collectives, or one side of a message."""
ROOTED = ("broadcast", "reduce", "gather", "scatter")
"""Those whose root calls them from another line than the others."""
UNTOUCHED = ("barrier", *SIDED)
"""Those that no fault acts on."""
LATE_S = 1.0
_SLOT = 8192
"""Bytes of a rank's place on the board."""
_PASSED = ("/torch/", "/distributed/", "communication_op.py", "/layers/linear.py", "/specdebug/")
"""Parts of paths of code between an engine and its collectives."""


@dataclass(frozen=True)
class Collective:
    """One that a rank has entered. ``number``: it is the group's so many-th on this rank, from 1. ``shape``: of the
    first tensor. ``caller``: ``file:line function`` of the engine's code, below its package."""

    op: str
    group: str
    number: int
    dtype: str
    shape: tuple[int, ...]
    caller: str

    @property
    def form(self) -> tuple[str, str, int, str, tuple[int, ...]]:
        """What ranks of a group must agree in."""
        return self.op, self.group, self.number, self.dtype, self.shape

    @property
    def place(self) -> tuple[object, str]:
        """That, and where it was called."""
        return self.form, "" if self.op in ROOTED else self.caller

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape)) or "scalar"
        return f"{self.op} #{self.number} of {self.dtype} {size} in group {self.group} ({self.caller})"


KEPT = 16
"""Collectives of a rank that the board has: gloo lets none get further ahead of another."""


@dataclass(frozen=True)
class State:
    """A rank on the board. ``entered``: collectives so far, of which it has the ``latest``. ``waits``: it has
    not left the last one."""

    entered: int = 0
    waits: bool = False
    latest: tuple[Collective, ...] = ()

    @property
    def last(self) -> Collective | None:
        return self.latest[-1] if self.latest else None

    def parts_from(self, other: State) -> tuple[Collective, Collective] | None:
        """The first of the latest that are of one group and number here and there, and were entered otherwise; None if
        there is none."""
        theirs = {(each.group, each.number): each for each in other.latest if each.op not in SIDED}
        pairs = ((each, theirs.get((each.group, each.number))) for each in self.latest if each.op not in SIDED)
        return next(((one, two) for one, two in pairs if two and one.place != two.place), None)

    def __str__(self) -> str:
        if self.last is None:
            return "has entered no collective"
        return f"{'waits in' if self.waits else 'last left'} {self.last}"


class Board:
    """Memory that processes share which are forked after it was made: a place for each rank, which that rank writes."""

    def __init__(self, world: int) -> None:
        self._memory = mmap.mmap(-1, world * _SLOT)
        self.world = world

    def write(self, rank: int, state: State) -> None:
        """Replace what is said of a rank."""
        data = json.dumps(asdict(state)).encode()[: _SLOT - 4]
        start = rank * _SLOT
        self._memory[start : start + 4 + len(data)] = len(data).to_bytes(4, "little") + data

    def read(self, rank: int) -> State:
        """The last state that a rank has written; of one that writes at this moment the state is that of none."""
        start = rank * _SLOT
        length = int.from_bytes(self._memory[start : start + 4], "little")
        try:
            plain = json.loads(self._memory[start + 4 : start + 4 + length] or b"{}")
        except ValueError:
            return State()
        latest = (Collective(**{**each, "shape": tuple(each["shape"])}) for each in plain.pop("latest", ()))
        return State(**plain, latest=tuple(latest))

    def entered(self) -> list[int]:
        """The number of collectives that each rank has entered."""
        return [self.read(rank).entered for rank in range(self.world)]


class _Done:
    """In the place of a collective's work that was not begun."""

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class FlightRecorder:
    """Records the collectives of this process, which is ``rank``, from :meth:`begin` on. ``server``: the name of its
    server where there are several, each of which numbers its groups by itself."""

    def __init__(self, board: Board, rank: int, server: str | None = None) -> None:
        self._board, self.rank, self._server = board, rank, server
        self._numbers: Counter[str] = Counter()
        self._state = State()
        self._since: list[Collective] = []
        self.tampering: str | None = None
        """A fault's act upon the next collective of a model's forward: skip, twice, shape, late, dead or hangs."""

    def begin(self) -> None:
        """Stand at torch's process groups from now on."""
        for name in METHODS:
            setattr(dist.ProcessGroup, name, self._standing_at(name, getattr(dist.ProcessGroup, name)))
        work: Any = torch._C._distributed_c10d.Work
        waited = work.wait

        @functools.wraps(waited)
        def wait(*args: Any, **named: Any) -> Any:
            answer = waited(*args, **named)
            self._left()
            return answer

        work.wait = wait

    def taken(self) -> list[Collective]:
        """Those entered since this was last asked."""
        taken, self._since = self._since, []
        return taken

    def _standing_at(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def entering(group: Any, *args: Any, **named: Any) -> Any:
            how = self.tampering if name not in UNTOUCHED and _of_a_model(args) else None
            if how is None:
                self._enters(name, group, args, named)
                return function(group, *args, **named)
            self.tampering = None
            return self._tamper(how, name, functools.partial(function, group), group, args, named)

        return entering

    def _enters(self, name: str, group: Any, args: Sequence[Any], named: Any) -> None:
        label = f"{self._server}.{group.group_name}" if self._server else str(group.group_name)
        self._numbers[label] += 1
        first = _first_tensor([*args, *named.values()])
        form = ("none", ()) if first is None else (str(first.dtype).removeprefix("torch."), tuple(first.shape))
        entered = Collective(name.strip("_"), label, self._numbers[label], *form, _caller())
        self._since.append(entered)
        self._state = State(self._state.entered + 1, True, (*self._state.latest, entered)[-KEPT:])
        self._board.write(self.rank, self._state)

    def _left(self) -> None:
        self._state = replace(self._state, waits=False)
        self._board.write(self.rank, self._state)

    def _tamper(
        self, how: str, name: str, call: Callable[..., Any], group: Any, args: Sequence[Any], named: Any
    ) -> Any:
        if how == "skip":
            return _Done()
        if how == "hangs":
            while True:
                time.sleep(3600)
        if how == "late":
            time.sleep(LATE_S)
        if how == "shape":
            args = [_halved(each) for each in args]
        self._enters(name, group, args, named)
        if how == "dead":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "twice":
            call(*args, **named).wait()
            self._enters(name, group, args, named)
        return call(*args, **named)


def _of_a_model(args: Sequence[Any]) -> bool:
    first = _first_tensor(args)
    return first is not None and first.is_floating_point()


def _first_tensor(parts: Sequence[Any]) -> torch.Tensor | None:
    for part in parts:
        if isinstance(part, torch.Tensor):
            return part
        if isinstance(part, (list, tuple)) and (found := _first_tensor(part)) is not None:
            return found
    return None


def _halved(part: Any) -> Any:
    """Tensors of half as many elements in the place of those in an argument."""
    if isinstance(part, torch.Tensor):
        return part.reshape(-1)[: max(part.numel() // 2, 1)].clone()
    return [_halved(each) for each in part] if isinstance(part, (list, tuple)) else part


def _caller() -> str:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and any(each in frame.f_code.co_filename for each in _PASSED):
        frame = frame.f_back
    if frame is None:
        return "unknown"
    path = frame.f_code.co_filename
    below = path.rpartition("site-packages/")[2] or path
    return f"{below}:{frame.f_lineno} {frame.f_code.co_name}"
