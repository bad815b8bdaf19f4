"""The detection matrix for a person: its progress and its result."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import IO

from rich.console import Group, RenderableType
from rich.text import Text

from specdebug.campaign.loops.fault_matrix import Case, CaseCheck, FaultMatrix
from specdebug.campaign.loops.fault_runs import MatrixStanding
from specdebug.report.lines import PlainLines
from specdebug.report.live import LiveDisplay
from specdebug.report.tables import Column, Listing, columns, line
from specdebug.report.words import counted, replaced, some

COLUMNS = (
    Column("fault", key=True),
    *columns("effect", "injected", "caught", "within a step", "worst lag"),
    Column("caught by", prose=True),
)
MAX_DETECTORS = 3
MAX_PROBLEMS = 20
MAX_LIVE = 5
TWENTIETHS = 20
"""Plain output: lines about the progress, in all."""


class PlainFaults(PlainLines):
    """A line for each problem, and one whenever another twentieth is done."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream)
        self._said = 0

    def moved(self, standing: MatrixStanding) -> None:
        """Say the problems of the run that has ended."""
        for problem in standing.problems:
            self._say(problem)
        twentieth = standing.made * TWENTIETHS // max(standing.planned, 1)
        if twentieth > self._said:
            self._said = twentieth
            self._say(standing_text(standing))


class LiveFaults(LiveDisplay):
    """The standing, the time left, and the latest problems."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream)
        self._began = time.monotonic()
        self._standing: MatrixStanding | None = None
        self._problems: tuple[str, ...] = ()

    def moved(self, standing: MatrixStanding) -> None:
        """Draw this standing from now on."""
        self._standing = standing
        self._problems = (*self._problems, *standing.problems)[-MAX_LIVE:]

    def _draw(self) -> RenderableType:
        standing, problems = self._standing, self._problems
        text = "starting"
        if standing is not None:
            text = standing_text(standing) + left_text(standing, time.monotonic() - self._began)
        return Group(Text(f"faults verify: {text}", "bold"), *(line(each, "red") for each in problems))


def faults_progress(stream: IO[str]) -> PlainFaults | LiveFaults:
    """The display that suits the stream."""
    return LiveFaults(stream) if stream.isatty() else PlainFaults(stream)


def left_text(standing: MatrixStanding, seconds: float) -> str:
    """The time that is left at the pace so far, ``seconds`` having passed; nothing while there is no pace yet."""
    if standing.made < standing.planned / 100:
        return ""
    left = seconds / max(standing.made, 1) * (standing.planned - standing.made)
    return f", some {left / 60:.0f} min left" if left >= 90 else f", some {left:.0f} s left"


def standing_text(standing: MatrixStanding) -> str:
    """The progress in one line."""
    caught = f"{standing.detected} of {standing.effective} effective injections caught"
    return f"{standing.made} of {standing.planned} runs, {caught}, {counted(standing.found_wrong, 'problem')}"


def render_fault_matrix(matrix: FaultMatrix) -> RenderableType:
    """A row for each class that was run, then the problems."""
    rows = [_row(check) for check in matrix.checks if check.runs]
    problems = [line(f"  {each}", "red") for each in matrix.problems[:MAX_PROBLEMS]]
    if len(matrix.problems) > MAX_PROBLEMS:
        problems.append(line(f"  and {len(matrix.problems) - MAX_PROBLEMS} more (see --json)", "dim"))
    alone = [f"{name}: {_by_worker(cases)}" for name, cases in matrix.sole.items()]
    return Group(
        Listing(COLUMNS, rows),
        Text("caught by nothing else:", "bold"),
        *(line(f"  {each}") for each in alone or ["nothing"]),
        line(f"reached, and caught nothing of this: {', '.join(matrix.idle_probes) or 'none'}", "dim"),
        *(line(f"left out ({why}): {_by_worker(cases)}") for why, cases in _left_out(matrix).items()),
        *problems,
        *(line(each, "dim") for each in replaced(matrix.not_engine_code)),
    )


def _left_out(matrix: FaultMatrix) -> dict[str, list[Case]]:
    """What has no row, by why it has none."""
    whys: dict[str, list[Case]] = {}
    for case, why in matrix.left_out.items():
        whys.setdefault(why, []).append(case)
    return whys


def _by_worker(cases: Iterable[Case]) -> str:
    """What is done, each with the workers that it is done to, in brackets."""
    workers: dict[str, list[str]] = {}
    for case in cases:
        workers.setdefault(case.damage, []).extend([] if case.worker is None else [case.worker.name])
    return ", ".join(f"{damage} ({', '.join(those)})" if those else damage for damage, those in workers.items())


def closing_line(matrix: FaultMatrix) -> str:
    """The matrix in one line."""
    cut = f"stopped after {matrix.made} of {matrix.made + matrix.missing} runs; " if matrix.missing else ""
    rows = counted(sum(bool(check.runs) for check in matrix.checks), "row")
    return (
        f"{cut}{rows}: {matrix.detected} of {matrix.effective} effective injections caught, "
        f"{matrix.promptly} within a step; {len(matrix.false_alarms)} false alarms in {matrix.clean_steps} clean steps"
    )


def _row(check: CaseCheck) -> tuple[str, ...]:
    worst = check.to_dict()["worst_lag"]
    counts = ("-", "-") if check.kind.effect == "benign" else (str(check.detected), str(check.promptly))
    return (
        check.case.name,
        check.kind.effect,
        f"{sum(run.injected for run in check.runs)} of {len(check.runs)}",
        *counts,
        "-" if worst is None else str(worst),
        some([f"{name} ({count})" for name, count in check.caught_by.most_common()], MAX_DETECTORS),
    )
