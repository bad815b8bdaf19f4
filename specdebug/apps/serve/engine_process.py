"""The engine's process: put the reverts in place, build the engine, serve until the front goes away.

It imports nothing of the engine before the reverts are in place. It talks to the front by one socket: the order to
start comes pickled, everything after it is JSON lines, both ways. Its stdout and stderr are the front's to read.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from typing import NoReturn

from specdebug.apps.serve.engine_loop import FRONT_GONE, EngineLoop
from specdebug.apps.serve.launch import Launch
from specdebug.base.errors import InvalidOption, SpecDebugError
from specdebug.base.random_streams import stream
from specdebug.faults.injector import Injector
from specdebug.run.session_run import put_in_place
from specdebug.scenario.packs import activate, kernel_rules
from specdebug.targets.base import Busy, Opening, OverThere
from specdebug.targets.registry import find_target
from specdebug.workers.forkserver import be_ours
from specdebug.workers.machine_failure import machine_failure
from specdebug.workers.wire import PipeSink, receive

TARGET = "embedded"


def main(argv: Sequence[str]) -> int:
    """Serve the front at the other end of the socket whose number is the only argument."""
    channel = socket.socket(fileno=int(argv[0]))
    be_ours()
    order = receive(channel)
    if order is None:
        return 0
    try:
        return serve(order[1], channel, PipeSink(channel.fileno()))
    except FRONT_GONE:
        return 0


def leave(status: int) -> NoReturn:
    """End this process at once: to tear an engine down takes seconds, and requests wait for word of its end."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


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
        return _failed(error, sink)
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


def _failed(error: Exception, sink: PipeSink) -> int:
    """Report what kept the engine from being built."""
    from specdebug.run.exceptions import violation_of

    traceback.print_exc()
    machine = machine_failure(error)
    if machine is not None:
        sink.emit("machine", cause=machine.cause, line=machine.line)
    else:
        sink.emit("violation", **asdict(violation_of(error, 0)))
    return 1
