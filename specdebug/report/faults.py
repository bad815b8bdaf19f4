"""Faults: the classes there are, and the matrix of what caught which."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import IO

from rich.console import Group, RenderableType
from rich.text import Text

from specdebug.campaign.loops.fault_matrix import Case, CaseCheck, FaultMatrix, MatrixStanding
from specdebug.faults.model import NEEDS, FaultClass
from specdebug.report.html.heatmap import heat_map
from specdebug.report.listings import listing
from specdebug.report.parts import Column, Line, Part, Plot, Report, Section, Styled, Table, lines, table
from specdebug.report.progress import Display
from specdebug.report.terminal import line
from specdebug.report.words import NOT_ENGINE_CODE, counted, dash, replaced, some

POINTS = {
    "before": "between two steps, before one",
    "after": "between two steps, after one",
    "site": "at a probe's site",
    "lengths": "when a step publishes its lengths",
    "readback": "when the host reads what was accepted",
    "move": "when accepted KV is moved to the front",
    "free": "when slots are released",
    "attach": "when a request takes a cached prefix",
    "release": "when a request gives its slots back",
}
EFFECTS = {
    "corrupts": "damage that must be seen",
    "benign": "none: a sound engine goes on as if nothing had happened",
    "kills": "the worker's end",
}
CHECKS = (
    Column("fault", "key", lambda check: check.case.name),
    Column("effect", of=lambda check: check.kind.effect),
    Column("injected", of=lambda check: f"{sum(run.injected for run in check.runs)} of {len(check.runs)}"),
    Column("caught", of=lambda check: "-" if check.kind.effect == "benign" else check.detected),
    Column("within a step", of=lambda check: "-" if check.kind.effect == "benign" else check.promptly),
    Column("worst lag", of=lambda check: dash(check.to_dict()["worst_lag"])),
    Column("caught by", "prose", lambda check: _caught_by(check)),
)
MAX_DETECTORS = 3
MAX_PROBLEMS = 20
MAX_LIVE = 5
TWENTIETHS = 20
"""Plain output: lines about the progress, in all."""


def in_graphs(kind: FaultClass) -> str:
    """The sites at which it can act inside a CUDA graph, in a few words; nothing if it can at all of its sites."""
    captured = kind.captured_sites
    others = [site for site in kind.sites if site not in captured]
    if not captured:
        return ""
    if not others:
        return "no"
    return f"at {others[0]}" if kind.sites[0] in captured else f"not at {len(captured)} of {len(kind.sites)} sites"


def fault_list(kinds: Iterable[FaultClass]) -> Report:
    """One row a class."""
    kinds = list(kinds)
    heads = (
        Column("fault", "key", lambda kind: kind.name),
        Column("family", of=lambda kind: kind.family),
        Column("effect", of=lambda kind: kind.effect),
        Column("needs", "prose", lambda kind: ", ".join(kind.needs)),
        Column("with CUDA graphs", of=in_graphs),
        Column("what it does", "prose", lambda kind: kind.summary),
    )
    return listing("faults list", [table(kinds, *heads)], [kind.to_dict() for kind in kinds])


def fault_shown(kind: FaultClass) -> Report:
    """One class in full."""
    told = [f"{kind.name} ({kind.family})", f"  {kind.summary}", f"  acts          {POINTS[kind.point]}"]
    for place, site in enumerate(kind.sites):
        captured = site in kind.captured_sites
        notes = [*(["the default"] if place == 0 else []), *(["not inside a CUDA graph"] if captured else [])]
        label, remark = "site" if place == 0 else "", f" ({', '.join(notes)})" if notes else ""
        told.append(f"  {label:<13} {site}{remark}")
    told.append(f"  effect        {EFFECTS[kind.effect]}")
    told.append(f"  needs         {', '.join(NEEDS[need] for need in kind.needs) or 'nothing in particular'}")
    told.append(f"  addressed by  {', '.join(kind.keys)}")
    told.append(f"  as in         specdebug replay SCENARIO --fault {kind.name}:step=3..9")
    return listing("faults show", lines(told, fold=False), kind.to_dict())


class FaultsProgress(Display):
    """The standing, the time left, and the latest problems; elsewhere a line for each problem, and now and then one."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream)
        self._said = 0
        self._standing: MatrixStanding | None = None
        self._problems: tuple[str, ...] = ()

    def moved(self, standing: MatrixStanding) -> None:
        """Say the problems of the run that has ended, and the standing whenever another twentieth is done."""
        self._standing = standing
        self._problems = (*self._problems, *standing.problems)[-MAX_LIVE:]
        for problem in standing.problems:
            self.say(problem)
        twentieth = standing.made * TWENTIETHS // max(standing.planned, 1)
        if twentieth > self._said:
            self._said = twentieth
            self.say(standing_text(standing))

    def doing(self) -> str:
        return standing_text(self._standing) if self._standing else super().doing()

    def _draw(self) -> RenderableType:
        standing, problems = self._standing, self._problems
        text = "starting"
        if standing is not None:
            text = standing_text(standing) + left_text(standing, time.monotonic() - self.began)
        return Group(Text(f"faults verify: {text}", "bold"), *(line(each, "red") for each in problems))


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


