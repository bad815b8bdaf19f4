"""Measure what it costs to look at a release in a worker: trials with every default oracle and probe, and the same
steps alone.

``python benchmarks/looking_cost.py [--target TARGET] [--trials N] [SCENARIO ...]``: each trial is a fork of a built
engine; both kinds are run in turns, and the processor time of whole trials is compared, from the fork to the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics

from rich.console import Console
from rich.table import Table

from specdebug.campaign.loops.replay import ArmRun, Choices, plan, run_arms
from specdebug.campaign.preload import PRELOAD
from specdebug.scenario.grammar import OracleSpec
from specdebug.scenario.library import Library
from specdebug.targets.settings import parse_target
from specdebug.workers.pool import WorkerPool

SCENARIOS = ("draft_positions", "topk_page_table")
ASKED = 1.5
ALONE = "alone"


def alone(run: ArmRun) -> ArmRun:
    """The run with nothing that looks."""
    off, scenario = OracleSpec.none(), run.scenario
    arms = {name: dataclasses.replace(arm, oracles=off) for name, arm in scenario.arms.items()}
    bare = dataclasses.replace(scenario, arms=arms, oracles=off)
    return dataclasses.replace(run, scenario=bare, packs=(), expectation=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS)
    parser.add_argument("--target", default="sglang==0.5.23")
    parser.add_argument("--trials", type=int, default=7)
    words = parser.parse_args()
    library, target = Library(), parse_target(words.target)
    table = Table("scenario", "steps alone, s", "with all that looks, s", f"times (asked: at most {ASKED})")
    with WorkerPool(1, PRELOAD) as pool:
        for name in words.scenarios:
            scenario = library.scenario(name)
            (whole,) = plan(scenario, Choices(arms=(next(iter(scenario.arms)),), target=target), library)
            spent: dict[str, list[float]] = {ALONE: [], "whole": []}
            kinds = {ALONE: alone(whole), "whole": whole}
            runs = [
                dataclasses.replace(run, key=f"{kind} {number}", followed=True)
                for number in range(words.trials + 1)
                for kind, run in kinds.items()
            ]
            results, _ = run_arms(pool, library, runs)
            for result in results[len(kinds) :]:  # the first of each makes what the others are forked from
                assert result.outcome.verdict == "pass", result.outcome.detail
                spent[result.run.key.split()[0]].append(result.outcome.metrics.processor_s)
            one, other = (statistics.median(spent[kind]) for kind in kinds)
            table.add_row(name, f"{one:.2f}", f"{other:.2f}", f"{other / one:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
