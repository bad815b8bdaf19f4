"""Functions in the place of Triton kernels: launched as these are, with the arguments by the kernels' own names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specdebug.targets.sglang.inside.kernel_reads import Read, reads_like_a_kernel
from specdebug.targets.sglang.inside.refusals import refusal, refuse
from specdebug.targets.sglang.inside.seats import NoSeat

Given = Mapping[str, Any]
"""The arguments of a launch by name, and its ``grid``."""
_HOW = re.compile(r"BLOCK|stride_|aux0_|Aux0$|num_(warps|stages)$|compact_batch_size$|FP8_MAX$|uneven_batch$|USE_PDL$")
"""Arguments that say how a kernel computes, and not what; of strides, a stand-in reads those that it has a use for."""
_NEUTRAL = (None, False, 0)


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

    def instead_of(self, kernel: Any) -> LaunchedStandIn:
        """Return the stand-in for a Triton kernel. Raises NoSeat where that takes other arguments."""
        return LaunchedStandIn(kernel, self)


class LaunchedStandIn:
    """In the place of a Triton ``kernel``. An argument that is not known, and asks for something, is refused."""

    def __init__(self, kernel: Any, ours: TorchKernel) -> None:
        self.__name__ = str(kernel.__name__)
        self._names = tuple(inspect.signature(kernel.fn).parameters)
        if lacking := sorted(ours.takes - set(self._names)):
            raise NoSeat(f"SGLang's kernel {self.__name__} has no argument {', '.join(lacking)}")
        self._ours = ours
        self._run = reads_like_a_kernel(lambda told: ours.reads(told["given"]), ours.told)(ours.run)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **named: Any) -> None:
            given = {**dict(zip(self._names, args, strict=False)), **named}
            refuse(self._ours.told, given, **self._ours.only)
            for name in given.keys() - self._ours.takes - self._ours.perhaps - self._ours.only.keys():
                if not _HOW.match(name) and not any(given[name] is each for each in _NEUTRAL):
                    raise refusal(self._ours.told, f"argument {name}, and was given {given[name]!r}")
            self._run({**given, "grid": grid})

        return launch
