"""Solve: from a triaged log to the settings in which its failure may come up here, the most telling first; how what was
run there fits the log; and what this machine cannot tell."""

import fnmatch
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from specdebug.apps.triage import OWN, CandidateFix, engine_of, names_of, scenario_named
from specdebug.base.attention_plans import PLANS
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.trials.scenario import arm_of
from specdebug.logs.rule import Strength
from specdebug.logs.scan import Scan
from specdebug.patching.toggles import Detection, Toggle
from specdebug.scenario.library import Library
from specdebug.targets.installs.store import find_installed, store_folder
from specdebug.targets.settings import ReleasedEngine, parse_target
from specdebug.verdict.signatures import names_place

Fit = Literal["same", "alike", "otherwise", "passes", "no verdict"]
"""How a run fits the log: it failed with one of the log's signatures, with damage of the same kind, in another way, or
not."""
Answer = Literal["culprit", "suspect", "as it stands", "none", "undecided", "no failure"]
"""A fix was named and fails as the log does; or only alike, or the search is not over; the failure comes up with
nothing reverted; no fix makes it; nothing is known yet; the log holds none."""
RELEASED = ("sglang", "vllm")
_GPU = ("@cuda", ".cu")
"""The ends of signatures that a GPU alone has."""


@dataclass(frozen=True)
class LogSetting:
    """A setting in which the failure may come up.

    Attributes:
        why: in words, what led to it.
        scenario: as commands take it; empty where ``command`` is tried.
        target: the engine; empty is the one of this package.
        pattern: the failure to follow; empty leaves that to the search.
        fix: the one whose scenario it is.
        over: words that set engine options as the log has them.
    """

    why: str
    scenario: str = ""
    arm: str = ""
    target: str = ""
    pattern: str = ""
    fix: int | None = None
    over: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    @property
    def on(self) -> list[str]:
        """The words that say which engine runs it, and how."""
        return [*(("--target", self.target) if self.target else ()), *self.over]

    @property
    def words(self) -> list[str]:
        """The words that name it to a command."""
        return [self.scenario, "--arm", self.arm, *self.on]

    def __str__(self) -> str:
        return shlex.join(self.command) or f"{self.scenario} on {self.target or 'the embedded engine'}"


@dataclass(frozen=True)
class StageRun:
    """A command that was run as a stage. ``code``: its exit code, None of one that was not begun; ``cut``: its time was
    over; ``kept``: a call before ran it, and its result was kept."""

    name: str
    line: str
    code: int | None
    seconds: float = 0.0
    summary: str = ""
    text: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)
    cut: bool = False
    kept: bool = False


@dataclass(frozen=True)
class OpenQuestion:
    """Something that was not found out: what it is, the command that would tell, and on which machine."""

    what: str
    run: str = ""
    where: str = ""


@dataclass
class Solution:
    """What is known of a log's failure by now.

    Attributes:
        failure: the one that the search followed.
        probability: of the culprit, as the search has it.
        doubt: of a suspect, why it is no culprit.
        place: where a run with the fix reverted parts from one with it, as ``diverge`` has it, and the functions that
            the fix changes.
        suspects: the numbers of the fixes that the log points to, the likeliest first.
        files: what was written, by what it is.
    """

    log: str
    answer: Answer = "none"
    signature: str = ""
    culprit: Toggle | None = None
    failure: str = ""
    probability: float = 0.0
    doubt: str = ""
    attempt: LogSetting | None = None
    place: dict[str, Any] = field(default_factory=dict)
    suspects: list[int] = field(default_factory=list)
    stages: list[StageRun] = field(default_factory=list)
    questions: list[OpenQuestion] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    next_step: str = ""


def engine_for(found: Scan, best: Sequence[CandidateFix], library: Library) -> tuple[str, OpenQuestion | None]:
    """The engine to try a log on, as ``--target`` takes it (empty: ours), and what stays open where that is not the one
    that wrote it. A log that names none is of the one on which the likeliest fix shows so."""
    facts = found.facts
    engine, version = facts.engine, facts.version
    if version is None and engine_of(found) in (OWN, None):
        engine = next((name for one in best[:1] for name in _shows_only(one.toggle, library)), None)
    if engine not in RELEASED:
        return "", None
    wanted = f"{engine}=={version}" if version else engine
    for target in dict.fromkeys((wanted, engine)):
        try:
            choice = parse_target(target)
            assert isinstance(choice, ReleasedEngine)
            there = find_installed(store_folder(None), choice.named)
        except SpecDebugError:
            continue
        other = OpenQuestion(f"{wanted} is not installed here; {there.release} was tried", _install(wanted))
        return f"{engine}=={there.version}", None if target == wanted else other
    return "", OpenQuestion(f"{wanted} is not installed here; our own engine stood in for it", _install(wanted))


def _shows_only(toggle: Toggle, library: Library) -> list[str]:
    """The engines on which a fix shows as it was seen in a log, if it does not on ours."""
    seen = toggle.detected_by
    own = next(each for each in library.registry.all if each.pr == toggle.pr).detections
    return [name for name, shown in toggle.detected_in.items() if shown == seen and seen not in own]


def _install(release: str) -> str:
    return f"specdebug engines install {release}"


def attempts(
    found: Scan, best: Sequence[CandidateFix], library: Library, target: str, from_log: Path | None
) -> Iterator[LogSetting]:
    """The settings to try, the most telling first. ``from_log``: a scenario of the log's launch flags. Raises
    ContentError."""
    engines = list(dict.fromkeys((target, "")))
    if (named := scenario_named(found.facts, library)) is not None:
        scenario = library.scenario(named)
        arm = found.facts.arm if found.facts.arm in scenario.arms else None
        plain = arm_of(scenario, arm if arm and not scenario.arms[arm].revert else None)
        yield LogSetting("the log names it", named, plain, target, _followed(found, named, target, library))
    suspects = [each for one in best for each in _of_fix(one, found, library, engines)]
    yield from (each for each, same in suspects if same)
    if command := _job(found):
        yield LogSetting("the test that failed is here", command=command)
    yield from (each for each, same in suspects if not same)
    if from_log is not None:
        yield LogSetting("it has the log's launch flags", str(from_log), "as_logged", target)


