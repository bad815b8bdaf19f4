"""The process that pays for ``import torch`` once and forks a worker for every job, and the parent's side of it.

It preloads what no revert can touch, never the engine, unless it is told to prepare more. It starts no thread, which
makes forking safe. One that does not answer when its help is due is killed with its group, which is all its workers.
"""

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
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.base.interpreters import home_python, own_python
from specdebug.workers.child import DUMP_SIGNAL, OwnChild, cannot_start
from specdebug.workers.home import Home
from specdebug.workers.machine_failure import MachineFailure, failure_in_log, machine_failure
from specdebug.workers.nests import Nests
from specdebug.workers.wire import ASK, JOB, PREPARE, LineReader, PipeSink, receive, send

ANSWER_S = 5.0  # seconds that a fork server may take to answer; it does nothing that takes longer than a fork
BUSY_S = 600.0  # the same while it imports its libraries or prepares something
_LOOK_S = 0.25  # seconds that one look at the silent server counts for at most, and that one wait for its end takes

_BOOT = "from specdebug.workers.forkserver import main; sys.exit(main(sys.argv[1:]))"
_AFRESH = "from specdebug.workers.forkserver import begin_afresh; begin_afresh(*sys.argv[1:])"
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
_PR_SET_PDEATHSIG = 1


class Server(OwnChild):
    """A fork server that was started; it loads its modules while the caller goes on. End it with :meth:`close`.

    Its group holds all its workers. Its channel becomes readable when it has said something, or is gone.

    Attributes:
        ready: it has loaded its modules, and forks workers.
        given_up: why it was killed for not answering, if it was.
    """

    def __init__(self, preload: Sequence[str] = (), home: Home | None = None) -> None:
        """Start one of this interpreter that imports ``preload``, or that of a home. Raises WorkerStartError, or
        MachineFailed when the system has no process or no descriptor left to give."""
        if home is None:
            super().__init__(_BOOT, *preload, env=_ONE_THREAD)
        else:
            words = partial(home_python, home.python, home.path)
            super().__init__(_BOOT, *home.preload, words=words, env={**_ONE_THREAD, **dict(home.env)})
        self._called = "" if home is None else f" ({home.python})"
        self.ready = False
        self.given_up: str | None = None
        self._replies = LineReader()
        self._tasks = 1  # imports and preparations that it has not reported the end of
        # How long it has owed an answer, in time that this process has spent looking: should both have stood still
        # together (a laptop asleep, a container frozen), none is to blame.
        self._owed_s, self._looked_at, self._asked = 0.0, time.monotonic(), False
        self.channel.settimeout(BUSY_S)  # a stopped server takes in no more than the socket holds

    def prepare(self, target: str, argument: Any) -> None:
        """Have it call a ``module:function`` with its argument before it forks workers for jobs sent later."""
        self._tasks += 1
        self.send(PREPARE, {"target": target, "payload": pickle.dumps(argument)})

    def send(self, tag: bytes, payload: Any, fds: tuple[int, ...] = ()) -> None:
        """Tell it something; one that has died shows as a closed socket in the next :meth:`hear`."""
        try:
            send(self.channel, tag, payload, fds)
        except TimeoutError:
            self._give_up(BUSY_S)
        except (BrokenPipeError, ConnectionResetError):
            return

    def hear(self) -> list[dict[str, Any]] | None:
        """Return what it has said; None when it is gone."""
        try:
            data = self.channel.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        replies = list(self._replies.feed(data))
        for reply in replies:
            self._owed_s, self._asked = 0.0, self._asked and "here" not in reply
            self.ready = self.ready or "ready" in reply
            self._tasks -= "ready" in reply or "prepared" in reply
        return replies

    def read_log(self) -> bool:
        """Take in what it has printed; return False once nothing more can come."""
        data = os.read(self.log.fileno(), 1 << 16)
        self.take_log(data)
        return bool(data)

    def mind(self) -> None:
        """Call this again and again while it has something to do: one that is silent for too long is killed."""
        now = time.monotonic()
        self._owed_s += min(now - self._looked_at, _LOOK_S) if self._asked else 0.0
        self._looked_at = now
        limit_s = BUSY_S if self._tasks else ANSWER_S
        if not self._asked:
            self._asked = True
            self.send(ASK, None)
        elif self.given_up is None and self._owed_s > limit_s:
            self._give_up(limit_s)

    def _give_up(self, limit_s: float) -> None:
        why = "it and its workers were killed; did something stop it?"
        self.given_up = f"the fork server did not answer for {limit_s:g} s: {why}"
        self.kill_all()

    def gone(self) -> int:
        """Return its exit status, once it is gone and its last words are read."""
        status = self.wait()
        with contextlib.suppress(OSError):
            self.take_log(self.log.read())
        return status

    def last_words(self, status: int) -> SpecDebugError:
        """Return the error for one that was gone before it was ready."""
        log = self.said.strip()
        last = self.given_up or (log.splitlines()[-1] if log else f"exit status {status}")
        killed = status == -signal.SIGKILL and self.given_up is None
        failure = MachineFailure("killed", "the fork server got SIGKILL") if killed else failure_in_log(log)
        return cannot_start(f"the worker process could not start{self._called}: {last}", failure)

    def close(self) -> None:
        """End it, and with it every worker, and wait until it is gone."""
        self.channel.close()
        self.log.close()
        # One that is ready sees its socket closed and ends its workers; one still importing has none.
        if not self.ready:
            self.kill()
        patience, looks = interrupts.Patience(), int(ANSWER_S / _LOOK_S)
        while self.ended_within(_LOOK_S) is None:
            looks -= 1
            if patience.over or looks < 0:
                self.kill_all()
        self.end()


