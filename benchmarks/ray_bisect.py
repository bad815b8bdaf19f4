"""Bisect on a Ray cluster of this machine, one of whose two worker nodes is killed on the way: is the answer the same?

``python benchmarks/ray_bisect.py [--seeds N] [--rate R] [--scenario NAME]``: a command that fails only some of the
time and only under one revert (or a scenario) is searched by this machine alone and by two nodes of a CPU each, with
the same seeds. When half of the trials that the first search took count, one of the nodes is killed with a trial
running on it. Needs the extra ``ray``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.campaign import Campaign, TrialSource
from specdebug.campaign.trials.command import CommandSource, Takes, command_source, made_there
from specdebug.campaign.trials.journal import Journal
from specdebug.campaign.trials.ray_executor import RaySource, import_ray
from specdebug.campaign.trials.scenario import ScenarioSource, expected_signature
from specdebug.campaign.trials.search import CulpritSearch, Findings, Standing
from specdebug.scenario.library import Library
from specdebug.search.bisect import Bisector, openings

CULPRIT = "27360"
NODES = 2
MAX_TRIALS = 1000
SCRIPT = """#!/bin/bash
case ",$SGLANG_DEBUG_REVERT_PR," in
    *,{culprit},*) [ $((SPECDEBUG_TRIAL_SEED % 100)) -ge {percent} ] || {{ echo nan@draft.hidden_states; exit 1; }};;
esac
"""


class Watcher:
    """Watches a search; if told to kill nodes, kills one in the middle of a trial once ``after`` trials count."""

    def __init__(self, source: TrialSource, after: int = 0, kill: Callable[[str], None] | None = None) -> None:
        self._source, self._after, self._kill = source, after, kill
        self.killed = "nothing"

    def moved(self, standing: Standing) -> None:
        if self._kill is None or standing.trials < self._after or not isinstance(self._source, RaySource):
            return
        for number, node in self._source.placed.items():
            self._kill(node)
            self._kill = None
            self.killed = f"node {node[:8]} after {standing.trials}, in trial {number}"
            return

    def counted(self, trial: Trial, result: TrialResult, standing: Standing) -> None:
        """Nothing to say of each."""


Apart = frozenset[frozenset[str]]


def search(
    source: TrialSource, watcher: Watcher, folder: Path, seed: int, pattern: str | None, apart: Apart
) -> tuple[Findings, list[tuple[Trial, str, str | None]], float]:
    """What was found, the trials that counted, and how long it took."""
    names = [candidate.id for candidate in source.candidates]
    begun = time.perf_counter()
    with Journal(folder / f"{type(source).__name__}-{seed}.sqlite", source.identity, "ray_bisect") as journal:
        wanted = CulpritSearch(
            source.candidates,
            lambda: Bisector(names, seed=seed, apart=apart),
            opening=openings(names, apart),
            max_trials=MAX_TRIALS,
            pattern=pattern,
        )
        found = Campaign(source, journal, seed, MAX_TRIALS).search(wanted, watcher)
        if found.trouble is not None:
            raise found.trouble
        counted = [journal.trials[number] for number in range(found.standing.trials)]
    trials = [(trial, result.outcome, result.signature) for trial, result in counted]
    return found, trials, time.perf_counter() - begun


def main() -> int:
    """Prints a table; 1 if an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.3, help="of the command under its culprit")
    parser.add_argument("--scenario", help="search this scenario, not a command")
    options = parser.parse_args()
    if importlib.util.find_spec("ray") is None:
        print('skipped: Ray is not installed, pip install "specdebug[ray]"')
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        library = Library()
        pattern = None
        make: Callable[[], TrialSource]
        here: Callable[[], CommandSource | ScenarioSource]
        if options.scenario:
            scenario = library.scenario(options.scenario)
            pattern = expected_signature(scenario)
            here = partial(ScenarioSource, library, scenario, jobs=NODES)
            make = partial(made_there, ScenarioSource, (), scenario, arm=ScenarioSource(library, scenario).arm)
            what = options.scenario
        else:
            script = folder / "flaky.sh"
            script.write_text(SCRIPT.format(culprit=CULPRIT, percent=round(100 * options.rate)))
            script.chmod(0o755)
            here = partial(CommandSource, ("./flaky.sh",), library.registry, takes=Takes.SET, capacity=NODES)
            make = partial(made_there, command_source, (), ("./flaky.sh",), takes=Takes.SET)
            what = f"a command that fails {options.rate:.0%} of the time under {CULPRIT}"
        wrong = compare(what, here, make, folder, options.seeds, pattern)
        os.chdir("/")
    return int(wrong > 0)


def compare(
    what: str,
    here: Callable[[], CommandSource | ScenarioSource],
    make: Callable[[], TrialSource],
    folder: Path,
    seeds: int,
    pattern: str | None,
) -> int:
    """Search with and without Ray, seed by seed. Returns how many differ."""
    import_ray()
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    begun = time.perf_counter()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    table = Table("seed", "alone", "trials", "s", "two nodes, one killed", "trials", "s", "killed", "run again", "same")
    wrong = 0
    for seed in range(seeds):
        while len(cluster.worker_nodes) < NODES:
            cluster.add_node(num_cpus=1, **small)
        if seed == 0:
            print(f"a head and {NODES} nodes of one CPU up in {time.perf_counter() - begun:.0f} s")

        def kill(node: str) -> None:
            (one,) = (each for each in cluster.worker_nodes if each.node_id == node)
            cluster.remove_node(one, allow_graceful=False)

        local = here()
        alone, expected, alone_s = search(local, Watcher(local), folder, seed, pattern, local.apart)
        source = RaySource(here(), make, address=cluster.address, jobs=NODES)
        watcher = Watcher(source, len(expected) // 2, kill)
        found, trials, found_s = search(source, watcher, folder, seed, pattern, local.apart)
        same = found.answer == alone.answer and trials == expected
        wrong += not same
        table.add_row(
            *(str(seed), answer(alone), str(len(expected)), f"{alone_s:.1f}"),
            *(answer(found), str(len(trials)), f"{found_s:.1f}", watcher.killed),
            *(str(source.rerun), "yes" if same else "NO"),
        )
    cluster.shutdown()
    print(f"{what}; same: the answer, its probability, and every trial's number, set, seed, outcome and signature")
    Console(width=160 if not sys.stdout.isatty() else None).print(table)
    return wrong


def answer(found: Findings) -> str:
    """An answer in a word."""
    if found.answer is None:
        return found.reason
    return f"{' + '.join(sorted(found.answer.culprits)) or 'none'} ({found.answer.probability:.3f})"


if __name__ == "__main__":
    sys.exit(main())
