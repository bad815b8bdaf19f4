"""Stand-ins for kernels: launched as these are, telling what a kernel reads (their own operations gather more, and are
not looked at), refusing by name what they do not do. After a refusal, of which the harness is told, nothing is
judged."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from torch import Tensor

from specdebug.targets.inside.guard import tell_lost
from specdebug.targets.sglang.inside.seats import NoSeat

Read = tuple[str, Tensor, int]
"""An argument, what is read of it, and the row of the batch for which."""
Listener = Callable[[str, Iterator[Read], Callable[[], Any]], Any]
"""Takes a kernel's name and its reads, and calls the stand-in, whose answer it returns."""
Given = Mapping[str, Any]
"""The arguments of a launch by name, and its ``grid``."""
_Call = TypeVar("_Call", bound=Callable[..., Any])
_listeners: list[Listener] = []


def refusal(kernel: str, lacks: str) -> NotImplementedError:
    """The error of a stand-in that was asked for what it ``lacks``; the harness is told of it."""
    error = NotImplementedError(f"specdebug's stand-in for {kernel} has no {lacks}")
    tell_lost(f"{kernel} in torch", error, stand_in=True)
    return error


def refusing(kernel: str) -> Callable[..., None]:
    """A function in the place of a kernel that has no stand-in."""

    def call(*_: Any, **__: Any) -> None:
        raise refusal("sgl_kernel", kernel)

    return call


def refuse(kernel: str, given: Given, **neutral: tuple[Any, ...]) -> None:
    """Raise NotImplementedError where a kernel is given an argument that is none of its ``neutral`` values, of which
    one that is not given has the first."""
    for name, values in neutral.items():
        value = given.get(name, values[0])
        if not any(value is each or (not isinstance(value, Tensor) and value == each) for each in values):
            raise refusal(kernel, f"{name}, and was given {value!r}")


@contextlib.contextmanager
def ours(what: str) -> Iterator[None]:
    """Code of a stand-in that reads SGLang's parts and calls none of it: what it raises is told to be ours."""
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        tell_lost(what, error, stand_in=True)
        raise


def on_kernel(listener: Listener) -> None:
    """Have a listener call every stand-in from now on; of several the last."""
    _listeners.append(listener)


def reads_like_a_kernel(reads: Callable[..., Iterator[Read]], name: str = "") -> Callable[[_Call], _Call]:
    """Decorate a stand-in. ``reads``: what the kernel reads, by the arguments of the stand-in; ``name``: the kernel's,
    if it is not the stand-in's."""

    def decorate(stand_in: Any) -> Any:
        known = inspect.signature(stand_in)

        @functools.wraps(stand_in)
        def call(*args: Any, **named: Any) -> Any:
            if not _listeners:
                return stand_in(*args, **named)
            reading = reads(known.bind(*args, **named).arguments)
            return _listeners[-1](name or stand_in.__name__, reading, lambda: stand_in(*args, **named))

        return call

    return decorate


def rows_of(argument: str, flat: Tensor, ends: list[int]) -> Iterator[Read]:
    """The parts ``flat[ends[b] : ends[b + 1]]`` of a batch's rows."""
    for row, (start, stop) in enumerate(pairwise(ends)):
        if start < stop:
            yield argument, flat[start:stop], row


_HOW = re.compile(r"BLOCK|stride_|aux0_|Aux0$|num_(warps|stages)$|compact_batch_size$|FP8_MAX$|uneven_batch$|USE_PDL$")
"""Arguments that say how a kernel computes, and not what; of strides, a stand-in reads those that it has a use for."""


@dataclass(frozen=True)
class TorchKernel:
    """A kernel in torch. ``told``: its name in findings. ``takes``: the names of the arguments that are computed by,
    and ``perhaps`` those that not all releases have. ``only``: of others, the values that it is right for."""

    told: str
    run: Callable[[Given], None]
    reads: Callable[[Given], Iterator[Read]]
    takes: frozenset[str]
    perhaps: frozenset[str]
    only: Mapping[str, tuple[Any, ...]]


class LaunchedStandIn:
    """In the place of a Triton ``kernel``. An argument that is not known, and asks for something, is refused."""

    def __init__(self, kernel: Any, ours: TorchKernel) -> None:
        """Raises NoSeat for a kernel that takes other arguments."""
        self.__name__ = str(kernel.__name__)
        self._names = tuple(inspect.signature(kernel.fn).parameters)
        if lacking := sorted(ours.takes - set(self._names)):
            raise NoSeat(f"SGLang's kernel {self.__name__} has no argument {', '.join(lacking)}")
        self._ours = ours
        self._run = reads_like_a_kernel(lambda told: ours.reads(told["given"]), ours.told)(ours.run)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **named: Any) -> None:
            given, ours = {**dict(zip(self._names, args, strict=False)), **named}, self._ours
            refuse(ours.told, given, **ours.only)
            for name in given.keys() - ours.takes - ours.perhaps - ours.only.keys():
                if not _HOW.match(name) and not any(given[name] is each for each in (None, False, 0)):
                    raise refusal(ours.told, f"argument {name}, and was given {given[name]!r}")
            self._run({**given, "grid": grid})

        return launch
