"""Parent side of the workers: run jobs in forks of a fork server, survive whatever they do, in one selector loop.

Resident memory is polled in ``/proc``: torch reserves address space by the tens of GiB, so ``RLIMIT_AS`` cannot be
used. At its deadline a worker is asked where it is (``faulthandler`` dumps its threads), then killed; what it is busy
with does not count.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import time
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from specdebug.base import interrupts
from specdebug.workers.child import DUMP_SIGNAL, cannot_start, refused
from specdebug.workers.forkserver import Server
from specdebug.workers.home import Home
from specdebug.workers.job import Job, Listener, Worker, WorkerEnd
from specdebug.workers.machine_failure import MachineFailed, failure_in_log, machine_failure
from specdebug.workers.system import cpu_count, processor_s, rss_mb
from specdebug.workers.wire import JOB, SIGNAL, pipes

TICK_S = 0.02
DUMP_GRACE_S = 0.3
GPU_JOBS = 4  # jobs that use a GPU at a time, unless the pool is told how many jobs to run
PRELOAD = ("torch", "numpy", "safetensors.torch", "tokenizers", "yaml")
HOMES = 3
"""Homes whose servers are kept, though they have nothing to do: each holds an engine's modules."""


class WorkerPool:
    """Runs jobs, at most ``limit`` at a time. A context manager: leaving it ends the servers and every worker.

    ``jobs`` 0 means one more than there are cores, for sharing a core beats leaving one idle; of those that use a GPU,
    at most :data:`GPU_JOBS` then run at a time. The server imports the modules of ``preload``, and calls ``prepare``, a
    ``module:function``, once with its argument before it forks any worker. Each home (:attr:`Job.home`) has a server
    of its own, which begins with its first job; of those without one the least lately used ends where there are more
    than :data:`HOMES`.
    """

    def __init__(self, jobs: int = 0, preload: Sequence[str] = PRELOAD, prepare: tuple[str, Any] | None = None) -> None:
        self.limit = jobs or cpu_count() + 1
        self._gpu_limit = jobs or GPU_JOBS
        self._preload = tuple(preload)
        self._prepare = prepare
        try:
            self._selector = selectors.DefaultSelector()
        except OSError as error:
            raise refused(error) from error
        self._servers: dict[Home | None, Server] = {}
        self._workers: dict[str, Worker] = {}
        self._held: deque[Job] = deque()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, home: Home | None = None) -> None:
        """Launch the fork server and return at once; it loads torch while the caller goes on."""
        if home in self._servers:
            self._servers[home] = self._servers.pop(home)  # the last is the one used last
            return
        idle = [each for each in self._servers if each is not None and not self._workers_at(each)]
        for each in idle[: len(idle) + 1 - HOMES]:
            self._end_server(each)
        server = self._servers[home] = Server(self._preload, home)
        self._selector.register(server.channel, selectors.EVENT_READ, partial(self._on_reply, home))
        self._selector.register(server.log, selectors.EVENT_READ, partial(self._on_server_log, server))
        if home is None and self._prepare is not None:
            self.prepare(*self._prepare)

    def prepare(self, target: str, argument: Any) -> None:
        """Have the server call a ``module:function`` with its argument before it forks workers for jobs launched later.
        One that takes a lost server's place is told only what the pool was made with. Raises WorkerStartError."""
        self.start()
        self._servers[None].prepare(target, argument)

    @property
    def running(self) -> int:
        """Return how many jobs launched have not ended."""
        return len(self._workers) + len(self._held)

    def launch(self, job: Job) -> None:
        """Begin a job now, whatever else runs; :meth:`turn` brings what becomes of it. One that needs a slot
        (:attr:`Job.slots`) begins in a turn, once it has one. Raises WorkerStartError, SpecDebugError, or MachineFailed
        when the system has no process, no file or no pipe left to give."""
        self._held.append(job)
        self._launch_held()

    def _launch_held(self) -> None:
        for _ in range(len(self._held)):
            job = self._held.popleft()
            try:
                slot = None if job.slots is None else job.slots.take()
            except OSError as error:
                raise refused(error) from error
            if job.slots is not None and slot is None:
                self._held.append(job)
            else:
                self._begin(job, slot)

    def _begin(self, job: Job, slot: int | None) -> None:
        self.start(job.home)
        (event_read, event_write), (log_read, log_write) = pipes(2)
        for fd in (event_read, log_read):
            os.set_blocking(fd, False)
        worker = Worker(job, event_read, log_read, slot)
        self._workers[job.name] = worker
        # Pickled twice: the server must not unpickle what the worker gets, or it would import that code itself.
        message: dict[str, Any] = {"job": job.name, "target": job.target, "payload": pickle.dumps(job.payload)}
        if job.nest is not None:
            message["nests"] = [
                {"key": each.key, "target": each.target, "payload": pickle.dumps(each.argument), "kept": each.kept}
                for each in job.nest.line
            ]
        self._servers[job.home].send(JOB, message, (event_write, log_write))
        os.close(event_write)
        os.close(log_write)

    def turn(self, listener: Listener) -> None:
        """Wait until something happens, a moment at most, and pass it on. Raises WorkerStartError, and
        KeyboardInterrupt once this process was asked to end."""
        self._launch_held()
        for key, _ in self._selector.select(TICK_S):
            # An earlier callback of this round may have ended this worker, or the whole server.
            if self._selector.get_map().get(key.fd) == key:
                key.data(listener)
        self._watch()
        # See that each server starts the jobs, and ends the workers, that it was told to.
        for home in {each.job.home for each in self._workers.values() if not each.pid or each.kill_sent}:
            self._servers[home].mind()
        listener.waiting()
        interrupts.check()

    def run(self, jobs: Iterable[Job], listener: Listener) -> None:
        """Run every job to its end, first come first served. Names must be unique.

        Jobs are taken from ``jobs`` as workers come free, so making one may take its time. One that may not start when
        its turn has come (see :class:`Job`) is dropped. Raises MachineFailed when no further worker can be started,
        once those that were have ended. A KeyboardInterrupt ends all workers, reports them as ``interrupted`` (but not
        jobs for which there was none yet) and is raised again.
        """
        waiting = iter(jobs)
        failed: MachineFailed | None = None
        upcoming: Job | None = None
        exhausted = False
        try:
            interrupts.check()
            while True:
                while not exhausted and len(self._workers) < self.limit and len(self._held) < self.limit:
                    if upcoming is None:
                        upcoming = next(waiting, None)
                    if upcoming is None:
                        exhausted = True
                        break
                    gpu_jobs = sum(worker.job.uses_gpu for worker in self._workers.values())
                    if upcoming.uses_gpu and gpu_jobs >= self._gpu_limit:
                        break
                    job, upcoming = upcoming, None
                    try:
                        if job.may_start():
                            self.launch(job)
                    except MachineFailed as error:
                        failed, exhausted = error, True
                        self._held.clear()
                if not self.running:
                    break
                self.turn(listener)
            if failed is not None:
                raise failed
        except KeyboardInterrupt:
            self._held.clear()
            for worker in list(self._workers.values()):
                self._signal(worker, signal.SIGKILL)
                worker.killed_for = "interrupted"
                self._finish(worker, listener, -int(signal.SIGKILL))
            raise

    def close(self) -> None:
        """End the fork servers (and with them every worker), and drop the jobs held. Can be started again."""
        self._held.clear()
        for home in list(self._servers):
            self._end_server(home)

    def _end_server(self, home: Home | None) -> None:
        server = self._servers.pop(home)
        for worker in self._workers_at(home):
            self._release(worker)
        for file in (server.channel, server.log):
            self._unregister(file)
        server.close()

    def _workers_at(self, home: Home | None) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.job.home == home]

    def _on_reply(self, home: Home | None, listener: Listener) -> None:
        replies = self._servers[home].hear()
        if replies is None:
            self._server_lost(home, listener)
            return
        for reply in replies:
            if "unprepared" in reply:
                self.close()
                why = reply["unprepared"]
                raise cannot_start(f"the worker process could not get ready: {why}", failure_in_log(why))
            if "started" in reply:
                worker = self._workers.get(reply["started"])
                if worker is not None:  # from now on it is listened to, so no event is heard before its job's start
                    worker.start(reply["pid"], time.monotonic())
                    for fd, take in ((worker.event_fd, self._on_events), (worker.log_fd, self._on_log)):
                        self._selector.register(fd, selectors.EVENT_READ, partial(take, worker))
                    listener.started(worker.job)
            elif "refused" in reply and reply["refused"] in self._workers:
                worker = self._workers[reply["refused"]]
                worker.killed_for = "refused"
                worker.failure = machine_failure(OSError(reply["errno"], reply["why"]))
                self._finish(worker, listener, 1)
            elif "ended" in reply and reply["ended"] in self._workers:
                self._finish(self._workers[reply["ended"]], listener, reply["status"])

    def _server_lost(self, home: Home | None, listener: Listener) -> None:
        """End the workers of a fork server that is gone, as they are, too. Jobs still waiting get a new one."""
        server = self._servers[home]
        workers = self._workers_at(home)
        for worker in workers:
            worker.lose(server.given_up)
        status = server.gone()
        killed = status == -signal.SIGKILL and server.given_up is None
        workers = workers if server.ready or killed else []
        for worker in workers:
            self._finish(worker, listener, status)
        self._end_server(home)
        if not server.ready and not workers:
            raise server.last_words(status)

    def _on_server_log(self, server: Server, listener: Listener) -> None:
        if not server.read_log():
            self._unregister(server.log)

    def _on_events(self, worker: Worker, listener: Listener) -> bool:
        """Deliver what is there; return False when nothing was."""
        data = self._read(worker.event_fd)
        for event in worker.lines.feed(data):
            worker.hear(event, time.monotonic())
            listener.event(worker.job, event)
        return bool(data)

    def _on_log(self, worker: Worker, listener: Listener) -> bool:
        data = self._read(worker.log_fd)
        worker.take_log(data)
        return bool(data)

    def _read(self, fd: int) -> bytes:
        """Return what there is to read; listen no longer when that is nothing."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(fd, 1 << 16)
        if not data:
            self._unregister(fd)
        return data

    def _watch(self) -> None:
        now = time.monotonic()
        for worker in self._workers.values():
            if not worker.pid or worker.killed_for in ("timeout", "memory"):
                if worker.dump_until is not None and now >= worker.dump_until:
                    worker.dump_until = None
                    self._signal(worker, signal.SIGKILL)
                continue
            rss = rss_mb(worker.pid)
            worker.peak_rss_mb = max(worker.peak_rss_mb, rss)
            if rss > worker.memory_limit_mb:
                worker.killed_for = "memory"
                self._signal(worker, signal.SIGKILL)
            elif worker.is_over(now) or processor_s(worker.pid) > worker.job.processor_s:
                worker.killed_for = "timeout"
                worker.going = not worker.stands_still(now)
                worker.dump_until = now + DUMP_GRACE_S
                self._signal(worker, DUMP_SIGNAL)

    def _signal(self, worker: Worker, number: int) -> None:
        worker.kill_sent = worker.kill_sent or number == signal.SIGKILL
        self._servers[worker.job.home].send(SIGNAL, {"job": worker.job.name, "signal": int(number)})

    def _finish(self, worker: Worker, listener: Listener, status: int) -> None:
        if not worker.pid:  # the server was lost before it could say so
            listener.started(worker.job)
        while self._on_events(worker, listener):
            pass
        while self._on_log(worker, listener):
            pass
        self._release(worker)
        listener.ended(worker.job, worker.end(status, time.monotonic()))

    def _release(self, worker: Worker) -> None:
        for fd in (worker.event_fd, worker.log_fd):
            self._unregister(fd)
            os.close(fd)
        if worker.slot is not None:
            os.close(worker.slot)
        del self._workers[worker.job.name]

    def _unregister(self, file: Any) -> None:
        with contextlib.suppress(KeyError):  # its end of file has been seen before
            self._selector.unregister(file)


class _Collector:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.ends: list[WorkerEnd] = []

    def started(self, job: Job) -> None: ...
    def waiting(self) -> None: ...
    def event(self, job: Job, event: dict[str, Any]) -> None:
        self.events.append(event)

    def ended(self, job: Job, end: WorkerEnd) -> None:
        self.ends.append(end)


def run_one(pool: WorkerPool, job: Job) -> tuple[list[dict[str, Any]], WorkerEnd]:
    """Run a single job and collect what it reports."""
    collected = _Collector()
    pool.run([job], collected)
    return collected.events, collected.ends[0]
