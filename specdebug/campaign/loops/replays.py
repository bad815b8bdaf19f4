"""Replay several scenarios at once, with one pool of workers and one answer; select arms by an expression over names,
as ``pytest -k`` has it, or those that failed when they last ran."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

from specdebug.base import interrupts
from specdebug.base.errors import ContentError, SpecDebugError
from specdebug.base.yamlio import one_line
from specdebug.campaign.loops.replay import (
    ArmResult,
    ArmRun,
    Choices,
    LeftOut,
    PlannedRuns,
    Progress,
    Ran,
    Replay,
    RunContent,
    Watched,
    as_it_should,
    planned,
    refusal,
    replay,
    run_through,
)
from specdebug.scenario.grammar import Scenario
from specdebug.targets.installs.store import Installed, keep_check
from specdebug.targets.settings import ReleasedEngine
from specdebug.verdict.outcome import EXIT_CODES
from specdebug.workers.pool import WorkerPool
from specdebug.workers.records import Lock, Record, RecordError

_WORD = re.compile(r"[^\s()]+")
_WANTED = "names are joined by 'and', 'or', 'not' and parentheses"
_DEEPEST = 200


@dataclass(frozen=True)
class Expression:
    """A selection that was read. A word holds for an arm when it is part of one of the arm's names (:func:`names_of`),
    in upper or lower case, ``-`` and ``_`` being the same. Words are joined by ``not``, ``and`` and ``or``, which bind
    in this order, and by parentheses. Each word stands in ``tree`` as a name of as many underscores, at its column."""

    text: str
    tree: ast.expr

    def holds(self, names: Iterable[str]) -> bool:
        return self._holds(self.tree, [_folded(name) for name in names])

    def _holds(self, node: ast.expr, names: Sequence[str]) -> bool:
        if isinstance(node, ast.BoolOp):
            every = (self._holds(value, names) for value in node.values)
            return all(every) if isinstance(node.op, ast.And) else any(every)
        if isinstance(node, ast.UnaryOp):
            return not self._holds(node.operand, names)
        word = _folded(self.text[node.col_offset : node.end_col_offset])
        return any(word in name for name in names)


def parse_expression(text: str) -> Expression:
    """Read a selection, such as ``cache and not (zero or reverted)``. Raises SpecDebugError."""
    text = re.sub(r"\s", " ", text).strip()
    try:
        tree = ast.parse(
            _WORD.sub(lambda word: word[0] if word[0] in ("not", "and", "or") else "_" * len(word[0]), text),
            mode="eval",
        ).body
    except SyntaxError as error:
        what = _WANTED if error.msg.startswith("invalid syntax") else error.msg
        raise _wrong(text, error.offset or len(text) + 1, what) from None
    except (RecursionError, MemoryError):
        raise _wrong(text, 1, "it is nested too deep") from None
    if _depth(tree) > _DEEPEST:
        raise _wrong(text, 1, "it is nested too deep")
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and not isinstance(node, ast.BoolOp | ast.UnaryOp | ast.Name):
            raise _wrong(text, node.col_offset + 1, _WANTED)
    return Expression(text, tree)


def _depth(tree: ast.expr) -> int:
    """How many operators stand in one another; found without recursion."""
    deepest, level = 0, [tree]
    while level:
        deepest += 1
        level = [child for node in level for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    return deepest


def names_of(run: ArmRun | LeftOut) -> tuple[str, ...]:
    """Return the names that select an arm's run: its scenario's name and file, and the arm."""
    return run.scenario.name, run.scenario.path.stem, run.arm, f"{run.scenario.path.stem}::{run.arm}"


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")


def _wrong(text: str, column: int, what: str) -> SpecDebugError:
    return SpecDebugError(f"-k '{one_line(text, 80)}': column {column}: {what}")


NAME = "last-failed.json"
_MAX_BYTES = 16 << 20
_WAIT_S = 10.0  # seconds to wait for another replay that writes to it


@dataclass
class LastFailed:
    """The record of arms that failed when they last ran, kept in a working directory from one replay to the next:
    ``arms`` by scenario file, by its full path. An arm leaves it by doing what it should; an arm that does not run
    stays."""

    arms: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> LastFailed:
        """Return the folder's record; one that is missing is empty. Raises RecordError."""
        record = _record_in(folder)
        try:
            files = record.read(_MAX_BYTES).entries()
            return cls({file: [arm.text() for arm in arms.items()] for file, arms in files.items()})
        except (FileNotFoundError, NotADirectoryError):
            return cls()
        except OSError as error:
            raise RecordError(f"cannot read {record}: {error.strerror}") from None
        except ContentError as error:
            raise record.damaged(error) from None

    @property
    def files(self) -> tuple[str, ...]:
        """The scenario files that are still there, of which an arm failed."""
        return tuple(file for file in self.arms if os.path.isfile(file))

    def has(self, run: ArmRun) -> bool:
        return run.arm in self.arms.get(_file_of(run), ())

    def take(self, results: Iterable[ArmResult]) -> None:
        for result in results:
            file, arm = _file_of(result.run), result.run.arm
            others = [name for name in self.arms.pop(file, []) if name != arm]
            if left := others if as_it_should(result) else [*others, arm]:
                self.arms[file] = left


