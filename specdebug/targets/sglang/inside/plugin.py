"""The entry point: SGLang calls :func:`register` in each of its processes, before it imports its models.

``targets.inside.VARIABLE`` says what is wanted. Without it nothing is done. Should something fail, the process
ends: an engine that runs without what was asked for would be judged for what it is not.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdebug.targets.inside import VARIABLE
from specdebug.targets.inside.looks import LOG_VARIABLE, Looks, looks_folder
from specdebug.targets.inside.reverts import revert
from specdebug.targets.inside.words import say, tell
from specdebug.targets.sglang.inside.books import keep_books
from specdebug.targets.sglang.inside.kernels import watch_kernels
from specdebug.targets.sglang.inside.looks import look
from specdebug.targets.sglang.inside.probes import probe
from specdebug.targets.sglang.inside.tape import record

WITHOUT_A_GPU = (
    "CUDA graphs: a replay calls the captured Python again",
    "CUDA streams and events: there are none, what overlaps on a GPU runs in order",
)
"""What differs on a CPU beside the stand-ins (:func:`replace_for_cpu`), in words for reports."""
FAILED = 86
"""Exit status of a process in which this failed."""


def register() -> None:
    """Do what the environment asks for."""
    wanted = json.loads(os.environ.get(VARIABLE, "null"))
    if wanted is None:
        return
    try:
        if wanted.get("reverts") or wanted.get("sites"):
            # first: what is replaced below imports what is to be patched
            told_when_asked(revert(wanted["reverts"], wanted["sites"]))
        look_at(wanted)
        if wanted.get("faults"):
            from specdebug.targets.sglang.inside.faults import inject

            told_when_asked(inject(wanted["faults"], wanted["seed"]))
        if wanted.get("device") == "cpu":
            tell(pid=os.getpid(), not_engine_code=[*WITHOUT_A_GPU, *replace_for_cpu()])
        if wanted.get("tape"):
            told_when_asked(record(wanted["tape"]))
        show(wanted.get("shows") or (), on_cpu=wanted.get("device") == "cpu")
    except BaseException:
        traceback.print_exc()
        say("failed; this process ends")
        os._exit(FAILED)


def look_at(wanted: Mapping[str, Any]) -> None:
    """Have probes and kernels looked at as is wanted, and what was reached told. Faults act at sites, too."""
    counts: list[Callable[[], Mapping[str, int]]] = []
    if wanted.get("probes") or wanted.get("faults"):
        counts.append(probe(wanted.get("probes") or ()))
    if wanted.get("kernels") and wanted.get("device") == "cpu":
        counts.append(watch_kernels(wanted["kernels"]))
    if counts:
        told_when_asked(
            lambda: tell(pid=os.getpid(), reached={name: n for each in counts for name, n in each().items()})
        )


def show(shows: Sequence[str], *, on_cpu: bool) -> None:
    """Show the harness what its oracles ask for: the books of the ``pools``, and of each request all else."""
    if "pools" in shows:
        keep_books()
    if {*shows} - {"pools"} and (log := os.environ.get(LOG_VARIABLE)):
        look(Looks(looks_folder(log)), coin_of_step=on_cpu)


def told_when_asked(tell: Callable[[], None]) -> None:
    """Have something told whenever the engine is asked how it does (``/server_info``)."""
    from sglang.srt.managers.scheduler import Scheduler

    answer = Scheduler.get_internal_state

    def get_internal_state(self: Any, *asked: Any) -> Any:
        tell()
        return answer(self, *asked)

    Scheduler.get_internal_state = get_internal_state


def replace_for_cpu() -> list[str]:
    """Put the stand-ins in the place of what needs a GPU; returns the names of what was replaced."""
    import torch

    from specdebug.targets.sglang.inside.flashinfer import use_flashinfer
    from specdebug.targets.sglang.inside.graph_runners import use_captured_calls
    from specdebug.targets.sglang.inside.interpreter import interpret_fast
    from specdebug.targets.sglang.inside.processes import fork_for_spawn
    from specdebug.targets.sglang.inside.releases import installed, of_release
    from specdebug.targets.sglang.inside.stand_ins import STAND_INS

    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    torch.cuda.synchronize = nothing
    torch.cuda.empty_cache = nothing
    torch.Tensor.record_stream = nothing  # type: ignore[method-assign]
    replaced = ["torch.cuda.synchronize", "torch.cuda.empty_cache", "torch.Tensor.record_stream"]
    replaced += [fork_for_spawn(), *interpret_fast()]
    replaced += [each.put() for each in of_release(STAND_INS, installed())]
    return [*replaced, *use_flashinfer(), *use_captured_calls()]
