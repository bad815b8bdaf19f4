"""The engine's process: put the reverts in place, build the engine, serve until the front goes away.

It imports nothing of the engine before the reverts are in place. It talks to the front by one socket: the order to
start comes pickled, everything after it is JSON lines, both ways. Its stdout and stderr are the front's to read.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from specdebug.apps.serve.engine_loop import FRONT_GONE, EngineLoop, tell_failure
from specdebug.apps.serve.process import Launch
from specdebug.base.errors import InvalidOption, SpecDebugError
from specdebug.base.trial import stream
from specdebug.faults.injector import Injector
from specdebug.run.session_run import put_in_place
from specdebug.scenario.packs import activate, kernel_rules
from specdebug.targets.base import Busy, Opening, OverThere
from specdebug.targets.registry import find_target
from specdebug.workers.forkserver import be_ours
from specdebug.workers.wire import PipeSink, receive

TARGET = "embedded"


def main(argv: Sequence[str]) -> int:
    """Serve the front at the other end of the socket whose number is the only argument; return the exit status."""
    channel = socket.socket(fileno=int(argv[0]))
    be_ours()
    order = receive(channel)
    if order is None:
        return 0
    try:
        return serve(order[1], channel, PipeSink(channel.fileno()))
    except FRONT_GONE:
        return 0


def serve(launch: Launch, channel: socket.socket, sink: PipeSink) -> int:
    """Build the engine and serve; return the exit status of this process."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # the front needs a core, too
    try:
        loop = _build(launch, channel, sink)
    except SpecDebugError as error:
        path, reason = (error.key_path, error.reason) if isinstance(error, InvalidOption) else ((), str(error))
        sink.emit("refused", message=reason, option=list(path), exit_code=error.exit_code)
        return 0
    except FRONT_GONE:
        raise
    except Exception as error:
        tell_failure(error, 0, sink)
        return 1
    try:
        return loop.run()
    finally:
        loop.close()


def _build(launch: Launch, channel: socket.socket, sink: PipeSink) -> EngineLoop:
    hits = put_in_place(launch.toggles)
    opening = Opening(
        "serve",
        sink.emit,
        Busy(sink.emit),
        lambda: activate(launch.packs, launch.mode),
        OverThere(kernels=kernel_rules(launch.packs, launch.mode)),
    )
    session = find_target(TARGET).open(launch.options, launch.seed, opening)
    injector = Injector(launch.faults, launch.seed, sink, stream)
    injector.attach(session.inside)
    return EngineLoop(session, channel, sink, injector, hits)
