"""Plans of a bisection, one for each kind of cause: the source of its trials, their chooser, and the words for them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from specdebug.base.errors import SpecDebugError
from specdebug.campaign.trials.command import Takes
from specdebug.cli.bisect_options import BisectBudget, BisectSubject, Over, Suspects
from specdebug.cli.options import ContentOptions, engine_words

if TYPE_CHECKING:
    from specdebug.campaign.trials.campaign import Origin, TrialSource
    from specdebug.campaign.trials.scenario import FaultSource
    from specdebug.report.bisect import Bisection
    from specdebug.scenario.grammar import Scenario
    from specdebug.scenario.library import Library
    from specdebug.search.posterior import BayesianSearch

Reproduce: TypeAlias = Callable[[frozenset[str], int], str]
"""Make the command that runs a trial again, of the candidates that it switched on and its seed."""
NextStep: TypeAlias = Callable[[frozenset[str], str], str]
"""Make the command to run next, if any, of the culprits and the signature that was followed."""


@dataclass(frozen=True)
class BisectQuestion:
    """The question of a bisection. ``command`` is empty where the subject is a scenario."""

    subject: BisectSubject
    suspects: Suspects
    budget: BisectBudget
    command: tuple[str, ...]
    shared: ContentOptions
    engine: Mapping[str, str | int | float]
    confidence: float

    @property
    def file(self) -> str:
        assert self.subject.scenario is not None
        return self.subject.scenario

    @property
    def jobs(self) -> int:
        """The number of trials of a scenario that run at a time."""
        from specdebug.workers.system import cpu_count

        return self.budget.jobs or cpu_count()

    def scenario(self, library: Library) -> Scenario:
        """Return the scenario with the engine options and the target laid over it."""
        return library.scenario(self.file).laid_over(self.engine)

    def where(self) -> list[str]:
        """Return the words that set the same engine options and content folders."""
        return [*engine_words(self.engine), *self.shared.words()]

    def replay(self, arm: str, seed: int) -> list[str]:
        """Return the words that replay an arm of the scenario."""
        return ["specdebug", "replay", self.file, "--arm", arm, "--seed", str(seed)]

    def choice(
        self, names: Sequence[str], apart: frozenset[frozenset[str]] = frozenset()
    ) -> tuple[Callable[[], BayesianSearch], tuple[frozenset[str], ...]]:
        """Return a maker of a Bayesian search among these candidates, and what its first trials switch on."""
        from specdebug.search.bisect import Bisector, openings

        chooser = partial(Bisector, names, confidence=self.confidence, seed=self.budget.seed, apart=apart)
        return chooser, openings(names, apart)

    def flake(self, *words: str) -> str:
        """Return the command that measures how often it fails with nothing switched on."""
        if self.command:
            return shlex.join(["specdebug", "flake", "--", *self.command])
        return shlex.join(["specdebug", "flake", self.file, *words, *self.where()])


@dataclass(frozen=True)
class Plan:
    """One search: the source that runs its trials, what they are of, the chooser that picks them, and the words.

    ``how_often`` measures how often it fails with nothing switched on. ``proven``: what is switched on takes effect.
    ``takes``: how many fixes its engine takes, where that is not ours; ``apart``: those that are never tried together.
    ``make`` makes the source on another machine, whose workers then need so many ``gpus``.
    """

    source: TrialSource
    origin: Origin
    chooser: Callable[[], BayesianSearch]
    opening: tuple[frozenset[str], ...]
    what: str
    reproduce: Reproduce
    next_step: NextStep
    how_often: str
    proven: bool = True
    takes: Takes | None = None
    apart: frozenset[frozenset[str]] = frozenset()
    name_length: int | None = None
    signature: str | None = None
    make: Callable[[], TrialSource] | None = None
    gpus: int = 0

    def on_ray(self, address: str | None, jobs: int | None) -> Plan:
        from specdebug.campaign.trials.ray_executor import RaySource

        assert self.make is not None
        return replace(self, source=RaySource(self.source, self.make, address=address, jobs=jobs, gpus=self.gpus))

    def subject(self, over: str, journal: str) -> Bisection:
        from specdebug.report.bisect import Bisection

        candidates = self.source.candidates
        return Bisection(
            over=over,
            what=self.what,
            labels={candidate.id: candidate.label for candidate in candidates},
            names={candidate.id: candidate.id[: self.name_length] for candidate in candidates},
            journal=journal,
            reproduce=self.reproduce,
            next_step=self.next_step,
            how_often=self.how_often,
            takes=None if self.takes is None else self.takes.value,
            apart=() if self.takes is Takes.ONE else tuple(sorted(candidates_of(self.apart))),
        )


def candidates_of(pairs: Iterable[frozenset[str]]) -> Iterator[tuple[str, ...]]:
    """Each pair in the order of its numbers."""
    return (tuple(sorted(pair, key=int)) for pair in pairs)


def plan_of(asked: BisectQuestion) -> Plan:
    """Return the plan for what was asked. Raises SpecDebugError for what cannot be bisected so."""
    over = asked.subject.over
    if over is Over.COMMITS:
        return _over_commits(asked)
    if asked.subject.scenario is not None:
        if over is Over.FAULTS:
            return _over_faults(asked)
        if over is Over.CONFIG and not asked.suspects.option:
            raise SpecDebugError("--over config needs --option KEY=VALUE, once for each engine option to suspect")
        return _over_scenario(asked)
    if over is Over.FAULTS:
        raise SpecDebugError("--over faults needs a scenario: nothing can be injected into a command")
    if over is Over.CONFIG:
        raise SpecDebugError("--over config needs a scenario: a command has no engine options to set")
    return _over_toggles_of_command(asked)


def _over_toggles_of_command(asked: BisectQuestion) -> Plan:
    from specdebug.campaign.trials.command import SEED_VARIABLE, command_source, made_there, reverts_text
    from specdebug.patching.toggles import REVERT_VARIABLE

    timeout, takes = asked.budget.timeout, asked.suspects.takes
    what = shlex.join(asked.command)
    library, options = asked.shared.library(), {"takes": takes, "timeout_s": timeout}
    source = command_source(library, asked.command, capacity=asked.budget.jobs or 1, **options)
    names = [candidate.id for candidate in source.candidates]

    def reproduce(reverted: frozenset[str], its_seed: int) -> str:
        return f"{REVERT_VARIABLE}={reverts_text(reverted)} {SEED_VARIABLE}={its_seed} {what}"

    def next_step(culprits: frozenset[str], followed: str) -> str:
        return "; ".join(f"specdebug toggles show {one}" for one in sorted(culprits, key=int))

    return Plan(
        source,
        source,
        *asked.choice(names, source.apart),
        what,
        reproduce,
        next_step,
        asked.flake(),
        proven=source.proven,
        takes=takes,
        apart=source.apart,
        make=partial(made_there, command_source, library.folders[1:], asked.command, **options),
    )


def _over_scenario(asked: BisectQuestion) -> Plan:
    """The fixes that an arm does not revert, or engine options."""
    from specdebug.campaign.trials.command import made_there
    from specdebug.campaign.trials.scenario import ScenarioSource, expected_signature
    from specdebug.scenario.checks import engine_shape

    library = asked.shared.library()
    scenario = asked.scenario(library)
    options, timeout, takes = tuple(asked.suspects.option or ()), asked.budget.timeout, asked.suspects.takes
    for text in options:
        if text.partition("=")[0] in asked.engine:
            flags = shlex.join(engine_words(asked.engine))
            raise SpecDebugError(f"--option {text} is suspected, but {flags} sets it for all")
    same: dict[str, Any] = {"options": options, "timeout_s": timeout, "takes": takes}
    source = ScenarioSource(library, scenario, arm=asked.suspects.arm, jobs=asked.jobs, **same)
    if source.proven and takes is Takes.SET:
        raise SpecDebugError("--takes is for a command, or a server that is not ours")
    names = [candidate.id for candidate in source.candidates]
    if not names:
        raise SpecDebugError(f"arm '{source.arm}' reverts every fix there is; nothing is left to suspect")
    told = _told_of_options if options else _told_of_fixes
    return Plan(
        source,
        source,
        *asked.choice(names, source.apart),
        f"{asked.file}, arm {source.arm},",
        *told(asked, source.arm),
        asked.flake("--arm", source.arm),
        proven=source.proven,
        takes=None if source.proven or options else takes,
        apart=source.apart,
        signature=expected_signature(scenario),
        make=partial(made_there, ScenarioSource, library.folders[1:], scenario, arm=source.arm, **same),
        gpus=int(engine_shape(scenario, source.arm).device != "cpu"),
    )


def _told_of_fixes(asked: BisectQuestion, arm: str) -> tuple[Reproduce, NextStep]:
    from specdebug.campaign.trials.command import reverts_text

    def reproduce(reverted: frozenset[str], its_seed: int) -> str:
        reverts = ["--revert", reverts_text(reverted)] if reverted else []
        return shlex.join([*asked.replay(arm, its_seed), *reverts, *asked.where()])

    def next_step(culprits: frozenset[str], followed: str) -> str:
        words = ["specdebug", "minimise", asked.file, "--arm", arm, "--revert", reverts_text(culprits)]
        return shlex.join([*words, "--signature", followed, "-o", "small.yaml", *asked.where()])

    return reproduce, next_step


def _told_of_options(asked: BisectQuestion, arm: str) -> tuple[Reproduce, NextStep]:
    def reproduce(switched: frozenset[str], its_seed: int) -> str:
        replay = shlex.join([*asked.replay(arm, its_seed), *asked.where()])
        return f"set {' and '.join(sorted(switched))} in the engine of arm '{arm}', then {replay}"

    def next_step(culprits: frozenset[str], followed: str) -> str:
        words = ["specdebug", "minimise", asked.file, "--arm", arm, "--signature", followed, "-o", "small.yaml"]
        return f"with {' and '.join(sorted(culprits))} set in the file, {shlex.join([*words, *asked.where()])}"

    return reproduce, next_step


def _over_faults(asked: BisectQuestion) -> Plan:
    from specdebug.campaign.trials.command import made_there
    from specdebug.campaign.trials.scenario import FaultSource, expected_signature
    from specdebug.faults.declare import parse_fault
    from specdebug.scenario.checks import engine_shape

    library = asked.shared.library()
    scenario, timeout = asked.scenario(library), asked.budget.timeout
    added = tuple(parse_fault(text) for text in asked.suspects.fault or ())
    source = FaultSource(library, scenario, faults=added, arm=asked.suspects.arm, jobs=asked.jobs, timeout_s=timeout)
    names = [candidate.id for candidate in source.candidates]
    # What other arms are expected to fail with has other causes.
    expected = {source.arm: scenario.expect[source.arm]} if source.arm in scenario.expect else {}
    return Plan(
        source,
        source,
        *asked.choice(names),
        f"{asked.file}, arm {source.arm},",
        *_told_of_faults(asked, source, names),
        asked.flake("--arm", source.arm),
        signature=expected_signature(replace(scenario, expect=expected)),
        make=partial(
            made_there, FaultSource, library.folders[1:], scenario, faults=added, arm=source.arm, timeout_s=timeout
        ),
        gpus=int(engine_shape(scenario, source.arm).device != "cpu"),
    )


def _told_of_faults(asked: BisectQuestion, source: FaultSource, names: Sequence[str]) -> tuple[Reproduce, NextStep]:
    def reproduce(switched: frozenset[str], its_seed: int) -> str:
        words = asked.replay(source.arm, its_seed)
        words += [word for name in names if name in switched - source.declared for word in ("--fault", name)]
        unwanted = [name for name in names if name in source.declared - switched]
        first = f"take {' and '.join(unwanted)} out of the faults of arm '{source.arm}', then " if unwanted else ""
        return first + shlex.join([*words, *asked.where()])

    def next_step(culprits: frozenset[str], followed: str) -> str:
        kinds = dict.fromkeys(name.partition(":")[0] for name in names if name in culprits)
        return "; ".join(f"specdebug faults show {kind}" for kind in kinds)

    return reproduce, next_step


def _over_commits(asked: BisectQuestion) -> Plan:
    from specdebug.campaign.trials.command import SEED_VARIABLE
    from specdebug.campaign.trials.commits import CommitSource
    from specdebug.search.bisect import OrderedBisector

    history, budget = asked.suspects, asked.budget
    if asked.subject.scenario is not None:
        raise SpecDebugError(f"--over commits needs a command, such as: -- specdebug replay {asked.file}")
    if history.good is None:
        raise SpecDebugError("--over commits needs --good REV, a commit where it does not fail")
    source = CommitSource(
        asked.command,
        history.repo or Path(),
        history.good,
        history.bad or "HEAD",
        build=history.build,
        capacity=budget.jobs or 1,
        timeout_s=budget.timeout,
    )
    commits = [candidate.id for candidate in source.candidates]
    git = f"git -C {shlex.quote(str(source.top))}"
    what = shlex.join(asked.command)

    def reproduce(reverted: frozenset[str], its_seed: int) -> str:
        (commit,) = reverted
        then = f"{history.build} && " if history.build else ""
        return f"{git} checkout {commit[:12]} && {then}{SEED_VARIABLE}={its_seed} {what}"

    def next_step(culprits: frozenset[str], followed: str) -> str:
        return "; ".join(f"{git} show {commit[:12]}" for commit in culprits)

    chooser = partial(OrderedBisector, commits, confidence=asked.confidence)
    opening = (frozenset(commits[-1:]),)
    how_often = asked.flake()
    return Plan(
        source, source, chooser, opening, what, reproduce, next_step, how_often, proven=source.proven, name_length=12
    )
