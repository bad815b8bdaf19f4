"""Workers of another interpreter, and forks of a process that has something ready: what each has, and what it costs the
others when one is lost."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specdebug.workers.child import WorkerStartError
from specdebug.workers.home import Home, Nest
from specdebug.workers.job import Job
from specdebug.workers.pool import HOMES, WorkerPool, run_one
from tests.workers.test_pool import VICTIMS, Record, victim

ROOT = str(Path(__file__).parents[2])
READY = Nest("ready", f"{VICTIMS}:get_ready", 7)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(3, preload=()) as pool:
        yield pool


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


class Heard(Record):
    """Keeps the events of each job."""

    def __init__(self) -> None:
        super().__init__()
        self.events: dict[str, list[dict[str, Any]]] = {}

    def event(self, job: Job, event: dict[str, Any]) -> None:
        super().event(job, event)
        self.events.setdefault(job.name, []).append(event)

    @property
    def kinds(self) -> dict[str, str]:
        return {name: end.kind for name, end in self.ends.items()}


def nested(name: str, nest: Nest, target: str = "inherit", payload: Any = None, **more: Any) -> Job:
    return Job(name, f"{VICTIMS}:{target}", payload, nest=nest, **more)


def until(pool: WorkerPool, heard: Heard, done: Callable[[], bool]) -> None:
    while not done():
        pool.turn(heard)


def home_in(folder: Path, says: str) -> Home:
    """A home with a module ``said`` that no other has."""
    folder.mkdir()
    emit = f"sink.emit('said', says=[{says!r}, os.environ['SAYS'], payload])"
    source = f"import os\ndef say(payload, sink):\n    {emit}\n"
    (folder / "said.py").write_text(source)
    return Home(sys.executable, (str(folder), ROOT), (("SAYS", says),), preload=("said",))


def test_each_home_has_its_path_and_its_variables_beside_our_own_workers(tmp_path: Path, pool: WorkerPool) -> None:
    homes = {name: home_in(tmp_path / name, name) for name in ("one", "two")}
    jobs = [Job(f"{name} {n}", "said:say", n, home=home) for n in range(2) for name, home in homes.items()]
    pool.run([*jobs, victim("environment")], heard := Heard())
    for name in homes:
        assert [heard.events[f"{name} {n}"][0]["says"] for n in range(2)] == [[name, name, n] for n in range(2)]
    assert "said" not in heard.events["environment"][0]["modules"]
    assert set(heard.kinds.values()) == {"done"}


def test_a_worker_of_a_home_that_starts_over_is_still_at_home(tmp_path: Path, pool: WorkerPool) -> None:
    home = home_in(tmp_path / "one", "one")
    events, end = run_one(pool, Job("again", f"{VICTIMS}:start_again", ("environment", None), home=home))
    assert "said" not in events[1]["modules"]
    assert end.kind == "done"
    events, _ = run_one(pool, Job("again", f"{VICTIMS}:go_home", 3, home=home))
    assert events == [{"event": "said", "says": ["one", "one", 3]}]


def test_a_server_that_is_lost_takes_only_the_workers_of_its_home(fifo: Path) -> None:
    one, two = (Home(sys.executable, (ROOT,), (("N", n),)) for n in "12")
    with WorkerPool(3, preload=()) as pool:
        heard = Heard()
        pool.launch(Job("stays", f"{VICTIMS}:wait_for", str(fifo), home=two))
        pool.launch(Job("ours", f"{VICTIMS}:wait_for", str(fifo)))
        until(pool, heard, lambda: len(heard.known) == 2)
        pool.launch(Job("kills", f"{VICTIMS}:kill_server", None, home=one))
        until(pool, heard, lambda: "kills" in heard.ends)
        assert heard.kinds == {"kills": "lost"}
        fifo.open("wb").close()
        pool.launch(Job("next", f"{VICTIMS}:obey", None, home=one))
        until(pool, heard, lambda: not pool.running)
    assert heard.kinds == {"kills": "lost", "next": "done", "stays": "done", "ours": "done"}


@pytest.mark.parametrize(
    ("home", "told"),
    [
        (Home("/no/such/python"), "No such file or directory: '/no/such/python'"),
        (Home(sys.executable, (ROOT,), preload=("no_such_module",)), rf"\({sys.executable}\): ModuleNotFoundError"),
    ],
)
def test_a_home_that_cannot_start_is_named(home: Home, told: str) -> None:
    with WorkerPool(1, preload=()) as pool, pytest.raises(WorkerStartError, match=told):
        run_one(pool, Job("job", f"{VICTIMS}:obey", None, home=home))


def test_a_nest_gets_ready_once_while_its_jobs_wait_and_no_others(fifo: Path, pool: WorkerPool) -> None:
    heard = Heard()
    slow = Nest("slow", f"{VICTIMS}:ready_after", str(fifo))
    for n in range(3):
        pool.launch(nested(f"in {n}", slow))
    pool.launch(victim("inherit"))
    until(pool, heard, lambda: bool(heard.ends))
    assert set(heard.known) == {"inherit"}
    fifo.open("wb").close()
    until(pool, heard, lambda: not pool.running)
    (first,) = heard.events["in 0"]
    assert [heard.events[f"in {n}"] for n in range(3)] == [[first]] * 3
    assert first["ready"] == [[str(fifo), first["parent"]]]
    (plain,) = heard.events["inherit"]
    assert (plain["ready"], plain["parent"] != first["parent"]) == ([], True)


def test_nests_of_one_nest_share_what_it_has_ready(pool: WorkerPool) -> None:
    left, right = (Nest(side, f"{VICTIMS}:get_ready", side, of=READY) for side in ("left", "right"))
    jobs = [nested(f"{nest.key} {n}", nest) for n in range(2) for nest in (left, right)]
    pool.run([*jobs, nested("above", READY)], heard := Heard())
    assert set(heard.kinds.values()) == {"done"}
    (above,) = heard.events["above"][0]["ready"]
    for nest in (left, right):
        both = [heard.events[f"{nest.key} {n}"][0] for n in range(2)]
        assert both[0] == both[1]
        assert [each[0] for each in both[0]["ready"]] == [7, nest.key]
        assert both[0]["ready"][0] == above, "made once, by the nest that all come of"


@pytest.mark.parametrize("how", ["raises", "dies"])
def test_a_nest_whose_own_cannot_get_ready_is_one_of_the_server(how: str, tmp_path: Path, pool: WorkerPool) -> None:
    bad = Nest(f"below it {how}", f"{VICTIMS}:fail", (str(tmp_path / "tries"), how))
    good = Nest(f"above what {how}", f"{VICTIMS}:get_ready", 8, of=bad)
    pool.run([nested("one", good), nested("two", good)], heard := Heard())
    ready = [heard.events[name][0]["ready"] for name in ("one", "two")]
    assert ready[0] == ready[1]
    assert [each[0] for each in ready[0]] == [8]


def test_a_job_of_a_nest_in_a_nest_can_be_killed(fifo: Path, pool: WorkerPool) -> None:
    heard = Heard()
    pool.launch(
        nested("hangs", Nest("deep", f"{VICTIMS}:get_ready", 9, of=READY), "wait_for", str(fifo), timeout_s=0.1)
    )
    until(pool, heard, lambda: not pool.running)
    assert heard.kinds == {"hangs": "timeout"}


@pytest.mark.parametrize("how", ["raises", "dies"])
def test_jobs_of_a_nest_that_cannot_get_ready_are_plain_forks(how: str, tmp_path: Path, pool: WorkerPool) -> None:
    bad = Nest(f"it {how}", f"{VICTIMS}:fail", (str(tmp_path / "tries"), how))
    pool.run([nested("one", bad), nested("two", bad)], heard := Heard())
    pool.run([nested("three", bad), victim("inherit")], heard)
    (plain,) = heard.events["inherit"]
    assert [heard.events[name] for name in ("one", "two", "three")] == [[plain]] * 3
    assert (tmp_path / "tries").read_text() == "tried\n"


def test_a_worker_that_crashes_or_hangs_leaves_its_nest(pool: WorkerPool) -> None:
    jobs = [
        nested("before", READY),
        nested("crash", READY, "segfault"),
        nested("hang", READY, "sleep_forever", timeout_s=0.3),
        nested("after", READY),
    ]
    pool.run(jobs, heard := Heard())
    assert heard.kinds == {"before": "done", "crash": "signal", "hang": "timeout", "after": "done"}
    assert heard.events["before"] == heard.events["after"]
    assert "string_at" in heard.ends["crash"].log
    assert "in sleep_forever" in heard.ends["hang"].log


def test_a_nest_that_dies_takes_its_workers_and_the_next_job_gets_another(pool: WorkerPool) -> None:
    (before,), _ = run_one(pool, nested("before", READY))
    pool.run([nested("beside", READY, "sleep_forever"), nested("kills", READY, "kill_server")], heard := Heard())
    assert heard.kinds == {"beside": "signal", "kills": "signal"}
    (after,), _ = run_one(pool, nested("after", READY))
    assert after["ready"] == [[7, after["parent"]]]
    assert after["parent"] != before["parent"]


def test_a_nest_that_is_stopped_is_ended_and_a_job_that_it_was_to_start_is_a_plain_fork() -> None:
    hasty = Home(sys.executable, (ROOT,), preload=("tests.workers.impatient",))
    with WorkerPool(1, preload=()) as pool:
        _, stops = run_one(pool, nested("stops", READY, "stop_parent", home=hasty, timeout_s=0.3))
        (ready,), _ = run_one(pool, nested("another", READY, home=hasty))
        os.kill(ready["parent"], signal.SIGSTOP)
        (plain,), end = run_one(pool, nested("next", READY, home=hasty))
    assert (stops.kind, end.kind) == ("timeout", "done")
    assert (ready["ready"], plain["ready"]) == ([[7, ready["parent"]]], [])


def test_two_idle_nests_are_kept_those_used_last(pool: WorkerPool) -> None:
    def parent(key: str) -> int:
        (event,), _ = run_one(pool, nested(key, Nest(key, READY.target)))
        return int(event["parent"])

    a, b, _ = (parent(key) for key in "abc")
    assert parent("b") == b
    assert parent("a") != a


def test_a_job_that_is_interrupted_while_its_nest_gets_ready_never_starts(fifo: Path, pool: WorkerPool) -> None:
    class Interrupted(Heard):
        def waiting(self) -> None:
            if self.ends:
                raise KeyboardInterrupt

    slow = Nest("interrupted", f"{VICTIMS}:ready_after", str(fifo))
    with pytest.raises(KeyboardInterrupt):
        pool.run([nested("waits", slow, "leave_a_file", str(fifo) + "2"), victim("obey")], heard := Interrupted())
    assert heard.kinds == {"obey": "done", "waits": "interrupted"}
    run_one(pool, victim("obey"))  # so that the server has heard of the interrupt
    fifo.open("wb").close()
    (event,), _ = run_one(pool, nested("next", slow))
    assert event["ready"][0][0] == str(fifo)
    assert not Path(str(fifo) + "2").exists()


@pytest.mark.parametrize("killed", [False, True])
def test_a_pool_that_closes_or_loses_its_server_leaves_no_process_of_a_nest(killed: bool, fifo: Path) -> None:
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    held = Nest("held", f"{VICTIMS}:hold_open", str(fifo))
    with WorkerPool(2, preload=()) as pool:
        heard = Heard()
        pool.launch(nested("sleeps", held, "sleep_forever"))
        until(pool, heard, lambda: bool(heard.events))
        if killed:
            os.kill(pool._servers[None].pid, signal.SIGKILL)
            until(pool, heard, lambda: bool(heard.ends))
            assert heard.kinds == {"sleeps": "lost"}
            assert os.read(reader, 1) == b""
    assert os.read(reader, 1) == b""  # blocks for as long as the nest or its worker lives
    os.close(reader)


def test_homes_that_have_nothing_to_do_end_the_least_lately_used_first(tmp_path: Path, pool: WorkerPool) -> None:
    names = [f"home{number}" for number in range(HOMES)]
    homes = {name: home_in(tmp_path / name, name) for name in (*names, "another")}

    def server_of(name: str, again: int = 0) -> int:
        events, _ = run_one(pool, Job(f"{name} {again}", f"{VICTIMS}:environment", None, home=homes[name]))
        return int(events[0]["parent"])

    before = {name: server_of(name) for name in names}
    assert server_of(names[0], 1) == before[names[0]]
    server_of("another")
    assert server_of(names[0], 2) == before[names[0]]
    assert server_of(names[1], 1) != before[names[1]]
