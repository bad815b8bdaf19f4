"""An evaluation's file: which questions are put in which way, what answers them, and what is expected; and the gate,
which holds a score and an accept length against that.

Its keys are declared as a scenario's are (``base/schema.py``), and ``target`` and ``engine`` are a scenario's own.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from specdebug.apps.evaluation.questions import Ask, By
from specdebug.base.abilities import DEFAULT
from specdebug.base.errors import ContentError, SpecDebugError, Where, did_you_mean, one_line
from specdebug.base.schema import ANY_TEXT, TEXT, Item, Key, Kind, Part, choice, nested, real, simple, whole
from specdebug.base.yamlio import Doc, load_yaml
from specdebug.scenario.elsewhere import ENGINE
from specdebug.scenario.grammar import NAME, Arm, Limits, Scenario
from specdebug.search.intervals import Interval, clopper_pearson, pooled_interval, pooled_mean
from specdebug.targets.settings import TARGET, AnyServer, TargetChoice

_THRESHOLD = re.compile(r"\s*(>=|>)?\s*(\d+\.?\d*|\.\d+)\s*(%?)\s*")


class ThresholdError(SpecDebugError):
    """A threshold that cannot be read, or that no value could be held against."""


@dataclass(frozen=True)
class Threshold:
    """The least that is expected; ``strict``: and more than that."""

    least: float
    strict: bool = False

    def __str__(self) -> str:
        return f"{'>' if self.strict else '>='}{self.least:g}"

    def held_by(self, value: float) -> bool:
        """Return True if a value is enough."""
        return value > self.least if self.strict else value >= self.least


def parse_threshold(text: str, low: float, high: float) -> Threshold:
    """Read ``>=0.72``, ``>2.26``, or a number alone, which means at least; in percent, too. Raises ThresholdError."""
    match = _THRESHOLD.fullmatch(text)
    if not match:
        raise ThresholdError(f"must be such as '>=0.72' or '>2.26', got {one_line(text, 40)!r}")
    least = float(match[2]) / (100 if match[3] else 1)
    if not low <= least <= high:
        raise ThresholdError(f"must be from {low:g} to {high:g}, got {least:g}")
    return Threshold(least, match[1] == ">")


SCORE, ACCEPT_LENGTH = (0.0, 1.0), (1.0, 1024.0)  # bounds of thresholds


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval. ``value``: None where nothing was measured; ``why``: why that is, in words."""

    name: str
    value: float | None
    interval: Interval | None = None
    number: int = 0
    why: str = ""


@dataclass(frozen=True)
class Check:
    """One threshold. ``held``: None where it is not decided, of which ``why`` says why."""

    name: str
    threshold: Threshold
    held: bool | None
    why: str = ""
    inside: bool = False
    """The threshold lies inside the interval: another draw of questions might fall on its other side."""


def score_of(right: int, asked: int, confidence: float) -> Estimate:
    """The part of the answers that is right, with the exact interval for a number fixed beforehand."""
    if not asked:
        return Estimate("score", None, why="no question was answered")
    return Estimate("score", right / asked, clopper_pearson(right, asked, confidence), asked)


def accept_length_of(verifies: Sequence[Sequence[int]], confidence: float, why: str) -> Estimate:
    """Tokens a verify over all verifies of all answers; the interval takes answers, not verifies, as drawn. ``why``:
    why there might be none."""
    sums, counts = [sum(each) for each in verifies], [len(each) for each in verifies]
    value = pooled_mean(sums, counts)
    if value is None:
        return Estimate("accept length", None, why=why or "no draft was verified")
    between = pooled_interval(sums, counts, confidence)
    if between is not None:
        between = Interval(max(between.low, 1.0), between.high)  # a verify gives a token at least
    return Estimate("accept length", value, between, sum(counts))


def check(measured: Estimate, threshold: Threshold | None, incomplete: str) -> list[Check]:
    """The check of what was measured, if a threshold is set. ``incomplete``: why not every question has an answer."""
    if threshold is None:
        return []
    if incomplete or measured.value is None:
        return [Check(measured.name, threshold, None, incomplete or measured.why)]
    between = measured.interval
    inside = between is not None and between.low < threshold.least < between.high
    return [Check(measured.name, threshold, threshold.held_by(measured.value), inside=inside)]


SHIPPED = Path(__file__).resolve().parents[2] / "_assets" / "evaluations"
DEFAULT_NAME = "code"  # the evaluation that is meant where none is named
ARM = "eval"