def _of_fix(
    one: CandidateFix, found: Scan, library: Library, engines: Sequence[str]
) -> Iterator[tuple[LogSetting, bool]]:
    """The attempts of a candidate, each with True where its scenario fails with one of the log's signatures."""
    toggle = next(each for each in library.registry.all if each.pr == one.toggle.pr)
    seen = _signatures(found)
    for target in engines:
        known = _detections(toggle, target)
        if not known:
            continue
        shown = next((each for each in known if any(map(each.recognises, seen))), known[0])
        patterns = _matching(shown.signatures, seen)
        arm = arm_of(library.scenario(shown.scenario), None)
        over = () if patterns else _options(found)
        pattern = (patterns or shown.signatures)[0]
        why = f"it shows {toggle.pr}, for {one.reasons[0]}"
        yield LogSetting(why, shown.scenario, arm, target, pattern, toggle.pr, over), bool(patterns)


def showing(toggle: Toggle, library: Library, target: str) -> LogSetting | None:
    """The scenario that shows a fix on an engine, else on ours; None where none is known to."""
    for engine in dict.fromkeys((target, "")):
        for shown in _detections(toggle, engine):
            arm = arm_of(library.scenario(shown.scenario), None)
            return LogSetting(f"it shows {toggle.pr}", shown.scenario, arm, engine, shown.signatures[0], toggle.pr)
    return None


def _detections(toggle: Toggle, target: str) -> Sequence[Detection]:
    if not target:
        return toggle.detections if toggle.patches else ()
    engine = target.partition("==")[0]
    return [toggle.detected_in[engine]] if engine in toggle.detected_in else []


def _signatures(found: Scan) -> list[str]:
    return [name for each in found.ranked() if not each.over for name in names_of(each)]


def _followed(found: Scan, named: str, target: str, library: Library) -> str:
    """The failure to follow in the scenario that a log names: one that it is known to show, else the first that a
    search can see, for it does not locate."""
    seen = _signatures(found)
    stem = Path(named).stem
    for toggle in library.registry.all:
        for shown in _detections(toggle, target):
            if shown.scenario == stem and (patterns := _matching(shown.signatures, seen)):
                return patterns[0]
    ours = (each.signature for each in found.ranked() if each.strength <= Strength.NAMED and not each.over)
    return next((each for each in ours if not names_place(each)), "")


def _matching(patterns: Sequence[str], signatures: Sequence[str]) -> list[str]:
    """The patterns that one of the signatures fits."""
    return [each for each in patterns if fnmatch.filter(signatures, each)]


def _options(found: Scan) -> tuple[str, ...]:
    """The log's engine options that any scenario can be run with."""
    facts = found.facts
    backend = ("--backend", facts.backend) if facts.backend else ()
    return (*backend, *(("--page-size", str(facts.page_size)) if facts.page_size else ()))


def _job(found: Scan) -> tuple[str, ...]:
    """The command of the test that failed, where its file is here."""
    test = found.facts.test
    return test if any(Path(word.partition("::")[0]).is_file() for word in test[1:]) else ()


def fit(document: Mapping[str, Any], found: Scan) -> Fit:
    """How a replay of one arm fits the log."""
    arms = document.get("arms") or ()
    if not arms or arms[0]["verdict"] == "unknown":
        return "no verdict"
    if arms[0]["verdict"] == "pass":
        return "passes"
    seen = [arms[0]["signature"], *(each["signature"] for each in arms[0]["violations"])]
    if set(seen) & set(_signatures(found)):
        return "same"
    kinds = {each.means for each in found.ranked() if not each.over}
    return "alike" if any(each and each.partition("@")[0] in kinds for each in seen) else "otherwise"


def recognised(signature: str | None, found: Scan) -> bool:
    """Return True if a failure, which may be a pattern, is one that the log tells of."""
    return signature is not None and bool(_matching((signature,), _signatures(found)))


def machine_needed(found: Scan, log: str) -> OpenQuestion | None:
    """The machine that the log is of, where this is not such a one; None for a log of a CPU."""
    facts = found.facts
    on_gpu = any(each.endswith(_GPU) for each in _signatures(found)) or (bool(facts.flags) and engine_of(found) != OWN)
    if not on_gpu or facts.flags.get("device") == "cpu":
        return None
    plan = PLANS[facts.backend] if facts.backend is not None and facts.backend in PLANS else None
    library = None if plan is None else plan.library
    what = "a CUDA GPU" + (f" with {library.generations[0].name}" if library is not None else "")
    if (ranks := facts.flags.get("tp_size") or facts.flags.get("tp") or "1") != "1":
        what = f"{ranks} CUDA GPUs" + what.removeprefix("a CUDA GPU")
    run = shlex.join(("specdebug", "solve", log, "--device", "cuda"))
    return OpenQuestion("whether it fails so on the log's own kernels: all ran on a CPU", run, what)


def functions_of(toggle: Toggle, target: str) -> list[str]:
    """The functions that a fix changes in the engine of a target."""
    engine = target.partition("==")[0] or OWN
    ranges = toggle.foreign.get(engine, {}) if engine != OWN else {"": toggle.patches}
    return list(dict.fromkeys(f"{each.module}:{each.qualname}" for patches in ranges.values() for each in patches))
