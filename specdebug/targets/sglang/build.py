"""A scheduler of SGLang built in this process, its patches in force: with the stand-ins of a CPU, probes, and looks."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specdebug import async_probe
from specdebug.targets.base import OverThere
from specdebug.targets.inside.guard import EngineLook, tell_lost, wrap_all
from specdebug.targets.ranks.layout import RankLayout
from specdebug.targets.sglang.flags import NATIVE_MOVES
from specdebug.targets.sglang.inside.blocks import BLOCKS, BlockProbes
from specdebug.targets.sglang.inside.memory import KERNEL_MEMORY, watch_kernels
from specdebug.targets.sglang.inside.probes import PROBES, probe
from specdebug.targets.sglang.inside.scheduler import RELEASE, RUN, TAKE, Start, make_scheduler
from specdebug.targets.sglang.inside.seats import in_sglang
from specdebug.targets.sglang.inside.stages import LOOKS, StageLook, look
from specdebug.targets.sglang.inside.stand_ins import import_for_cpu, replace_recurrent, without_a_gpu
from specdebug.targets.sglang.inside.states import RECURRENT, StateProbes


@dataclass
class Built:
    """A scheduler that has served nothing yet. ``taps``: by name, what is called in the place of ``run_batch``,
    ``process_batch_result`` and ``release`` once a session has set it."""

    scheduler: Any
    look: StageLook | None
    not_engine_code: tuple[str, ...]
    taps: dict[str, Callable[..., Any]]


def import_engine(*, cpu: bool) -> None:
    """Import SGLang, unless it is. Raises what that raises."""
    if cpu:
        importlib.import_module("specdebug_empty")
        import_for_cpu()
    else:
        in_sglang("srt.managers.scheduler")


def build(
    start: Start, layout: RankLayout, rank: int, there: OverThere, *, cpu: bool, looks: bool, states: bool
) -> Built:
    """Build that of a rank. ``looks``: its stages are looked at; ``states``: the model keeps recurrent states. Raises
    NoSeat, and what SGLang raises."""
    if cpu:
        if not there.kernels:
            os.environ.update(NATIVE_MOVES)
        else:
            attempt(KERNEL_MEMORY, lambda: watch_kernels(there.kernels))
        if states:
            replace_recurrent()
    attempt(PROBES, probe)
    taps: dict[str, Callable[..., Any]] = {}
    seats = {"run_batch": RUN, "process_batch_result": TAKE, "release": RELEASE}
    wrap_all([(*seat.find(), _tap(taps, name)) for name, seat in seats.items()], EngineLook("batches"))
    seen = attempt(LOOKS, look) if looks else None
    scheduler = make_scheduler(start, layout, rank)
    attempt(BLOCKS, lambda: wrap_all(BlockProbes().taps(), EngineLook(BLOCKS)))
    attempt(RECURRENT, lambda: wrap_all(StateProbes().taps(), EngineLook(RECURRENT)))
    async_probe.drain()  # what captures said of buffers that held nothing
    return Built(scheduler, seen, tuple(without_a_gpu()) if cpu else (), taps)


def _tap(taps: dict[str, Callable[..., Any]], name: str) -> Callable[..., Any]:
    """Calls what a session has set, else the engine's own."""

    def tap(call: Callable[..., Any], first: Any, *args: Any, **named: Any) -> Any:
        set_by_session = taps.get(name)
        return call(*args, **named) if set_by_session is None else set_by_session(call, first, *args, **named)

    return tap


def attempt(what: str, begin: Callable[[], Any]) -> Any:
    """What a look's beginning returns; None of one that this release has no place for, which is told."""
    try:
        return begin()
    except Exception as error:
        tell_lost(what, error)
        return None
