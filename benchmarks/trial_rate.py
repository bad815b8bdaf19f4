"""How many trials of a shipped flaky scenario a second, in warm workers, and what a second job adds.

``python benchmarks/trial_rate.py [--seconds S] [NAME ...]``: every flaky scenario, half of its trials with the fix
reverted. Rates with one job and with two are taken in turn, so that a slow spell of the machine hits both. On a machine
that others use too, the processor time of a trial (parent, fork server and worker) tells more than its wall time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from specdebug.base.content import content_files
from specdebug.base.trial import Trial
from specdebug.campaign.trials.scenario import ScenarioSource
from specdebug.scenario.library import Library

ASKED_RATE, ASKED_GAIN = 5.0, 1.7
ROUNDS = 3


class Runner:
    """Keeps a source busy with trials of ever new seeds."""

    def __init__(self, library: Library, name: str, jobs: int) -> None:
        scenario = library.scenario(name)
        reverted = frozenset(map(str, scenario.arms["reverted"].revert))
        self._sets = (frozenset[str](), reverted)
        self._source = ScenarioSource(library, scenario, jobs=jobs)
        self._number = 0
        self.run(0.0)  # starts the fork server

    def run(self, seconds: float) -> tuple[float, float]:
        """Trials a second of wall time, and processor seconds a trial."""
        began, spent, first = time.monotonic(), _processor_s(), self._number
        for _ in range(self._source.capacity):
            self._start()
        ended = 0
        while time.monotonic() - began < seconds:
            self._source.wait()
            ended += 1
            self._start()
        while ended < self._number - first:
            self._source.wait()
            ended += 1
        return ended / (time.monotonic() - began), (_processor_s() - spent) / ended

    def close(self) -> None:
        self._source.close()

    def _start(self) -> None:
        self._source.start(Trial(self._number, self._sets[self._number % 2], self._number))
        self._number += 1


def _processor_s() -> float:
    """Of this process, its fork servers and their workers that have ended."""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each of a scenario's six measurements")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    library = Library()
    table = Table(title=f"trials a second in warm workers, {os.cpu_count()} cores, median of {ROUNDS}")
    for column in ("scenario", "1 job", "2 jobs", "gain", "processor s a trial"):
        table.add_column(column, justify="left" if column == "scenario" else "right")
    rates, gains = [], []
    for name in arguments.names or [name for name in content_files("scenarios") if name.startswith("flaky_")]:
        runners = [Runner(library, name, jobs) for jobs in (1, 2)]
        measured = [[runner.run(arguments.seconds) for runner in runners] for _ in range(ROUNDS)]
        for runner in runners:
            runner.close()
        one, two = (statistics.median(both[jobs][0] for both in measured) for jobs in (0, 1))
        gain = statistics.median(both[1][0] / both[0][0] for both in measured)
        cost = min(both[0][1] for both in measured)
        table.add_row(name, f"{one:.1f}", f"{two:.1f}", f"{gain:.2f}", f"{cost:.3f}")
        rates.append(one)
        gains.append(gain)
    Console(width=100).print(table)
    load = os.getloadavg()[0]
    print(f"one job: {min(rates):.1f} to {max(rates):.1f} a second, asked at least {ASKED_RATE:g} a core")
    print(f"two jobs: {statistics.median(gains):.2f} times one (median of scenarios), asked at least {ASKED_GAIN}")
    print(f"load of the machine at the end: {load:.1f}")


if __name__ == "__main__":
    main()
