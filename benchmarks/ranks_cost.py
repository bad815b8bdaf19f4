"""Measure what a trial on several ranks costs beside one on a single rank, in processor time of all its processes.

``python benchmarks/ranks_cost.py [--target TARGET] [--trials N] [SCENARIO ...]``: trials of the scenario as it is and
of the same with one rank, in turns, each in a worker that has the engine imported and builds it.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics

from rich.console import Console
from rich.table import Table

from specdebug.campaign.loops.replay import ArmRun, Choices, plan, run_arms
from specdebug.campaign.preload import PRELOAD
from specdebug.scenario.library import Library
from specdebug.targets.ranks.layout import KEYS
from specdebug.targets.settings import parse_target
from specdebug.workers.pool import WorkerPool

SCENARIOS = ("ranks/tp2_eagle", "ranks/dp2_idle_mtp")
ASKED = 3.0
WARM = "imported"


def alone(run: ArmRun) -> ArmRun:
    """The run on one rank."""
    scenario = run.scenario
    engine = {key: value for key, value in scenario.engine.items() if key not in KEYS}
    return dataclasses.replace(run, scenario=dataclasses.replace(scenario, engine=engine), expectation=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS)
    parser.add_argument("--target", default="sglang==0.5.23")
    parser.add_argument("--trials", type=int, default=5)
    words = parser.parse_args()
    library, target = Library(), parse_target(words.target)
    table = Table("scenario", "one rank, s", "several, s", f"times (asked: at most {ASKED:g})")
    with WorkerPool(1, PRELOAD) as pool:
        for name in words.scenarios:
            scenario = library.scenario(name)
            (several,) = plan(scenario, Choices(arms=(next(iter(scenario.arms)),), target=target), library)
            kinds = {"one": alone(several), "several": several}
            runs = [
                dataclasses.replace(run, key=f"{kind} {number}")
                for number in range(words.trials)
                for kind, run in kinds.items()
            ]
            spent: dict[str, list[float]] = {kind: [] for kind in kinds}
            for result in run_arms(pool, library, runs)[0]:
                assert result.outcome.verdict == "pass", result.outcome.detail
                assert result.outcome.warm == WARM, result.outcome.warm
                spent[result.run.key.split()[0]].append(result.outcome.metrics.processor_s)
            one, other = (statistics.median(spent[kind]) for kind in kinds)
            table.add_row(name, f"{one:.2f}", f"{other:.2f}", f"{other / one:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
