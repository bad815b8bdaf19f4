"""Trials on a Ray cluster: each node's workers hold the very source that this machine would use, and run its trials.

A worker is a Ray actor of one CPU (and a GPU where a scenario wants one), so that what is warm stays warm. A trial
whose worker is lost is run again by another under the same number; only a result that came back is seen. How many run
at a time does not shrink with the cluster, so that the search picks the same trials as on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.campaign import TrialSource
from specdebug.campaign.trials.command import ThreadedSource
from specdebug.workers.system import cpu_count

ATTEMPTS = 3
"""Times in a row that a worker may fail to start, or that one trial may take its worker with it on a live node."""
PATIENCE_S = 60.0  # seconds to wait for a node to come (back) when there is none that could run a trial
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # what it prints on our stdout of a node that is lost
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of this default to come
}
"""Ray reads these when it is imported."""

_SETTINGS = b"\x04"
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS + b"\0\0\0\0\0"
"""The first bytes of a client of HTTP/2; a server answers with settings, too."""

_STORE_BYTES = 100 * 2**20
_CONNECT_S = 5.0
_LOOK_S = 5.0
_STOP_S = 10.0


class RaySource:
    """Runs the trials of another source, which is asked for its candidates and its identity only, on a cluster.

    Args: make: makes the same with a capacity of 1, on a node, in a folder of the same name as the current one;
    picklable. address: as of ``ray.init``: ``host:port``, ``ray://host:port``, or ``auto`` for the cluster that this
    machine is a node of. Without one ``RAY_ADDRESS`` counts, and else a cluster of this machine alone is started. jobs:
    how many trials may run at a time; as many as the cluster has CPUs (or GPUs, if they need one). gpus: GPUs of each
    worker.

    Raises SpecDebugError when there is no Ray, no cluster, or one that has no CPU.
    """

    def __init__(
        self,
        source: TrialSource,
        make: Callable[[], TrialSource],
        *,
        address: str | None = None,
        jobs: int | None = None,
        gpus: int = 0,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.candidates = source.candidates
        self.identity = source.identity  # where a trial ran is not part of its result
        self._make = make
        self._folder = str(Path.cwd())
        self._gpus = gpus
        self._patience_s = patience_s
        self._queue: deque[Trial] = deque()
        self._idle: list[_Slot] = []
        self._busy: dict[Any, _Slot] = {}
        self._failed_starts = 0
        self._strikes: Counter[int] = Counter()
        self.rerun = 0
        self._open = True
        self._ray = import_ray()
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        _connect(self._ray, address, jobs)
        try:
            errors = self._ray.exceptions
            self._lost = (errors.RayActorError, errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError)
            # Two threads, so that one can end what the other waits for.
            options = {"num_cpus": 1, "num_gpus": gpus, "max_concurrency": 2, "max_restarts": 0}
            self._worker = self._ray.remote(**options)(_Worker)
            fit = (
                int(min(has["CPU"], has.get("GPU", 0) / gpus if gpus else has["CPU"])) for has in self._nodes().values()
            )
            self.capacity = jobs or sum(fit)
            if not self.capacity:
                what = "a CPU and a GPU" if gpus else "a CPU"
                raise SpecDebugError(f"the Ray cluster has no node with {what} to run trials on")
        except BaseException:
            self.close()
            raise

    @property
    def placed(self) -> dict[int, str]:
        """Return the node (Ray's id) of every trial that runs, by the trial's number."""
        return {slot.trial.number: slot.node for slot in self._busy.values() if slot.trial is not None}

    def start(self, trial: Trial) -> None:
        self._queue.append(trial)
        self._dispatch()

    def wait(self) -> tuple[Trial, TrialResult]:
        """Return the next trial to end. Raises SpecDebugError when no node can run it or one trial ended its worker
        time and again, and what the source raised."""
        idle_since = None
        while True:
            interrupts.check()
            self._dispatch()
            ended, _ = self._ray.wait(list(self._busy), num_returns=1, timeout=_LOOK_S)
            if not ended:
                stuck = all(slot.trial is None for slot in self._busy.values()) and not self._nodes()
                idle_since = (idle_since or time.monotonic()) if stuck else None
                if idle_since is not None and time.monotonic() - idle_since >= self._patience_s:
                    raise SpecDebugError("no node is left to run trials; the same command goes on once there is one")
                continue
            slot = self._busy.pop(ended[0])
            try:
                answer = self._ray.get(ended[0])
            except self._lost as error:
                self._lose(slot, error)
                continue
            except self._ray.exceptions.RayTaskError as error:
                if slot.trial is not None:
                    raise
                raise self._cannot_start(error) from None
            if slot.trial is None:
                slot.node, slot.host, trouble = answer
                if trouble is not None:
                    raise SpecDebugError(f"node {slot.host} of the Ray cluster cannot run the trials: {trouble}")
                self._failed_starts = 0
                self._idle.append(slot)
                continue
            trial, slot.trial = slot.trial, None
            self._idle.append(slot)
            if isinstance(answer, str):
                raise SpecDebugError(f"{answer} (on node {slot.host})")
            return trial, answer

    def close(self) -> None:
        """End what runs, and leave the cluster (or end it, if it was started here)."""
        if not self._open:
            return
        self._open = False
        ray = self._ray
        try:
            with contextlib.suppress(ray.exceptions.RayError):
                stopping = [slot.actor.stop.remote() for slot in self._busy.values() if slot.trial is not None]
                if stopping:
                    ray.wait(stopping, num_returns=len(stopping), timeout=_STOP_S)
                for slot in (*self._busy.values(), *self._idle):
                    ray.kill(slot.actor)
        finally:
            ray.shutdown()

    def _dispatch(self) -> None:
        while self._queue and self._idle:
            slot = self._idle.pop()
            slot.trial = self._queue.popleft()
            self._busy[slot.actor.run.remote(slot.trial)] = slot
        starting = sum(slot.trial is None for slot in self._busy.values())
        for _ in range(min(self.capacity - len(self._busy), len(self._queue) - starting)):
            slot = _Slot(self._worker.remote())
            self._busy[slot.actor.prepare.remote(self._make, self._folder, self.identity)] = slot

    def _lose(self, slot: _Slot, error: Exception) -> None:
        """Take in that a worker is gone: its trial goes first in the queue."""
        # Ray takes a while to call a node dead, so what idles there is not trusted with the trial either.
        gone = [slot, *(one for one in self._idle if one.node == slot.node)]
        self._idle = [one for one in self._idle if one.node != slot.node]
        for one in gone:
            with contextlib.suppress(self._ray.exceptions.RayError):  # it may only have been out of reach
                self._ray.kill(one.actor)
        if slot.trial is None:
            self._failed_starts += 1
            if self._failed_starts >= ATTEMPTS:
                raise self._cannot_start(error)
            return
        self._queue.appendleft(slot.trial)
        self.rerun += 1
        if slot.node in self._nodes():
            number = slot.trial.number
            self._strikes[number] += 1
            if self._strikes[number] >= ATTEMPTS:
                why = f"trial {number} ended its worker {ATTEMPTS} times, last on node {slot.host}"
                raise SpecDebugError(f"{why}; does it need more memory than a node has? Ray says: {_short(error)}")

    def _cannot_start(self, error: Exception) -> SpecDebugError:
        hint = 'every node needs the same specdebug, installed with pip install "specdebug[ray]"'
        return SpecDebugError(f"the Ray cluster cannot start a worker: {_short(error)}; {hint}")

    def _nodes(self) -> dict[str, dict[str, float]]:
        nodes = {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}
        wanted = {"CPU": 1, **({"GPU": self._gpus} if self._gpus else {})}.items()
        return {name: has for name, has in nodes.items() if all(has.get(kind, 0) >= count for kind, count in wanted)}


@dataclass
class _Slot:
    """A worker as seen from here; without a trial it is idle, or getting ready."""

    actor: Any
    trial: Trial | None = None
    node: str = ""
    host: str = ""


class _Worker:
    """The part that runs on a node."""

    def prepare(self, make: Callable[[], TrialSource], folder: str, identity: str) -> tuple[str, str, str | None]:
        """Make the source. Return the node's id, its address, and what is wrong, if anything."""
        ray = import_ray()
        place = (ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            # Ray hides the GPUs from a task that asked for none; a command may use one, as it does without Ray.
            del os.environ["CUDA_VISIBLE_DEVICES"]
        try:
            os.chdir(folder)
        except OSError as error:
            return *place, f"{folder}: {error.strerror}; it needs the same files in the same place as this machine"
        try:
            self._source = make()
        except SpecDebugError as error:
            return *place, str(error)
        if self._source.identity != identity:
            others = "another specdebug, Python, content folder or command"
            return *place, f"it has {others} than this machine; make them the same"
        return *place, None

    def run(self, trial: Trial) -> TrialResult | str:
        """Make one trial; text says why there can be none."""
        try:
            self._source.start(trial)
            return self._source.wait()[1]
        except SpecDebugError as error:
            return str(error)

    def stop(self) -> None:
        """End what runs now, where it would outlive this process: commands have sessions of their own."""
        if isinstance(self._source, ThreadedSource):
            self._source.close()


def import_ray() -> Any:
    """Return Ray, told to keep quiet. Raises SpecDebugError if it is not installed."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise SpecDebugError(f'--executor ray needs Ray ({error}): pip install "specdebug[ray]"') from None
    return ray


def _connect(ray: Any, address: str, jobs: int | None) -> None:
    """Join a cluster, or start one. Raises SpecDebugError."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"num_cpus": jobs or cpu_count(), "object_store_memory": _STORE_BYTES, "include_dashboard": False}
    else:
        _require_listener(address)
    try:
        ray.init(address=address, **options)
    except Exception as error:  # of a dozen kinds, none of them documented
        what = "start a Ray cluster" if address == "local" else f"join the Ray cluster at {address}"
        raise SpecDebugError(f"cannot {what}: {_short(error)}") from error


def _require_listener(address: str) -> None:
    """Raise SpecDebugError unless HTTP/2 is spoken at ``host:port``: Ray itself would try for many minutes."""
    if address == "auto":
        return
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None:
        raise SpecDebugError(f"--ray-address must be HOST:PORT, ray://HOST:PORT or auto, got '{address}'")
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S) as server:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            server.sendall(_HELLO)
            answer = server.recv(9)
    except OSError as error:
        why = error.strerror or str(error)
        raise SpecDebugError(f"there is no Ray cluster at {address}: {why}; see `ray status` on its head") from None
    if answer[3:4] != _SETTINGS:
        hint = "its port is 6379 unless chosen otherwise, that of ray:// 10001; 8265 is the dashboard"
        raise SpecDebugError(f"what answers at {address} is no Ray cluster; {hint}")


def _short(error: Exception) -> str:
    """Return what Ray says, on one line: the last one of a worker's traceback, the first of anything else."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if "Traceback" in str(error) or "ray::" in str(error) else 0].rstrip(".")[:300]
