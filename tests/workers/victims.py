"""Targets that misbehave, for the tests of the worker machinery."""

import os
import signal
import time
from typing import Any


def obey(payload: Any, sink: Any) -> None:
    sink.emit("echo", payload=payload, pid=os.getpid())


_ready: list[Any] = []


def get_ready(argument: Any) -> None:
    """What a fork server may be asked to prepare."""
    if argument == "impossible":
        raise ValueError("there is nothing to get ready")
    _ready.append((argument, os.getpid()))


def inherit(payload: Any, sink: Any) -> None:
    sink.emit("inherited", ready=_ready, parent=os.getppid())


def start_again(payload: Any, sink: Any) -> None:
    """Leave everything inherited behind, then do what the payload says."""
    from specdebug.workers.forkserver import start_over

    sink.emit("pid", pid=os.getpid())
    start_over(f"{__name__}:{payload[0]}", payload[1], sink)


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


def work_forever(payload: Any, sink: Any) -> None:
    sink.emit("before", n=1)
    while True:
        sum(range(1000))


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


def out_of(payload: str, sink: Any) -> None:
    """Die of what the machine lacks, as code that nobody watches would."""
    import errno

    sink.emit("before", n=1)
    if payload == "memory":
        raise MemoryError("no 64 bytes")
    raise OSError(errno.ENOSPC, "No space left on device")


def answer(payload: Any, sink: Any) -> None:
    """The probe of a device that is there, or (``SPECDEBUG_TEST_GONE``) is not. Counts its calls in the file named."""
    with open(os.environ["SPECDEBUG_TEST_PROBES"], "a", encoding="ascii") as file:
        file.write(f"{payload}\n")
    if "SPECDEBUG_TEST_GONE" in os.environ:
        raise RuntimeError("No CUDA GPUs are available")
    sink.emit("answers")


def kill_server(payload: Any, sink: Any) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(30)


def hang_with_a_child(payload: Any, sink: Any) -> None:
    """Hold the FIFO ``payload`` open, here and in a child of this worker."""
    import subprocess

    with open(payload, "wb") as fifo:
        sink.emit("before", n=1)
        subprocess.run(["sleep", "1000"], stdout=fifo)


def environment(payload: Any, sink: Any) -> None:
    import sys

    revert = os.environ.get("SGLANG_DEBUG_REVERT_PR")
    sink.emit("env", revert=revert, modules=sorted(sys.modules), parent=os.getppid())


def play(payload: Any, sink: Any) -> None:
    """What the arm's name says, after a step of a run. Stands in for ``specdebug.run.arm:run_arm``."""
    once = payload["arm"] == "once" and not os.path.exists(os.environ["SPECDEBUG_TEST_ONCE"])
    if once:
        open(os.environ["SPECDEBUG_TEST_ONCE"], "x").close()
    if once or payload["arm"].startswith("gone"):
        sink.emit("machine", cause="device", line="No CUDA GPUs are available")
        sink.emit("done", stages_s={}, peak_rss_mb=1.0)
        return
    if payload["arm"].startswith("hidden"):
        sink.emit("usage", message="there is no CUDA device here", option=["device"], unavailable=True)
        return
    if "device" in payload["arm"]:
        sink.emit("stack", device="cuda", name="H200", dtype="float32", backend="triton", executor="Triton")
    step = {"kind": "decode", "rids": ["g0.0"], "accept": {}, "cached": {}, "finished": [], "retracted": []}
    sink.emit("stage", name="run")
    sink.emit("setup", probes_enabled=0, requests=1)
    sink.emit("arrive", rid="g0.0", group="g0", prompt_tokens=2)
    sink.emit("step", step=1, emitted={"g0.0": [7]}, s=0.1, **step)
    behaviour = {
        "killed": lambda: die(int(signal.SIGKILL), sink),
        "segfault": lambda: segfault(None, sink),
        "hang": lambda: sleep_forever(None, sink),
        "hog": lambda: eat_memory(0, sink),
        "quitter": lambda: leave(0, sink),
        "raiser": lambda: raise_error("oh no", sink),
        "full": lambda: out_of("disk", sink),
        "poor": lambda: out_of("memory", sink),
        "good": lambda: None,
        "once": lambda: None,
    }
    behaviour[payload["arm"].split()[0]]()
    sink.emit("coverage", reached={}, hits={})
    sink.emit("done", stages_s={}, peak_rss_mb=1.0)


def wait_for(payload: str, sink: Any = None) -> None:
    """Go on once the other end of the FIFO ``payload`` is opened."""
    with open(payload, "rb"):
        return


def ready_after(payload: str) -> None:
    """Be ready as a nest once the other end of the FIFO ``payload`` is opened."""
    wait_for(payload)
    get_ready(payload)


_held: list[Any] = []


def hold_open(payload: str) -> None:
    """Hold the FIFO ``payload`` open for as long as this process, or a fork of it, lives."""
    _held.append(open(payload, "wb"))  # noqa: SIM115


def go_home(payload: Any, sink: Any) -> None:
    """Leave everything inherited behind, then use the module that only one home has."""
    from specdebug.workers.forkserver import start_over

    start_over("said:say", payload, sink)


def fail(payload: tuple[str, str]) -> None:
    """Fail to be a nest, by an error or by dying, and leave a line in a file."""
    file, how = payload
    with open(file, "a", encoding="ascii") as tries:
        tries.write("tried\n")
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("no nest")


def stop_parent(payload: Any, sink: Any) -> None:
    sink.emit("parent", pid=os.getppid())
    os.kill(os.getppid(), signal.SIGSTOP)


def leave_a_file(payload: str, sink: Any) -> None:
    open(payload, "x").close()
