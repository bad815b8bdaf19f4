"""Every way a worker can end is told apart, loses nothing it had reported, and leaves the others alone."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdebug.workers.child import WorkerStartError
from specdebug.workers.job import Job, WorkerEnd
from specdebug.workers.machine_failure import MachineFailed
from specdebug.workers.pool import GPU_JOBS, WorkerPool, run_one

VICTIMS = "tests.workers.victims"


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, preload=()) as pool:
        yield pool


def victim(name: str, payload: Any = None, **limits: float) -> Job:
    return Job(name, f"{VICTIMS}:{name}", payload, **limits)


@pytest.mark.parametrize(
    ("job", "kind", "signal_name"),
    [
        (victim("die", int(signal.SIGKILL)), "signal", "SIGKILL"),
        (victim("die", int(signal.SIGTERM)), "signal", "SIGTERM"),
        (victim("die", int(signal.SIGABRT)), "signal", "SIGABRT"),
        (victim("segfault"), "signal", "SIGSEGV"),
        (victim("leave", 0), "done", ""),
        (victim("leave", 7), "exit", ""),
        (victim("raise_error", "oh no"), "exit", ""),
        (victim("sleep_forever", timeout_s=0.3), "timeout", "SIGKILL"),
        (victim("ignore_everything", timeout_s=0.3), "timeout", "SIGKILL"),
        (victim("work_forever", processor_s=0.3), "timeout", "SIGKILL"),
        (victim("eat_memory", memory_mb=120), "memory", "SIGKILL"),
        (victim("half_a_line"), "signal", "SIGKILL"),
    ],
    ids=lambda value: value.name if isinstance(value, Job) else str(value),
)
def test_each_death_is_named_and_what_came_before_it_is_kept(
    pool: WorkerPool, job: Job, kind: str, signal_name: str
) -> None:
    events, end = run_one(pool, job)
    assert events == [{"event": "before", "n": 1}]
    assert (end.kind, end.signal_name) == (kind, signal_name)


def test_a_crash_and_a_hang_leave_a_stack_in_the_log(pool: WorkerPool) -> None:
    _, crash = run_one(pool, victim("segfault"))
    assert "string_at" in crash.log
    _, hang = run_one(pool, victim("sleep_forever", timeout_s=0.3))
    assert "in sleep_forever" in hang.log
    _, error = run_one(pool, victim("raise_error", "oh no"))
    assert "RuntimeError: oh no" in error.log


def test_what_the_server_prepares_all_workers_launched_later_have() -> None:
    with WorkerPool(2, preload=(), prepare=(f"{VICTIMS}:get_ready", {"deep": (1, 2)})) as pool:
        seen = [run_one(pool, victim("inherit"))[0][0] for _ in range(2)]
        pool.prepare(f"{VICTIMS}:get_ready", 2)
        (after,), _ = run_one(pool, victim("inherit"))
    first = {"deep": [1, 2]}
    assert [event["ready"] for event in seen] == [[[first, event["parent"]]] for event in seen]
    assert [payload for payload, _ in after["ready"]] == [first, 2]


def test_a_server_that_cannot_prepare_says_why() -> None:
    pool = WorkerPool(1, preload=(), prepare=(f"{VICTIMS}:get_ready", "impossible"))
    with pool, pytest.raises(WorkerStartError, match="get ready: ValueError: there is nothing to get ready"):
        run_one(pool, victim("obey"))


def test_jobs_are_launched_while_others_run_and_end_in_any_order(pool: WorkerPool) -> None:
    ends: list[tuple[str, str]] = []

    class Ends:
        def started(self, job: Job) -> None: ...
        def event(self, job: Job, event: dict[str, Any]) -> None: ...
        def waiting(self) -> None: ...
        def ended(self, job: Job, end: WorkerEnd) -> None:
            ends.append((job.name, end.kind))

    pool.launch(Job("slow", f"{VICTIMS}:sleep_forever", None, timeout_s=0.3))
    pool.launch(victim("obey"))
    assert pool.running == 2
    while len(ends) < 1:
        pool.turn(Ends())
    pool.launch(victim("segfault"))
    while pool.running:
        pool.turn(Ends())
    assert ends[0] == ("obey", "done")
    assert sorted(ends[1:]) == [("segfault", "signal"), ("slow", "timeout")]


def test_a_worker_that_starts_over_keeps_its_pipes_and_inherits_nothing() -> None:
    with WorkerPool(1, preload=("fractions",), prepare=(f"{VICTIMS}:get_ready", 1)) as pool:
        events, end = run_one(pool, victim("start_again", ("inherit", None)))
        modules = run_one(pool, victim("start_again", ("environment", None)))[0][1]["modules"]
        died, death = run_one(pool, victim("start_again", ("segfault", None)))
        _, hang = run_one(pool, victim("start_again", ("sleep_forever", None), timeout_s=2.0))
    assert (events[1]["ready"], end.kind) == ([], "done")
    assert "fractions" not in modules
    assert [event["event"] for event in died] == ["pid", "before"]
    assert (death.kind, death.signal_name) == ("signal", "SIGSEGV")
    assert "string_at" in death.log
    assert hang.kind == "timeout"
    assert "in sleep_forever" in hang.log


def test_long_reports_arrive_whole_and_long_logs_are_cut_in_front(pool: WorkerPool) -> None:
    events, end = run_one(pool, victim("chatter", 5000))
    assert [event["n"] for event in events] == list(range(5000))
    assert 0 < len(end.log) <= 64 * 1024


class Record:
    def __init__(self) -> None:
        self.ends: dict[str, WorkerEnd] = {}
        self.known: set[str] = set()
        self.alive = self.most_alive = self.rounds = 0

    def started(self, job: Job) -> None:
        assert job.name not in self.known
        self.known.add(job.name)
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)

    def event(self, job: Job, event: dict[str, Any]) -> None:
        assert job.name in self.known

    def ended(self, job: Job, end: WorkerEnd) -> None:
        assert job.name in self.known
        self.alive -= 1
        self.ends[job.name] = end

    def waiting(self) -> None:
        self.rounds += 1


def test_a_lost_fork_server_is_replaced() -> None:
    record = Record()
    with WorkerPool(1, preload=()) as pool:
        pool.run([victim("kill_server"), victim("obey")], record)
    assert {name: end.kind for name, end in record.ends.items()} == {"kill_server": "lost", "obey": "done"}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdebug.workers.forkserver.ANSWER_S", 0.2)


@pytest.mark.usefixtures("impatient")
def test_a_stopped_fork_server_disables_no_deadline(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    with WorkerPool(2, preload=()) as pool:

        class Stop(Record):
            def event(self, job: Job, event: dict[str, Any]) -> None:
                super().event(job, event)
                if job.name == "hang_with_a_child":
                    os.kill(pool._servers[None].pid, signal.SIGSTOP)

        record = Stop()
        hang = victim("hang_with_a_child", str(tmp_path / "alive"), timeout_s=0.3)
        pool.run([victim("sleep_forever"), hang, victim("obey")], record)
    assert os.read(reader, 1) == b""  # blocks for as long as the worker or its child lives
    os.close(reader)
    ends = record.ends
    assert {name: end.kind for name, end in ends.items()} == {
        "hang_with_a_child": "timeout",
        "sleep_forever": "lost",
        "obey": "done",
    }
    said = "the fork server did not answer for 0.2 s: it and its workers were killed; did something stop it?"
    assert said in ends["hang_with_a_child"].log
    assert ends["hang_with_a_child"].failure is None
    assert ends["sleep_forever"].failure is not None
    assert ends["sleep_forever"].failure.line == said


@pytest.mark.usefixtures("impatient")
def test_jobs_that_a_stopped_fork_server_does_not_start_end_and_the_next_get_another() -> None:
    with WorkerPool(1, preload=()) as pool:
        run_one(pool, victim("obey"))
        os.kill(pool._servers[None].pid, signal.SIGSTOP)
        _, end = run_one(pool, victim("obey"))
        assert (end.kind, end.failure is None) == ("lost", False)
        assert run_one(pool, victim("obey"))[1].kind == "done"


@pytest.mark.usefixtures("impatient")
def test_a_fork_server_stopped_before_it_is_ready_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdebug.workers.forkserver.BUSY_S", 0.2)
    with WorkerPool(1, preload=()) as pool:
        pool.start()
        os.kill(pool._servers[None].pid, signal.SIGSTOP)
        with pytest.raises(WorkerStartError, match=r"could not start: the fork server did not answer for 0\.2 s"):
            run_one(pool, victim("obey"))


@pytest.mark.parametrize("ready", [False, True])
def test_jobs_of_a_fork_server_that_somebody_killed_are_lost_to_that_and_the_next_get_another(ready: bool) -> None:
    with WorkerPool(1, preload=()) as pool:
        if ready:
            run_one(pool, victim("obey"))
        pool.start()
        os.kill(pool._servers[None].pid, signal.SIGKILL)
        _, end = run_one(pool, victim("obey"))
        assert (end.kind, end.failure.cause if end.failure else None) == ("lost", "killed")
        assert run_one(pool, victim("obey"))[1].kind == "done"


def test_a_preload_that_fails_is_one_line() -> None:
    with (
        WorkerPool(1, preload=("no_such_module",)) as pool,
        pytest.raises(WorkerStartError, match=r"^the worker process could not start: ModuleNotFoundError.*$"),
    ):
        run_one(pool, victim("obey"))


def test_workers_see_no_revert_variable_and_the_server_imports_no_engine(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_DEBUG_REVERT_PR", "27338")
    with WorkerPool(1, preload=()) as fresh:
        events, _ = run_one(fresh, victim("environment"))
    assert events[0]["revert"] is None
    assert not [name for name in events[0]["modules"] if name.startswith("specdebug.engine")]


def test_jobs_are_taken_as_workers_come_free() -> None:
    taken: list[int] = []

    def jobs() -> Iterator[Job]:
        for n in range(4):
            taken.append(n)
            yield Job(f"echo {n}", f"{VICTIMS}:obey", n)

    class Watch(Record):
        def ended(self, job: Job, end: WorkerEnd) -> None:
            super().ended(job, end)
            ahead.append(len(taken) - len(self.ends))

    ahead: list[int] = []
    with WorkerPool(1, preload=()) as one:
        one.run(jobs(), Watch())
        one.run(iter(()), Watch())
    assert (taken, ahead) == ([0, 1, 2, 3], [0, 0, 0, 0])


def test_jobs_that_use_a_gpu_run_a_few_at_a_time_and_hold_up_no_worker() -> None:
    class Watch(Record):
        most_on_gpu = 0

        def started(self, job: Job) -> None:
            super().started(job)
            on_gpu = sum(name.startswith("gpu") for name in self.known - set(self.ends))
            self.most_on_gpu = max(self.most_on_gpu, on_gpu)

    jobs = [Job(f"gpu {n}", f"{VICTIMS}:obey", n, uses_gpu=True) for n in range(3 * GPU_JOBS)]
    jobs += [Job(f"cpu {n}", f"{VICTIMS}:obey", n) for n in range(3)]
    with WorkerPool(preload=()) as some:
        some._limit = 3 * GPU_JOBS
        some.run(jobs, record := Watch())
    assert len(record.ends) == len(jobs)
    assert 1 <= record.most_on_gpu <= GPU_JOBS
    assert record.rounds > 0


def test_an_interrupt_ends_every_worker_and_reports_it(pool: WorkerPool) -> None:
    record = Record()
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    with WorkerPool(2, preload=()) as own, pytest.raises(KeyboardInterrupt):
        own.run([victim("sleep_forever"), victim("ignore_everything"), victim("obey")], record)
    timer.join()
    assert time.monotonic() - began < 5
    assert {name: end.kind for name, end in record.ends.items()} == {
        "sleep_forever": "interrupted",
        "ignore_everything": "interrupted",
    }


PARENT = """
import sys
from specdebug.campaign.preload import PRELOAD
from specdebug.workers.pool import PRELOAD as LIBRARIES
from specdebug.workers.job import Job
from specdebug.workers.pool import WorkerPool
class Show:
    def started(self, job): pass
    def event(self, job, event): print(event["pid"], flush=True)
    def ended(self, job, end): pass
    def waiting(self): pass