def keep_failed(folder: Path, results: Sequence[ArmResult], make_folder: Callable[[], object]) -> str:
    """Take these results into the record of a folder, which ``make_folder`` makes. Return what is wrong with it, in
    words: a damaged record is made anew; one that cannot be written costs nothing else."""
    record, trouble = _record_in(folder), ""
    if not record.path.exists() and all(map(as_it_should, results)):
        return ""
    try:
        make_folder()
        with Lock(record, wait_s=0.0 if interrupts.was_heard() else _WAIT_S):
            try:
                kept = LastFailed.read(folder)
            except RecordError as error:
                kept, trouble = LastFailed(), f"{error}; it is made anew"
            before = {file: [*arms] for file, arms in kept.arms.items()}
            kept.take(results)
            if kept.arms != before or trouble:
                record.write(kept.arms)
    except RecordError as error:
        return str(error)
    return trouble


def _record_in(folder: Path) -> Record:
    return Record(folder / NAME, "the record of failures", "remove it")


def _file_of(run: ArmRun) -> str:
    return os.path.realpath(run.scenario.path)


@dataclass(frozen=True)
class Replays:
    """The results of several scenarios of which an arm has run, or that are not for their target, in the order they
    were named.

    A replay's ``wall_s`` is from its first arm's start to its last one's end, with other scenarios' arms beside them.
    ``missing`` is the number of arms that a signal kept from beginning (``interrupted``), or ``trouble`` from ending:
    a scenario itself is at fault, or no worker could be started.
    """

    replays: tuple[Replay, ...]
    wall_s: float
    missing: int = 0
    interrupted: bool = False
    trouble: SpecDebugError | None = None

    @property
    def exit_code(self) -> int:
        """128 + N after signal N; the trouble's; else the worst of all, where 1 is worse than 125."""
        if self.interrupted:
            return interrupts.exit_code()
        if self.trouble is not None:
            return self.trouble.exit_code
        codes = {replay.exit_code for replay in self.replays}
        return next((code for code in (EXIT_CODES["fail"], EXIT_CODES["unknown"]) if code in codes), 0)


def labels_of(scenarios: Sequence[Scenario]) -> list[str]:
    """Return different names for them: each file's, or its whole path where another file has that name."""
    count = Counter(scenario.path.stem for scenario in scenarios)
    return [path.stem if count[path.stem] == 1 else str(path) for path in (scenario.path for scenario in scenarios)]


def replay_all(
    pool: WorkerPool, library: RunContent, plans: Sequence[PlannedRuns], **watched: Unpack[Watched]
) -> Replays:
    """Run all of them until an error stops them. Keys of several scenarios' runs begin with the scenario's label."""
    began = time.monotonic()
    if len(plans) > 1:
        labels = labels_of([each.scenario for each in plans])
        plans = [
            dataclasses.replace(
                plan, runs=tuple(dataclasses.replace(run, key=f"{label}::{run.key}") for run in plan.runs)
            )
            for label, plan in zip(labels, plans, strict=True)
        ]
    ran = run_through(pool, library, [run for each in plans for run in each.runs], **watched)
    wall_s = time.monotonic() - began
    # a signal came before the arm began, or an error before it ended
    lacking = {run.key for each in plans for run in each.runs} - {
        result.run.key for result in ran.results if not result.outcome.interrupted or result.run.key in ran.spans
    }
    if len(plans) == 1:  # it is alone: the interrupt was its own
        (plan,) = plans
        answers = [Replay(plan.scenario, ran.results, wall_s, ran.interrupted, plan.left_out)]
    else:
        answers = [
            answer
            for answer in (_answer(plan, ran) for plan in plans)
            if any(result.run.key not in lacking for result in answer.results)
            or (answer.left_out and not answer.results)
        ]
    return Replays(tuple(answers), wall_s, len(lacking), ran.interrupted, ran.trouble)


