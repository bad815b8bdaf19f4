"""The entry point: SGLang calls :func:`register` in each of its processes, before it imports its models."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from specdebug.targets.inside.guard import Call, EngineLook, tell_lost, wrap_method
from specdebug.targets.inside.reverts import revert
from specdebug.targets.inside.tape import Looks
from specdebug.targets.inside.words import LOG_VARIABLE, VARIABLE, looks_folder, say, tell
from specdebug.targets.sglang.inside.empty_modules import EmptyModule
from specdebug.targets.sglang.inside.memory import KERNEL_MEMORY, watch_kernels
from specdebug.targets.sglang.inside.probes import PROBES, probe
from specdebug.targets.sglang.inside.scheduler import BOOKS, keep_books
from specdebug.targets.sglang.inside.seats import Seat
from specdebug.targets.sglang.inside.stages import LOOKS, RECORDING, look, record

_T = TypeVar("_T")

WITHOUT_A_GPU = (
    "CUDA graphs: a replay calls the captured Python again",
    "CUDA streams and events: there are none, what overlaps on a GPU runs in order",
)
"""The differences of a CPU beside the stand-ins (:func:`replace_for_cpu`), in words for reports."""
FAILED = 86
"""Exit status of a process in which this failed."""


def register() -> None:
    """Do what ``words.VARIABLE`` asks for. Fixes that cannot be reverted, or anything else that fails, end the process:
    it would be judged for what it is not. A look or a stand-in that this release has no place for is told, and the arm
    comes to no verdict."""
    wanted = json.loads(os.environ.get(VARIABLE, "null"))
    if wanted is None:
        return
    try:
        if wanted.get("reverts") or wanted.get("sites"):
            # first: what is replaced below imports what is to be patched
            told_when_asked(revert(wanted["reverts"], wanted["sites"]))
        if wanted.get("device") == "cpu":
            tell(pid=os.getpid(), not_engine_code=[*WITHOUT_A_GPU, *replace_for_cpu(), *_besides()])
        look_at(wanted)
    except BaseException:
        traceback.print_exc()
        say("failed; this process ends")
        os._exit(FAILED)


def look_at(wanted: Mapping[str, Any]) -> None:
    """Have what is wanted looked at, recorded, damaged, and shown to oracles, and what was reached told."""
    counts: list[Callable[[], Mapping[str, int]]] = []
    on_cpu, shows = wanted.get("device") == "cpu", wanted.get("shows") or ()
    if wanted.get("probes") or wanted.get("faults"):  # faults act at sites, too
        counts += _got(PROBES, lambda: probe(wanted.get("probes") or ()))
    if wanted.get("kernels") and on_cpu:
        counts += _got(KERNEL_MEMORY, lambda: watch_kernels(wanted["kernels"]))
    if counts:
        told_when_asked(
            lambda: tell(pid=os.getpid(), reached={name: n for each in counts for name, n in each().items()})
        )
    if wanted.get("faults"):
        from specdebug.targets.sglang.inside.faults import FAULTS, inject

        for tell_idle in _got(FAULTS, lambda: inject(wanted["faults"], wanted["seed"])):
            told_when_asked(tell_idle)
    if wanted.get("tape"):
        for wait in _got(RECORDING, lambda: record(wanted["tape"])):
            told_when_asked(wait)
    if "pools" in shows:
        _got(BOOKS, keep_books)
    if {*shows} - {"pools"} and (log := os.environ.get(LOG_VARIABLE)):
        _got(LOOKS, lambda: look(Looks(looks_folder(log)), coin_of_step=on_cpu))


def _got(what: str, begin: Callable[[], _T]) -> list[_T]:
    """Return the result of a look's beginning; None for one that this release has no place for, which is told."""
    try:
        return [begin()]
    except Exception as error:
        tell_lost(what, error)
        return []


ANSWER = Seat("what it counted", ("srt.managers.scheduler:Scheduler.get_internal_state",))


def told_when_asked(tell: Callable[[], None]) -> None:
    """Have something told whenever the engine is asked how it does (``/server_info``)."""

    def get_internal_state(call: Call, _: Any, *asked: Any) -> Any:
        tell()
        return call(*asked)

    _got(ANSWER.look, lambda: wrap_method(*ANSWER.find(), get_internal_state, EngineLook(ANSWER.look)))


def _besides() -> list[str]:
    """The other parts that a GPU does not run: SGLang's own way round a kernel, and modules that are empty here."""
    empty = sorted(name for name, module in sys.modules.items() if isinstance(module, EmptyModule) and "." not in name)
    moves = "KV moves by torch, SGLang's own (SGLANG_NATIVE_MOVE_KV_CACHE)"
    return [
        *([moves] if "SGLANG_NATIVE_MOVE_KV_CACHE" in os.environ else ()),
        *([f"empty modules: {', '.join(empty)}"] if empty else ()),
    ]


def replace_for_cpu() -> list[str]:
    """Put the stand-ins in the place of what needs a GPU; returns the names of what was replaced. One that this release
    has no place for is told."""
    import torch

    from specdebug.targets.sglang.inside.flashinfer import use_flashinfer
    from specdebug.targets.sglang.inside.graphs import GRAPHS, use_captured_calls
    from specdebug.targets.sglang.inside.speed import fork_for_spawn, interpret_fast
    from specdebug.targets.sglang.inside.stand_ins import STAND_INS

    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    torch.cuda.synchronize = nothing
    torch.cuda.empty_cache = nothing
    torch.Tensor.record_stream = nothing  # type: ignore[method-assign]
    replaced = ["torch.cuda.synchronize", "torch.cuda.empty_cache", "torch.Tensor.record_stream", fork_for_spawn()]
    puts: list[tuple[str, Callable[[], Sequence[str]]]] = [
        ("attention by FlashInfer", use_flashinfer),  # first: SGLang asks for it once
        ("Triton's interpreter", interpret_fast),
        *((each.places[0], lambda each=each: [each.put()] if each.applies else []) for each in STAND_INS),
        (GRAPHS, use_captured_calls),
    ]
    for what, put in puts:
        try:
            replaced += put()
        except Exception as error:
            tell_lost(what, error, stand_in=True)
    return replaced