def main(argv: list[str]) -> int:
    """Serve until the parent closes the socket. ``argv``: its number, and the modules to load."""
    sock = socket.socket(fileno=int(argv[0]))
    for name in argv[1:]:
        importlib.import_module(name)
    return _Forks(sock).serve()


class _Forks:
    """What a fork server does, and a nest of one (``nests.py``): fork a worker for every job that its socket brings."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._workers: dict[int, str] = {}
        self._nests = Nests(self._fork, self._live, self._reply)

    def serve(self) -> int:
        """Do so until the other end closes; return the exit status."""
        _settle()
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._reply({"ready": os.getpid()})
        try:
            while True:
                heard: list[Any] = [self._sock, wake_read, *self._nests.channels]
                readable, _, _ = select.select(heard, [], [], self._nests.patience_s)
                if wake_read in readable:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_read, 4096)
                    self._reap()
                self._nests.hear(readable)
                self._nests.mind()
                if self._sock in readable:
                    request = receive(self._sock)
                    if request is None or not self._obey(*request):
                        return 0 if request is None else 1
        except (BrokenPipeError, ConnectionResetError):
            return 0
        finally:
            for pid in self._workers:
                os.kill(pid, signal.SIGKILL)  # ours until reaped, so the pid cannot be another's
                os.waitpid(pid, 0)
            self._nests.close()

    def _reap(self) -> None:
        for pid in list(self._workers):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._reply({"ended": self._workers.pop(pid), "status": os.waitstatus_to_exitcode(status)})
        self._nests.reap()

    def _obey(self, tag: bytes, payload: Any, fds: list[int]) -> bool:
        """Do what a request asks for; return False if the server is to end for it."""
        if tag == JOB:
            self._fork(payload, fds)
        elif tag == ASK:
            self._reply({"here": True})
        elif tag == PREPARE:
            try:
                _function(payload["target"])(pickle.loads(payload["payload"]))
            except Exception as error:
                self._reply({"unprepared": "".join(traceback.format_exception_only(error)).strip()})
                return False
            _settle()
            self._reply({"prepared": True})
        else:  # signals go through here because only who reaps a worker knows that its pid is still its own
            for pid in (pid for pid, job in self._workers.items() if job == payload["job"]):
                os.kill(pid, payload["signal"])
            self._nests.signal(payload["job"], payload["signal"])
        return True

    def _fork(self, job: dict[str, Any], fds: list[int]) -> None:
        """Begin a job: in its nest, else in a worker forked here."""
        sys.stdout.flush()
        sys.stderr.flush()
        refusal, parent = None, os.getpid()
        try:
            if self._nests.take(job, fds):
                return
            pid = os.fork()
        except OSError as error:
            refusal = error
        else:
            if pid == 0:
                _end_with(parent)
                with contextlib.suppress(OSError):  # said here, so that what has not said it has done nothing yet
                    self._reply({"started": job["job"], "pid": os.getpid()})
                self._sock.close()
                self._nests.forget()
                _work(job["target"], job["payload"], *fds)
            self._workers[pid] = job["job"]
        for fd in fds:
            os.close(fd)
        if refusal is not None:
            self._reply({"refused": job["job"], "errno": refusal.errno, "why": str(refusal)})

    def _live(self, sock: socket.socket, asked: Mapping[str, Any]) -> NoReturn:
        """Be a nest: get ready, then serve."""
        self._sock.close()

        def serve() -> None:
            _become_ours()
            _function(asked["target"])(pickle.loads(asked["payload"]))
            _Forks(sock).serve()

        _leave(serve)

    def _reply(self, message: Mapping[str, Any]) -> None:
        self._sock.sendall(json.dumps(message).encode("ascii") + b"\n")


def _settle() -> None:
    gc.collect()
    gc.freeze()  # a collection in a worker must not touch, and so copy, every page inherited from here


def _function(target: str) -> Any:
    module, function = target.split(":")
    return getattr(importlib.import_module(module), function)


def _work(target: str, payload: bytes, event_fd: int, log_fd: int) -> NoReturn:
    """Be a worker: run ``module:function(payload, sink)`` and leave."""

    def run() -> None:
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        _become_ours()
        _function(target)(pickle.loads(payload), PipeSink(event_fd))

    def tell(error: BaseException) -> None:
        if (failure := machine_failure(error)) is not None:
            with contextlib.suppress(OSError):
                PipeSink(event_fd).emit("machine", cause=failure.cause, line=failure.line)

    _leave(run, tell)


def _become_ours() -> None:
    """Be a fork of the server that does as :func:`be_ours`, and hears of its own children alone."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    be_ours()
    torch = sys.modules.get("torch")
    if torch is not None:
        # One thread a worker: arms run side by side, and a trace must not depend on how many cores split a sum.
        torch.set_num_threads(1)


