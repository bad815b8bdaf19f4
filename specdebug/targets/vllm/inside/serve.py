"""SGLang's HTTP interface, as far as the harness asks it, before vLLM's engine: ``python -m ... --port N``.

``targets.inside.VARIABLE`` has what is wanted: the engine's arguments, and fixes to revert before it is imported. The
routes are there once the engine is loaded, as a health check expects.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from specdebug.targets.inside import VARIABLE
from specdebug.targets.inside.reverts import revert
from specdebug.targets.inside.words import tell
from specdebug.targets.vllm.inside.engine import EngineThread, Event, Served
from specdebug.targets.vllm.inside.watch import watch

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

WITHOUT_A_GPU = [
    "GPU kernels, CUDA graphs and streams: there are none, its own code for CPUs runs in their place",
    "Triton kernels: vLLM's own stand-ins for CPUs (vllm.utils.cpu_triton_utils)",
]
"""The parts of a run on a CPU that are not the code that serves on a GPU, in words for reports."""
SAMPLED = ("temperature", "top_p", "top_k", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens")
"""Sampling parameters that are vLLM's by name."""


class Interface:
    """The routes. ``tell``: says what is only said when it is asked for."""

    def __init__(self, engine: EngineThread, tell: Callable[[], None]) -> None:
        self._engine = engine
        self._tell = tell
        self._made = 0

    async def health(self, _: Request) -> Response:
        from starlette.responses import Response

        return Response(status_code=200)

    async def server_info(self, _: Request) -> Response:
        from starlette.responses import JSONResponse

        await self._do(self._tell)
        engine, config = self._engine, self._engine.config
        drafts = config.speculative_config
        state = {"avg_spec_accept_length": 1 + engine.accepted / engine.verifies} if engine.verifies else {}
        return JSONResponse(
            {
                "version": f"vllm {_version()}",
                "dtype": str(config.model_config.dtype),
                "model_path": config.model_config.model,
                "attention_backend": "vllm",
                "speculative_algorithm": None if drafts is None else drafts.method,
                "internal_states": [state],
            }
        )

    async def model_info(self, _: Request) -> Response:
        from starlette.responses import JSONResponse

        return JSONResponse({"model_path": self._engine.config.model_config.model})

    async def flush_cache(self, _: Request) -> Response:
        from starlette.responses import Response

        flushed = await self._do(self._engine.flush)
        return Response("Cache flushed.\n" if flushed else "Requests are served.\n", 200 if flushed else 400)

    async def abort_request(self, request: Request) -> Response:
        from starlette.responses import Response

        rid = str((await request.json()).get("rid", ""))
        await self._do(partial(self._engine.abort, rid))
        return Response(status_code=200)

    async def generate(self, request: Request) -> Response:
        from starlette.responses import JSONResponse, StreamingResponse

        body = await request.json()
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event]()
        self._made += 1
        rid = str(body.get("rid") or f"request-{self._made}")

        def told(event: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        served = Served(rid, body["input_ids"], told)
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
    from starlette.applications import Starlette
    from starlette.routing import Route

    get, post = ["GET"], ["GET", "POST"]
    table = (
        ("/health", interface.health, get),
        ("/server_info", interface.server_info, get),
        ("/model_info", interface.model_info, get),
        ("/flush_cache", interface.flush_cache, post),
        ("/abort_request", interface.abort_request, post),
        ("/generate", interface.generate, post),
    )
    return Starlette(routes=[Route(path, answer, methods=methods) for path, answer, methods in table])


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


def _version() -> str:
    import vllm

    return str(vllm.__version__)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    asked = parser.parse_args()
    wanted = json.loads(os.environ[VARIABLE])
    tell_hits = revert(wanted["reverts"]) if wanted["reverts"] else lambda: None
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
