"""Trials on a Ray cluster of this machine: the same answer as without, whatever becomes of the nodes."""

import _thread
import importlib.util
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult, trial_seed
from specdebug.campaign.trials.campaign import TrialSource
from specdebug.campaign.trials.command import Takes, command_source, made_there
from specdebug.campaign.trials.journal import Journal
from specdebug.campaign.trials.ray_executor import RaySource, import_ray
from specdebug.campaign.trials.search import Findings, Standing
from specdebug.cli.main import run
from specdebug.scenario.library import Library
from specdebug.search.bisect import Bisector
from tests.campaign.trials.searches import find

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason='Ray is not installed: pip install "specdebug[ray]"'
)
on_a_cluster = [needs_ray, pytest.mark.ray, pytest.mark.slow]

JOBS = 2
KILLED = 6
"""The trial whose node goes."""

FLAKY = """#!/bin/bash
echo "$SPECDEBUG_TRIAL_SEED" >>ran
if [ "$SPECDEBUG_TRIAL_SEED" = "$(cat hang 2>/dev/null)" ] && mkdir hung 2>/dev/null; then
    echo >begun
    read -r never <never
fi
case ",$SGLANG_DEBUG_REVERT_PR," in
    *,27360,*) if [ $((SPECDEBUG_TRIAL_SEED % 10)) -lt 5 ]; then echo 'found nan@draft.hidden_states'; exit 1; fi;;
esac
exit 0
"""


class Nodes:
    """A cluster whose head runs no trials, and two nodes that run one each."""

    def __init__(self) -> None:
        import_ray()
        from ray.cluster_utils import Cluster

        small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
        self._small = small
        self.address: str = self._cluster.address

    def fill(self) -> None:
        while len(self._cluster.worker_nodes) < JOBS:
            self._cluster.add_node(num_cpus=1, **self._small)

    def kill(self, name: str) -> None:
        """One node, by Ray's id; no goodbyes."""
        (node,) = (one for one in self._cluster.worker_nodes if one.node_id == name)
        self._cluster.remove_node(node, allow_graceful=False)

    def end(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def shared() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.end()


@pytest.fixture
def nodes(shared: Nodes) -> Nodes:
    shared.fill()
    return shared


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def script(text: str, name: str = "cmd.sh") -> tuple[str, ...]:
    Path(name).write_text(text)
    Path(name).chmod(0o755)
    return (f"./{name}",)


def on_ray(command: tuple[str, ...], nodes: Nodes, **options: Any) -> RaySource:
    make = partial(made_there, command_source, (), command, takes=Takes.SET)
    return RaySource(make(), make, address=nodes.address, **options)


class Watcher:
    """Kills the node of a trial once that has begun."""

    def __init__(self, nodes: Nodes | None = None, source: RaySource | None = None) -> None:
        self._nodes, self._source = nodes, source

    def moved(self, standing: Standing) -> None:
        if self._nodes is not None and self._source is not None and KILLED in self._source.placed:
            Path("begun").read_text()  # a pipe
            self._nodes.kill(self._source.placed[KILLED])
            self._nodes = None

    def counted(self, trial: Trial, result: TrialResult, standing: Standing) -> None:
        pass


def search(source: TrialSource, journal: str, watcher: Watcher) -> tuple[Findings, list[tuple[Trial, str, str | None]]]:
    """What was found, and the trials that counted."""
    names = [candidate.id for candidate in source.candidates]
    with Journal(Path(journal), source.identity, "a test") as kept:
        opening = (frozenset(names),)
        findings = find(source, kept, lambda: Bisector(names), opening=opening, seed=0, max_trials=300, watcher=watcher)
        counted = [kept.trials[number] for number in range(findings.standing.trials)]
    return findings, [(trial, result.outcome, result.signature) for trial, result in counted]


class TestOnACluster:
    pytestmark = on_a_cluster

    def test_a_node_killed_midway_changes_nothing(self, nodes: Nodes) -> None:
        command = script(FLAKY)
        here, expected = search(
            command_source(Library(), command, takes=Takes.SET, capacity=JOBS), "here.sqlite", Watcher()
        )
        Path("ran").unlink()
        os.mkfifo("begun")
        os.mkfifo("never")
        Path("hang").write_text(str(trial_seed(0, KILLED)))
        source = on_ray(command, nodes, jobs=JOBS)
        there, trials = search(source, "there.sqlite", Watcher(nodes, source))
        assert there.trouble is None
        assert there.answer == here.answer
        assert there.answer is not None
        assert there.answer.culprits == {"27360"}
        assert trials == expected
        assert source.rerun == 1
        ran = Counter(map(int, Path("ran").read_text().split()))
        assert {seed: count for seed, count in ran.items() if count > 1} == {trial_seed(0, KILLED): 2}

    def test_what_runs_ends_when_it_is_closed(self, nodes: Nodes) -> None:
        os.mkfifo("begun")
        source = on_ray(script("#!/bin/bash\necho $$ >begun\nexec sleep 1000\n"), nodes)
        assert source.capacity >= JOBS  # a CPU each; Ray takes a while to call those dead that another test killed
        source.start(Trial(0, frozenset(), 1))
        told: list[int] = []

        def interrupt() -> None:
            told.append(int(Path("begun").read_text()))
            _thread.interrupt_main()

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            source.wait()
        thread.join()
        source.close()
        source.close()
        with pytest.raises(ProcessLookupError):
            os.kill(told[0], 0)

    def test_a_node_that_is_not_as_this_machine_is_told(self, nodes: Nodes) -> None:
        command = script("#!/bin/bash\nexit 0\n")
        source = on_ray(command, nodes)
        Path("cmd.sh").write_text("#!/bin/bash\nexit 1\n")
        source.start(Trial(0, frozenset(), 1))
        with pytest.raises(SpecDebugError, match=r"node [\d.]+ of the .* it has another .* than this machine"):
            source.wait()
        Path("cmd.sh").unlink()
        source.start(Trial(1, frozenset(), 1))
        with pytest.raises(SpecDebugError, match=r"there is no command \./cmd\.sh"):
            source.wait()
        source.close()


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert run(["bisect", *argv, "--", "true"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") <= 3  # it may have looked at what the command imports, and said that this is nothing
    return err


def test_without_ray_the_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert 'pip install "specdebug[ray]"' in complaint(capsys, "--executor", "ray")


def test_options_that_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert "of no use without --executor ray" in complaint(capsys, "--ray-address", "auto")
    assert "on this machine" in complaint(capsys, "--executor", "ray", "--over", "commits", "--good", "HEAD")


@needs_ray
@pytest.mark.ray
def test_an_address_where_there_is_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    def told(address: str) -> str:
        return complaint(capsys, "--executor", "ray", "--ray-address", address)

    assert "must be HOST:PORT" in told("somewhere")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert f"what answers at {address} is no Ray cluster" in told(address)
        thread.join()
    assert f"there is no Ray cluster at {address}: Connection refused" in told(address)