def _answer(plan: PlannedRuns, ran: Ran) -> Replay:
    keys = {run.key for run in plan.runs}
    results = tuple(result for result in ran.results if result.run.key in keys)
    spans = [ran.spans[key] for key in keys if key in ran.spans]
    wall_s = max((end for _, end in spans), default=0.0) - min((start for start, _ in spans), default=0.0)
    cut_short = ran.interrupted and any(result.outcome.interrupted for result in results)
    return Replay(plan.scenario, results, wall_s, cut_short, plan.left_out)


def plan_all(
    scenarios: Sequence[Scenario], choices: Choices, library: RunContent, expression: Expression | None = None
) -> list[PlannedRuns]:
    """Return the runs that are chosen and selected, by scenario. Raises as ``replay.planned``, where an
    expression selects no arm, and NotOnTarget where nothing of all that is run."""
    plans = [planned(scenario, choices, library) for scenario in scenarios]
    if expression is not None:
        found = _only(plans, lambda arm: expression.holds(names_of(arm)))
        if not found:
            known = ", ".join(f"{run.scenario.path.stem}::{run.arm}" for each in plans[:3] for run in each.runs)
            more = ", ..." * (len(plans) > 3)
            raise SpecDebugError(f"-k '{expression.text}' selects no arm; there are {known}{more}")
        plans = found
    if not any(each.runs for each in plans):
        raise refusal([arm for each in plans for arm in each.left_out])
    return plans


def only_failed(plans: Sequence[PlannedRuns], record: LastFailed) -> tuple[list[PlannedRuns], str]:
    """Return the plans of arms that are recorded as failed, or all plans if none is, and words for that."""
    failed = _only(plans, lambda arm: isinstance(arm, ArmRun) and record.has(arm))
    if count := sum(len(each.runs) for each in failed):
        return failed, f"running {count} {'arm' if count == 1 else 'arms'} that failed last time"
    others = sum(map(len, record.arms.values()))
    why = f"none of these is among the {others} recorded failures" if others else "no failure is recorded here"
    return list(plans), f"{why}; running all"


def _only(plans: Sequence[PlannedRuns], wanted: Callable[[ArmRun | LeftOut], bool]) -> list[PlannedRuns]:
    kept = [
        PlannedRuns(each.scenario, tuple(filter(wanted, each.runs)), tuple(filter(wanted, each.left_out)))
        for each in plans
    ]
    return [each for each in kept if each.runs or each.left_out]


SCENARIO = Path(__file__).resolve().parents[2] / "_assets" / "engines" / "check" / "ten_tokens.yaml"


@dataclass(frozen=True)
class EngineChecked:
    """A release, with the arms that were run on it."""

    installed: Installed
    replay: Replay

    @property
    def exit_code(self) -> int:
        """0 when all tokens were right, 1 when some were not, 125 when it could not be told."""
        return self.replay.exit_code


def check_engine(
    pool: WorkerPool, library: RunContent, scenario: Scenario, there: Installed, progress: Progress
) -> EngineChecked:
    """Run the check, and keep what came of it. Raises StoreError where that cannot be kept."""
    target = ReleasedEngine(release=str(there.release), store=str(there.folder.parent))
    answer = replay(pool, library, scenario, Choices(target=target), progress=progress)
    told = {result.run.arm: result.outcome.verdict for result in answer.results}
    means = [result.outcome.metrics.accept_mean for result in answer.results if result.run.arm == "drafts"]
    checked = {**told, "accept_length": means[0] if means else None}
    kept = replace(there, checked=checked) if answer.interrupted else keep_check(there, checked)
    return EngineChecked(kept, answer)