with WorkerPool(1, preload=()) as pool:
    pool.run([Job("a", "tests.workers.test_pool:report_pid_and_sleep", None)], Show())
"""


def report_pid_and_sleep(payload: Any, sink: Any) -> None:
    sink.emit("pid", pid=os.getpid())
    time.sleep(60)


@pytest.mark.parametrize("stopped", [False, True])
def test_workers_do_not_outlive_a_killed_parent(stopped: bool) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    if stopped:  # a fork server that can do nothing
        os.kill(os.getsid(pid), signal.SIGSTOP)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and os.path.exists(f"/proc/{pid}"):
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{pid}")


REFUSING = "tests.workers.refusing"


def test_a_fork_that_is_refused_ends_its_job_and_no_other() -> None:
    with WorkerPool(1, preload=(REFUSING,)) as pool:
        ends = [run_one(pool, victim("obey", n))[1] for n in range(3)]
    assert [end.kind for end in ends] == ["done", "refused", "done"]
    assert ends[1].failure is not None
    assert ends[1].failure.cause == "processes"
    assert "Resource temporarily unavailable" in ends[1].failure.line


@pytest.mark.parametrize(
    ("what", "number", "told"),
    [
        *(
            (what, errno.EMFILE, r"no more files or pipes can be opened .*: \[Errno 24\] Too many open files")
            for what in ("selectors.DefaultSelector", "socket.socketpair", "os.pipe", "subprocess.Popen.__init__")
        ),
        ("subprocess.Popen.__init__", errno.EAGAIN, "no process or thread can be started"),
    ],
)
def test_a_pool_that_can_open_or_start_nothing_is_the_machine_s_failure(
    what: str, number: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(what, refuse)
    with pytest.raises(MachineFailed, match=told):
        WorkerPool(1, preload=()).start()


def test_without_pipes_what_was_begun_is_finished_first(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    real = os.pipe

    def pipe() -> tuple[int, int]:
        if len(made) == 3:  # one job has two; the second gets one and no other
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        made.append(real())
        return made[-1]

    run_one(pool, victim("obey"))  # so that the server is there
    listener = Record()
    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(MachineFailed, match="no pipe for a worker"):
        pool.run([victim("obey"), victim("segfault"), victim("leave", 0)], listener)
    monkeypatch.undo()
    assert list(listener.ends) == ["obey"]
    assert listener.ends["obey"].kind == "done"
    assert run_one(pool, victim("obey"))[1].kind == "done"
    for fd in made[2]:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_a_job_that_may_not_start_is_dropped(pool: WorkerPool) -> None:
    listener = Record()
    jobs = [
        Job(f"job {n}", f"{VICTIMS}:obey", n, may_start=lambda n=n: n % 2 == 0)  # type: ignore[misc]
        for n in range(5)
    ]
    pool.run(jobs, listener)
    assert sorted(listener.ends) == ["job 0", "job 2", "job 4"]


@pytest.mark.parametrize("lack", ["memory", "disk"])
def test_a_worker_that_dies_of_a_lack_says_so(lack: str, pool: WorkerPool) -> None:
    events, end = run_one(pool, victim("out_of", lack))
    assert [event["event"] for event in events] == ["before", "machine"]
    assert events[1]["cause"] == lack
    assert (end.kind, end.status) == ("exit", 1)
