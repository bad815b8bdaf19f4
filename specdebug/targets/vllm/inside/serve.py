"""SGLang's HTTP interface, as far as the harness asks it, before vLLM's engine: ``python -m ... --port N``. The routes
are there once the engine is loaded, as a health check expects."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from specdebug.targets.inside.guard import EngineLook, tell_lost
from specdebug.targets.inside.reverts import revert
from specdebug.targets.inside.tape import Tape
from specdebug.targets.inside.words import VARIABLE, say, tell
from specdebug.targets.vllm.inside.books import MOST_BLOCKS, SchedulerBooks
from specdebug.targets.vllm.inside.boundaries import Boundaries, BoundaryOnlooker
from specdebug.targets.vllm.inside.engine import EngineThread, Event, Served
from specdebug.targets.vllm.inside.probes import SiteProbes
from specdebug.targets.vllm.inside.tape import StepTape

WITHOUT_A_GPU = [
    "GPU kernels, CUDA graphs and streams: there are none, its own code for CPUs runs in their place",
    "Triton kernels: vLLM's own stand-ins for CPUs (vllm.utils.cpu_triton_utils)",
]
"""The parts of a run on a CPU that are not the code that serves on a GPU, in words for reports."""
SAMPLED = ("temperature", "top_p", "top_k", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens")
"""Sampling parameters that are vLLM's by name."""


def watch(engine: EngineThread, wanted: Mapping[str, Any]) -> Callable[[], None]:
    """Have the scheduler's books looked at, and the engine's steps recorded and its sites probed if that is wanted;
    returns what tells which sites were reached. What this release, or this machine's model runner, has not is told."""
    _keep_books(engine)
    onlookers: list[BoundaryOnlooker] = []
    tell_reached: Callable[[], None] = lambda: None  # noqa: E731
    num_steps = (wanted["engine"].get("speculative_config") or {}).get("num_speculative_tokens", 0)
    if wanted.get("probes"):
        cache, vocab_size = engine.config.cache_config, engine.config.model_config.get_vocab_size()
        size = {"block_size": cache.block_size, "num_slots": cache.block_size * cache.num_gpu_blocks}
        probes = SiteProbes(wanted["probes"], vocab_size=vocab_size, num_steps=num_steps, **size)
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


class Interface:
    """The routes. ``tell``: says what is only said when it is asked for."""

    def __init__(self, engine: EngineThread, tell: Callable[[], None]) -> None:
        self._engine = engine
        self._tell = tell
        self._made = 0

    async def health(self, _: Request) -> Response:
        return Response(status_code=200)

    async def server_info(self, _: Request) -> Response:
        import vllm

        await self._do(self._tell)
        engine, config = self._engine, self._engine.config
        drafts = config.speculative_config
        state = {"avg_spec_accept_length": 1 + engine.accepted / engine.verifies} if engine.verifies else {}
        told = {
            "version": f"vllm {vllm.__version__}",
            "dtype": str(config.model_config.dtype),
            "model_path": config.model_config.model,
            "attention_backend": "vllm",
            "speculative_algorithm": None if drafts is None else drafts.method,
            "internal_states": [state],
        }
        return JSONResponse(told)

    async def model_info(self, _: Request) -> Response:
        return JSONResponse({"model_path": self._engine.config.model_config.model})

    async def flush_cache(self, _: Request) -> Response:
        flushed = await self._do(self._engine.flush)
        return Response("Cache flushed.\n" if flushed else "Requests are served.\n", 200 if flushed else 400)

    async def abort_request(self, request: Request) -> Response:
        rid = str((await request.json()).get("rid", ""))
        await self._do(partial(self._engine.abort, rid))
        return Response(status_code=200)

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event]()
        self._made += 1
        rid = str(body.get("rid") or f"request-{self._made}")
        served = Served(rid, body["input_ids"], lambda event: loop.call_soon_threadsafe(events.put_nowait, event))
        try:
            await self._do(partial(self._engine.add, served, params_of(body.get("sampling_params") or {})))
        except ValueError as error:
            return JSONResponse({"error": {"message": str(error)}}, 400)
        if body.get("stream"):
            return StreamingResponse(_streamed(events), media_type="text/event-stream")
        return JSONResponse([event async for event in _until_finished(events)][-1])

    async def _do(self, work: Callable[[], Any]) -> Any:
        """What some work returns, or raises, that the engine's thread does."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def now() -> None:
            try:
                result = work()
            except Exception as error:
                loop.call_soon_threadsafe(done.set_exception, error)
            else:
                loop.call_soon_threadsafe(done.set_result, result)

        self._engine.ask(now)
        return await done


def params_of(asked: dict[str, Any]) -> Any:
    """vLLM's sampling parameters for SGLang's."""
    from vllm import SamplingParams

    named = {name: asked[name] for name in SAMPLED if name in asked}
    return SamplingParams(max_tokens=asked.get("max_new_tokens", 128), seed=asked.get("sampling_seed"), **named)


def routes(interface: Interface) -> Starlette:
    """The application."""
    asked, told = ("health", "server_info", "model_info"), ("flush_cache", "abort_request", "generate")
    ways = [(name, ["GET"]) for name in asked] + [(name, ["GET", "POST"]) for name in told]
    return Starlette(routes=[Route(f"/{name}", getattr(interface, name), methods=by) for name, by in ways])


async def _until_finished(events: asyncio.Queue[Event]) -> AsyncIterator[Event]:
    while True:
        event = await events.get()
        yield event
        if event["meta_info"]["finish_reason"] is not None:
            return


async def _streamed(events: asyncio.Queue[Event]) -> AsyncIterator[bytes]:
    async for event in _until_finished(events):
        yield f"data: {json.dumps(event)}\n\n".encode()
    yield b"data: [DONE]\n\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    asked = parser.parse_args()
    wanted = json.loads(os.environ[VARIABLE])
    tell_hits = revert(wanted["reverts"]) if wanted["reverts"] else lambda: None  # before vLLM is imported
    engine = EngineThread(wanted["engine"])
    if wanted.get("device") == "cpu":
        tell(pid=os.getpid(), not_engine_code=WITHOUT_A_GPU)
    tell_reached = watch(engine, wanted)

    import uvicorn

    def tell_counts() -> None:
        tell_hits()
        tell_reached()

    uvicorn.run(routes(Interface(engine, tell_counts)), host=asked.host, port=asked.port, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
