"""Start the front and the engine, and end both: by a signal, or because the engine cannot be built as asked."""

import asyncio
import contextlib
import ctypes
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn

from specdebug.apps.serve.app import make_app
from specdebug.apps.serve.client import EngineClient
from specdebug.apps.serve.connections import ConnectionLimits, Connections, FrontConfig
from specdebug.apps.serve.info import ServerMetrics
from specdebug.apps.serve.process import Launch
from specdebug.apps.serve.reverts import FrontReverts
from specdebug.apps.serve.state import ServerState, Settings
from specdebug.apps.serve.text import ChatTemplate, ModelText
from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError

READY = "The server is fired up and ready to roll!"
"""SGLang's line, which programs that start a server wait for; ours ends with the address."""
GRACE_S = 3  # seconds that answers under way have to end once the server is told to

MAPPED_BYTES = 128 << 10
"""Bytes of a buffer that the C library maps by itself, and gives back to the machine as soon as it is free."""
KERNEL_BYTES = 64 << 10
"""Bytes of a connection that lie in the kernel each way: at most what one read gives, and soon full if none reads."""
CUT_S = 2  # seconds after which answers that do not end are cut
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8


@dataclass(frozen=True)
class Address:
    """Where to listen, and how long the engine may be silent while it has work."""

    host: str
    port: int
    watchdog_s: float
    log_level: str = "info"


def listen(address: Address, *, keyed: bool) -> socket.socket:
    """A socket bound to the address. Raises SpecDebugError where it is taken, is not ours, or would be open to all."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise SpecDebugError(f"--host {address.host}: {error.strerror or error}") from None
    family, kind, protocol, _, place = min(found, key=lambda each: each[0] != socket.AF_INET)
    if not keyed and not ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback:
        raise SpecDebugError(f"--host {address.host} is open to other machines; that needs --api-key")
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for way in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # its connections inherit them
            bound.setsockopt(socket.SOL_SOCKET, way, KERNEL_BYTES)
        bound.bind(place)
    except OSError as error:
        bound.close()
        raise SpecDebugError(f"cannot listen on {address.host}:{address.port}: {error.strerror}") from None
    return bound


def serve(
    launch: Launch,
    settings: Settings,
    address: Address,
    reverts: FrontReverts,
    *,
    say: Callable[[str], None],
    pass_on: Callable[[bytes], None],
) -> None:
    """Serve until a signal comes. Raises SpecDebugError, also for an engine that cannot be built as asked."""
    from specdebug.targets.options import OURS

    _give_memory_back()
    model = ModelText(str(launch.options.get("model", "tiny")))

    async def main() -> None:
        config = OURS.read(launch.options)
        client = EngineClient(
            launch, watchdog_s=address.watchdog_s, most_running=config.max_running_requests, say=say, pass_on=pass_on
        )
        metrics = ServerMetrics(client, settings.served_model_name, config.usable_slots)
        state = ServerState(client, config, model, ChatTemplate(config.model), settings, say, reverts)
        limits = ConnectionLimits(bytes=max(ConnectionLimits.bytes, 3 * state.max_body_bytes))
        server = front(make_app(state, metrics), limits, address.log_level)
        over = asyncio.Event()
        with _signals(over.set):
            interrupts.check()  # one may have come while all this was imported
            await client.start()
            serving = asyncio.create_task(server.serve(sockets=[bound]))
            try:
                served = await _until_over(client, serving, over, lambda: say(f"{READY} {url}"))
            finally:
                await client.close()
                server.should_exit = True
                await serving
        if client.refused is not None:
            raise client.refused
        if client.failure is not None and not served:
            error = SpecDebugError(str(client.failure))
            error.exit_code = 125 if client.failure.signature is None else 1
            raise error

    with contextlib.closing(listen(address, keyed=settings.api_key is not None)) as bound:
        host, port = bound.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        try:
            asyncio.run(main())
        finally:
            interrupts.listen()  # the loop has put handlers of its own in place
    interrupts.check()


def _give_memory_back() -> None:
    """Have the memory of large bodies given back once they are read. By itself glibc raises its threshold to the
    largest buffer that was freed, and has a heap for every thread that reads; other C libraries have no such thing."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_M_ARENA_MAX, 1)


async def _until_over(
    client: EngineClient, serving: asyncio.Task[None], over: asyncio.Event, ready: Callable[[], None]
) -> bool:
    """Wait for a signal, also where the engine has died meanwhile; return True if it has ever served. One that cannot
    be built is not waited for."""
    told, settled = asyncio.create_task(over.wait()), asyncio.create_task(client.settled.wait())
    try:
        await asyncio.wait({told, serving, settled}, return_when=asyncio.FIRST_COMPLETED)
        if client.state != "ready":
            return False
        ready()
        await asyncio.wait({told, serving}, return_when=asyncio.FIRST_COMPLETED)
        return True
    finally:
        told.cancel()
        settled.cancel()


@contextlib.contextmanager
def _signals(end: Callable[[], Any]) -> Iterator[None]:
    """Note signals that ask to end, and call ``end``; one that is ignored stays so."""
    loop = asyncio.get_running_loop()
    numbers = [each for each in interrupts.SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]

    def heard(number: int) -> None:
        interrupts.heard(number)
        end()

    for number in numbers:
        loop.add_signal_handler(number, heard, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def front(app: Any, limits: ConnectionLimits, log_level: str) -> uvicorn.Server:
    """The HTTP server of an application, whose ``serve`` returns once ``should_exit`` is set."""
    return _Front(
        FrontConfig(
            app,
            Connections(limits),
            log_level=log_level,
            log_config=None,  # the caller's log takes in what loggers say
            lifespan="off",
            loop="asyncio",
            ws="none",
            proxy_headers=False,  # a client may write there what it likes
            timeout_graceful_shutdown=GRACE_S,
            timeout_keep_alive=60,
        )
    )


class _Front(uvicorn.Server):
    """Uvicorn, whose own handlers of signals would end the process before the engine is gone, and which would cancel
    what streams to clients that do not read: they are cut before."""

    config: FrontConfig

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(CUT_S, self.config.connections.cut_all)
        await super().shutdown(sockets)