def _leave(run: Callable[[], None], tell: Callable[[BaseException], None] = lambda _: None) -> NoReturn:
    """Do one thing, then end this process: with status 1, and an error shown and told, where it raises."""
    code = 1
    try:
        run()
        code = 0
    except BaseException as error:
        traceback.print_exc()
        tell(error)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # the exit handlers registered before the fork are the server's, not ours


def start_over(target: str, payload: Any, sink: PipeSink) -> NoReturn:
    """Turn this worker into a process that has imported nothing yet and runs ``target`` with ``payload``, of which what
    the fork server has prepared is of no use. Process id, limits, events and log stay."""
    with tempfile.TemporaryFile() as file:
        file.write(pickle.dumps(payload))
        file.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        for fd in (file.fileno(), sink.fileno()):
            os.set_inheritable(fd, True)
        words = own_python(_AFRESH, target, str(file.fileno()), str(sink.fileno()))
        os.execv(words[0], words)


def begin_afresh(target: str, payload_fd: str, event_fd: str) -> None:
    """Go on in a worker that :func:`start_over` was called in."""
    os.lseek(int(payload_fd), 0, os.SEEK_SET)
    with os.fdopen(int(payload_fd), "rb") as file:
        payload = file.read()
    _work(target, payload, int(event_fd), 2)


def be_ours() -> None:
    """Be a process that its parent ends: by itself if it is killed (elsewhere than on Linux a write to the closed pipe
    does that), and not by a Ctrl-C; of its threads it tells at its death, and when it is asked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with(os.getppid())
    faulthandler.enable(file=2, all_threads=True)
    faulthandler.register(DUMP_SIGNAL, file=2, all_threads=True)


def _end_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before that
            os._exit(1)