def faults_report(matrix: FaultMatrix, wall_s: float) -> Report:
    """A row for each class that was run, then what is wrong."""
    summary, injections = closing_line(matrix), sum(len(check.runs) for check in matrix.checks)
    return Report(
        command="faults verify",
        title="Detection matrix",
        summary=summary,
        exit_code=matrix.exit_code,
        document=matrix.to_dict(),
        parts=(*_told(matrix), Line(summary)),
        chips=_chips(matrix),
        facts={
            "rows": str(sum(bool(check.runs) for check in matrix.checks)),
            "detectors": str(len(matrix.caught_by)),
            "injections": str(injections),
            "without effect": str(injections - matrix.effective),
            "duration": f"{wall_s:.1f} s",
            "exit code": str(matrix.exit_code),
            NOT_ENGINE_CODE: "; ".join(matrix.not_engine_code),
        },
        page=lambda: _page(matrix),
        seconds=wall_s,
    )


def _told(matrix: FaultMatrix) -> list[Part]:
    whys: dict[str, list[Case]] = {}
    for case, why in matrix.left_out.items():
        whys.setdefault(why, []).append(case)
    more = len(matrix.problems) - MAX_PROBLEMS
    return [
        _rows(matrix),
        _alone(matrix),
        Line(f"reached, and caught nothing of this: {', '.join(matrix.idle_probes) or 'none'}", "dim"),
        *lines(f"left out ({why}): {_by_worker(cases)}" for why, cases in whys.items()),
        *lines((f"  {each}" for each in matrix.problems[:MAX_PROBLEMS]), "fail"),
        *lines([f"  and {more} more (see --json)"] if more > 0 else [], "dim"),
        *lines(replaced(matrix.not_engine_code), "dim"),
    ]


def _alone(matrix: FaultMatrix) -> Section:
    alone = [f"{name}: {_by_worker(cases)}" for name, cases in matrix.sole.items()]
    return Section("caught by nothing else:", list(lines(alone or ["nothing"])))


def _chips(matrix: FaultMatrix) -> list[Styled]:
    missed, caught = matrix.effective - matrix.detected, Styled("every effective fault was caught", "pass")
    chips = [caught if matrix.effective else Styled("nothing took effect", "unknown")]
    if missed:
        chips = [Styled(f"{missed} missed", "fail")]
    if (others := len(matrix.problems) - missed) > 0:
        chips.append(Styled(counted(others, "other problem"), "fail"))
    if matrix.missing:
        chips.append(Styled(f"{matrix.missing} runs not made", "unknown"))
    return chips


def _page(matrix: FaultMatrix) -> list[Part]:
    said = (
        "Percent of the effective injections of a class that each detector saw. The first column is any of them; "
        "what a detector never saw is blank."
    )
    plot = heat_map(matrix)
    drawn: Part = Line("Nothing was caught.") if plot is None else Plot(plot, said)
    return [
        Section("What caught what", [drawn, Section("The matrix as a table", [_rows(matrix)], folded=True)]),
        _alone(matrix),
        *([Section("What is wrong", list(lines(matrix.problems)))] if matrix.problems else []),
    ]


def _rows(matrix: FaultMatrix) -> Table:
    return table((check for check in matrix.checks if check.runs), *CHECKS)


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


def _caught_by(check: CaseCheck) -> str:
    return some([f"{name} ({count})" for name, count in check.caught_by.most_common()], MAX_DETECTORS)
