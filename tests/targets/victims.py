"""Targets that misbehave, for the tests of the worker machinery."""

from __future__ import annotations

import os
import signal
import time
from typing import Any


def obey(payload: Any, sink: Any) -> None:
    sink.emit("echo", payload=payload, pid=os.getpid())


def die(payload: int, sink: Any) -> None:
    sink.emit("before", n=1)
    os.kill(os.getpid(), payload)
    time.sleep(30)


def segfault(payload: Any, sink: Any) -> None:
    import ctypes

    sink.emit("before", n=1)
    ctypes.string_at(0)


def leave(payload: int, sink: Any) -> None:
    sink.emit("before", n=1)
    os._exit(payload)


def raise_error(payload: str, sink: Any) -> None:
    sink.emit("before", n=1)
    raise RuntimeError(payload)


def sleep_forever(payload: Any, sink: Any) -> None:
    sink.emit("before", n=1)
    while True:
        time.sleep(0.05)


def ignore_everything(payload: Any, sink: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    sink.emit("before", n=1)
    time.sleep(60)


def eat_memory(payload: int, sink: Any) -> None:
    sink.emit("before", n=1)
    hoard = []
    while True:
        hoard.append(bytearray(os.urandom(1 << 20)) * 4)
        time.sleep(0.001)


def chatter(payload: int, sink: Any) -> None:
    for n in range(payload):
        sink.emit("line", n=n, filler="x" * 200)
    print("y" * 200_000)


def half_a_line(payload: Any, sink: Any) -> None:
    sink.emit("before", n=1)
    os.write(sink._fd, b'{"event": "torn')
    os.kill(os.getpid(), signal.SIGKILL)


def garbage(payload: Any, sink: Any) -> None:
    os.write(sink._fd, b"\xff\xfe not json\n[1,2]\n")
    sink.emit("after", n=1)


def kill_server(payload: Any, sink: Any) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(30)


def environment(payload: Any, sink: Any) -> None:
    import sys

    sink.emit("env", revert=os.environ.get("SGLANG_DEBUG_REVERT_PR"), modules=sorted(sys.modules))
