"""The process that pays for ``import torch`` once, and forks a worker for every job.

It preloads what no revert can touch (torch, numpy, the file formats) and never the engine: a revert changes
engine source at import, so each worker imports the engine itself. It computes nothing and starts no thread,
which is what makes forking safe here: OpenMP and OpenBLAS are held to one thread by its environment, and
torch starts its pool only at the first parallel region.

Its arguments are a Unix socket to the parent and the modules to load. When the parent goes away, however it
ends, the server kills its workers and leaves.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from typing import Any

from specdebug.targets.wire import JOB, PipeSink, receive

DUMP_SIGNAL = signal.SIGUSR1
"""A worker that gets this prints where every thread is, even from inside a C loop, and carries on."""

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Serve until the parent closes the socket."""
    sock = socket.socket(fileno=int(argv[0]))
    for name in argv[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a worker must not touch, and so copy, every page inherited from here
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _reply(sock, {"ready": os.getpid()})
    workers: dict[int, str] = {}
    try:
        while True:
            readable, _, _ = select.select([sock.fileno(), wake_read], [], [])
            if wake_read in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
                _report_ended(sock, workers)
            if sock.fileno() in readable:
                request = receive(sock)
                if request is None:
                    return 0
                _serve(sock, workers, *request)
    except (BrokenPipeError, ConnectionResetError):
        return 0
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)  # ours until reaped, so the pid cannot be another's
            os.waitpid(pid, 0)


def _serve(
    sock: socket.socket, workers: dict[int, str], tag: bytes, payload: dict[str, Any], fds: list[int]
) -> None:
    if tag == JOB:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            sock.close()
            _work(payload["target"], payload["payload"], *fds)
        for fd in fds:
            os.close(fd)
        workers[pid] = payload["job"]
        _reply(sock, {"started": payload["job"], "pid": pid})
        return
    # Signals go through here because only the process that reaps a worker knows that its pid is still its
    # own.
    for pid, job in workers.items():
        if job == payload["job"]:
            os.kill(pid, payload["signal"])


def _report_ended(sock: socket.socket, workers: dict[int, str]) -> None:
    for pid in list(workers):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            _reply(sock, {"ended": workers.pop(pid), "status": os.waitstatus_to_exitcode(status)})


def _reply(sock: socket.socket, message: dict[str, Any]) -> None:
    sock.sendall(json.dumps(message).encode("ascii") + b"\n")


def _work(target: str, payload: bytes, event_fd: int, log_fd: int) -> None:
    """Be a worker: run ``module:function(payload, sink)`` and leave. Never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what a Ctrl-C ends
        _die_with_parent()
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        faulthandler.enable(file=2, all_threads=True)
        faulthandler.register(DUMP_SIGNAL, file=2, all_threads=True)
        torch = sys.modules.get("torch")
        if torch is not None:
            # One thread a worker: arms run side by side, and a trace must not depend on how many cores split
            # a sum.
            torch.set_num_threads(1)
        module, function = target.split(":")
        getattr(importlib.import_module(module), function)(pickle.loads(payload), PipeSink(event_fd))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # the exit handlers registered before the fork are the server's, not ours


def _die_with_parent() -> None:
    """Ask Linux to kill this worker should the server be killed; elsewhere a write to the closed pipe ends
    it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