def _threshold(bounds: tuple[float, float]) -> Kind:
    def read(item: Item) -> Threshold:
        plain = isinstance(item.value, int | float) and not isinstance(item.value, bool)
        try:
            return parse_threshold(str(item.value) if plain else item.text(), *bounds)
        except ThresholdError as error:
            raise item.error(str(error)) from None

    return simple(read, {"type": ["string", "number"]}, None, str)


@dataclass(frozen=True)
class Expected(Part):
    """The least score and the least accept length, as in ``">=0.72"`` and ``">2.26"``; a number alone: at least."""

    score: Annotated[Threshold | None, _threshold(SCORE), "part of the answers that must be right"] = None
    accept_length: Annotated[
        Threshold | None, _threshold(ACCEPT_LENGTH), "tokens that a verify must accept, the bonus token counted"
    ] = None


@dataclass(frozen=True)
class Asking(Part):
    """Which questions are put, and how."""

    file: Annotated[str, TEXT, "a .jsonl or .csv file, or MMLU's folder; beside the evaluation's file unless absolute"]
    count: Annotated[int | None, whole(1, 10**6), "how many, drawn", Key(default="all")] = None
    seed: Annotated[int, whole(0, 2**63 - 1), "of the draw"] = 0
    ask: Annotated[Ask, choice("letter", "continuation"), "show the choices, or have the text continued"] = "letter"
    by: Annotated[By, choice("generation", "logprob"), "read the text, or the odds of the first token"] = "generation"
    shots: Annotated[int | None, whole(0, 64), "worked examples before each", Key(default="as many as there are")] = (
        None
    )
    max_new_tokens: Annotated[int, whole(1, 2**20), "longest answer"] = 32
    concurrency: Annotated[int, whole(1, 4096), "questions under way"] = 32


@dataclass(frozen=True)
class Evaluation(Part):
    """An evaluation, checked. ``path``: of its file; ``overrides``: engine options from outside it."""

    name: Annotated[str, NAME, "words joined by hyphens"]
    questions: Annotated[Asking, nested(Asking), "what is asked"]
    description: Annotated[str, ANY_TEXT, "what it is about"] = ""
    target: Annotated[TargetChoice, TARGET, "what answers"] = DEFAULT
    engine: Annotated[dict[str, Any], ENGINE, "how it is set up"] = field(default_factory=dict)
    expect: Annotated[Expected, nested(Expected), "what must be reached"] = Expected()
    timeout_s: Annotated[float, real(0, 10**6, above=True), "wall seconds for all"] = 3600.0
    path: Path = Path("<evaluation>")
    overrides: dict[str, Any] = field(default_factory=dict)
    source: Doc | None = field(default=None, compare=False, repr=False)

    @classmethod
    def given(cls, item: Item) -> dict[str, Any]:
        return {"path": Path(item.doc.path), "source": item.doc}

    @property
    def question_path(self) -> str:
        """Where the questions are."""
        return os.path.join(self.path.parent, self.questions.file)

    def scenario(self) -> Scenario:
        """A scenario without a workload, of one arm, for what starts workers and targets by scenarios. A server is
        given a connection for each question under way."""
        target, needed = self.target, self.questions.concurrency
        if isinstance(target, AnyServer):
            target = replace(target, connections=max(target.connections, needed))
        return Scenario(
            self.name,
            workload=(),
            arms={ARM: Arm(ARM)},
            expect={},
            target=target,
            engine=self.engine,
            probes=(),
            limits=Limits(timeout_s=self.timeout_s),
            path=self.path,
            overrides=self.overrides,
            source=self.source,
        )


def read_evaluation(name_or_path: str) -> Evaluation:
    """The evaluation in a file, or of a shipped name. Raises ContentError."""
    ends = name_or_path.endswith((".yaml", ".yml"))
    if (ends or os.sep in name_or_path) and os.path.exists(name_or_path):
        return Evaluation.read(load_yaml(name_or_path).root)
    if ends:
        raise ContentError("no such file", Where(one_line(name_or_path)))
    shipped = {file.stem: file for file in SHIPPED.glob("*.yaml")}
    if name_or_path not in shipped:
        near = did_you_mean(name_or_path, shipped)
        raise ContentError(f"no evaluation of this name{near}", Where(one_line(name_or_path) or "''"))
    return Evaluation.read(load_yaml(shipped[name_or_path]).root)
