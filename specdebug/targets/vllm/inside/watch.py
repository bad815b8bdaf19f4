"""What is wanted of vLLM's process besides serving, put in place once its engine is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdebug.targets.inside.tape import Tape
from specdebug.targets.vllm.inside.boundaries import Boundaries, BoundaryOnlooker
from specdebug.targets.vllm.inside.engine import EngineThread
from specdebug.targets.vllm.inside.tape import StepTape


class CannotWatch(Exception):
    """This release, or this machine's model runner, has not the functions that are watched."""


def watch(engine: EngineThread, wanted: Mapping[str, Any]) -> None:
    """Have the engine's steps recorded, if that is wanted. Raises CannotWatch."""
    onlookers: list[BoundaryOnlooker] = []
    if wanted.get("tape"):
        drafts = wanted["engine"].get("speculative_config") or {}
        onlookers.append(StepTape(Tape(wanted["tape"]), drafts.get("num_speculative_tokens", 0)))
    if not onlookers:
        return
    try:
        Boundaries(engine.runner, engine.name_of, onlookers)
    except AttributeError as error:
        raise CannotWatch(f"vLLM's model runner cannot be watched, which is made for its first one: {error}") from None
