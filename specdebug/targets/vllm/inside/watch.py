"""What is wanted of vLLM's process besides serving, put in place once its engine is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specdebug.targets.inside.guard import EngineLook, tell_lost
from specdebug.targets.inside.tape import Tape
from specdebug.targets.inside.words import say
from specdebug.targets.vllm.inside.books import MOST_BLOCKS, SchedulerBooks
from specdebug.targets.vllm.inside.boundaries import Boundaries, BoundaryOnlooker
from specdebug.targets.vllm.inside.engine import EngineThread
from specdebug.targets.vllm.inside.probes import SiteProbes
from specdebug.targets.vllm.inside.tape import StepTape


def watch(engine: EngineThread, wanted: Mapping[str, Any]) -> Callable[[], None]:
    """Have the scheduler's books looked at, and the engine's steps recorded and its sites probed if that is wanted;
    returns what tells which sites were reached. What this release, or this machine's model runner, has not is told."""
    _keep_books(engine)
    onlookers: list[BoundaryOnlooker] = []
    tell_reached: Callable[[], None] = lambda: None  # noqa: E731
    num_steps = (wanted["engine"].get("speculative_config") or {}).get("num_speculative_tokens", 0)
    if wanted.get("probes"):
        cache = engine.config.cache_config
        probes = SiteProbes(
            wanted["probes"],
            vocab_size=engine.config.model_config.get_vocab_size(),
            num_steps=num_steps,
            block_size=cache.block_size,
            num_slots=cache.block_size * cache.num_gpu_blocks,
        )
        onlookers.append(probes)
        tell_reached = probes.tell_reached
    if wanted.get("tape"):
        onlookers.append(StepTape(Tape(wanted["tape"]), num_steps))
    if onlookers:
        try:
            Boundaries(engine.runner, engine.name_of, onlookers)
        except AttributeError as error:
            tell_lost("the stages of a step, but of vLLM's model runner V1", error)
    return tell_reached


def _keep_books(engine: EngineThread) -> None:
    """Have the scheduler's books looked at after each step, or say why they are not."""
    try:
        books = SchedulerBooks(engine.scheduler)
        books.look()  # of a release that has other books this fails at once
    except AttributeError as error:
        say(f"the scheduler's books are not looked at, for this release has others: {error}")
        return
    if books.fits:
        one = EngineLook("the scheduler's books")
        engine.after_step = lambda: one.attempt(books.look, None)
    else:
        say(f"the scheduler's books are not looked at, for its pool has more than {MOST_BLOCKS} blocks")
