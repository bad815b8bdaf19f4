"""What a bisection can be about: who runs its trials, who picks them, and how to speak of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specdebug.cli.options import engine_words
from specdebug.cli.replay import open_library
from specdebug.errors import SpecDebugError

if TYPE_CHECKING:
    from specdebug.report.bisect import Subject
    from specdebug.trials.search import Chooser
    from specdebug.trials.source import TrialSource


class Over(StrEnum):
    """What may be the cause."""

    TOGGLES = "toggles"
    CONFIG = "config"
    FAULTS = "faults"
    COMMITS = "commits"


@dataclass(frozen=True)
class Plan:
    """What a search is about: who runs its trials, who picks them, and how to speak of them.

    ``make`` makes the source on another machine, whose workers then need so many ``gpus``.
    """

    source: TrialSource
    chooser: Callable[[], Chooser]
    opening: frozenset[str]
    what: str
    reproduce: Callable[[frozenset[str], int], str]
    next_step: Callable[[frozenset[str], str], str]
    name_length: int | None = None
    signature: str | None = None
    make: Callable[[], TrialSource] | None = None
    gpus: int = 0

    def on_ray(self, address: str | None, jobs: int | None) -> Plan:
        from specdebug.trials.ray_executor import RaySource

        assert self.make is not None
        return replace(self, source=RaySource(self.source, self.make, address=address, jobs=jobs, gpus=self.gpus))

    def subject(self, over: str, journal: str) -> Subject:
        from specdebug.report.bisect import Subject

        candidates = self.source.candidates
        return Subject(
            over=over,
            what=self.what,
            labels={candidate.id: candidate.label for candidate in candidates},
            names={candidate.id: candidate.id[: self.name_length] for candidate in candidates},
            journal=journal,
            reproduce=self.reproduce,
            next_step=self.next_step,
        )


def over_toggles_of_command(
    command: Sequence[str],
    content: Sequence[Path] | None,
    confidence: float,
    seed: int,
    *,
    jobs: int,
    timeout: float | None,
) -> Plan:
    from specdebug.bisect import Bisector
    from specdebug.toggles import REVERT_VARIABLE
    from specdebug.trials.command import SEED_VARIABLE, CommandSource, reverts_text
    from specdebug.trials.remote import command_source

    what = shlex.join(command)
    library = open_library(content)
    source = CommandSource(command, library.registry, capacity=jobs, timeout_s=timeout)
    names = [candidate.id for candidate in source.candidates]

    def reproduce(reverted: frozenset[str], its_seed: int) -> str:
        return f"{REVERT_VARIABLE}={reverts_text(reverted)} {SEED_VARIABLE}={its_seed} {what}"

    def next_step(culprits: frozenset[str], followed: str) -> str:
        return "; ".join(f"specdebug toggles show {one}" for one in sorted(culprits, key=int))

    return Plan(
        source,
        lambda: Bisector(names, confidence=confidence, seed=seed),
        frozenset(names),
        what,
        reproduce,
        next_step,
        make=partial(command_source, tuple(command), library.folders[1:], timeout),
    )


def over_scenario(
    file: str,
    content: Sequence[Path] | None,
    engine: Mapping[str, str | int],
    arm: str | None,
    options: Sequence[str] | None,
    over: Over,
    confidence: float,
    seed: int,
    *,
    jobs: int | None,
    timeout: float | None,
) -> Plan:
    from specdebug.bisect import Bisector
    from specdebug.scenario.load import engine_config
    from specdebug.trials.command import reverts_text
    from specdebug.trials.remote import scenario_source
    from specdebug.trials.scenario import ScenarioSource, expected_signature
    from specdebug.workers.system import cpu_count

    if over is Over.CONFIG and not options:
        raise SpecDebugError("--over config needs --option KEY=VALUE, once for each engine option to suspect")
    library = open_library(content)
    scenario = replace(library.scenario(file), overrides=dict(engine))
    for text in options or ():
        if text.partition("=")[0] in engine:
            raise SpecDebugError(
                f"--option {text} is suspected, but {shlex.join(engine_words(engine))} sets it for all"
            )
    source = ScenarioSource(
        library, scenario, arm=arm, options=options or (), jobs=jobs or cpu_count(), timeout_s=timeout
    )
    names = [candidate.id for candidate in source.candidates]
    if not names:
        raise SpecDebugError(f"arm '{source.arm}' reverts every fix there is; nothing is left to suspect")
    where = [*engine_words(engine), *(word for folder in content or () for word in ("--content", str(folder)))]

    def reproduce(switched: frozenset[str], its_seed: int) -> str:
        words = ["specdebug", "replay", file, "--arm", source.arm, "--seed", str(its_seed)]
        if over is Over.TOGGLES:
            return shlex.join([*words, *(["--revert", reverts_text(switched)] if switched else []), *where])
        chosen = " and ".join(sorted(switched))
        return f"set {chosen} in the engine of arm '{source.arm}', then {shlex.join([*words, *where])}"

    def next_step(culprits: frozenset[str], followed: str) -> str:
        if over is not Over.TOGGLES:
            return ""
        words = ["specdebug", "minimise", file, "--arm", source.arm, "--revert", reverts_text(culprits)]
        return shlex.join([*words, "--signature", followed, "-o", "small.yaml", *where])

    return Plan(
        source,
        lambda: Bisector(names, confidence=confidence, seed=seed),
        frozenset(names),
        f"{file}, arm {source.arm},",
        reproduce,
        next_step,
        signature=expected_signature(scenario),
        make=partial(scenario_source, scenario, library.folders[1:], source.arm, tuple(options or ()), timeout),
        gpus=int(engine_config(scenario, source.arm).device != "cpu"),
    )


def over_faults(
    file: str,
    content: Sequence[Path] | None,
    engine: Mapping[str, str | int],
    arm: str | None,
    faults: Sequence[str] | None,
    confidence: float,
    seed: int,
    *,
    jobs: int | None,
    timeout: float | None,
) -> Plan:
    from specdebug.bisect import Bisector
    from specdebug.faults.declare import parse_fault
    from specdebug.scenario.load import engine_config
    from specdebug.trials.faults import FaultSource
    from specdebug.trials.remote import fault_source
    from specdebug.trials.scenario import expected_signature
    from specdebug.workers.system import cpu_count

    library = open_library(content)
    scenario = replace(library.scenario(file), overrides=dict(engine))
    added = tuple(parse_fault(text) for text in faults or ())
    source = FaultSource(library, scenario, faults=added, arm=arm, jobs=jobs or cpu_count(), timeout_s=timeout)
    names = [candidate.id for candidate in source.candidates]
    # What other arms are expected to fail with has other causes.
    expected = {source.arm: scenario.expect[source.arm]} if source.arm in scenario.expect else {}

    def reproduce(switched: frozenset[str], its_seed: int) -> str:
        words = ["specdebug", "replay", file, "--arm", source.arm, "--seed", str(its_seed)]
        words += [word for name in names if name in switched - source.declared for word in ("--fault", name)]
        words += engine_words(engine)
        words += [word for folder in content or () for word in ("--content", str(folder))]
        unwanted = [name for name in names if name in source.declared - switched]
        first = f"take {' and '.join(unwanted)} out of the faults of arm '{source.arm}', then " if unwanted else ""
        return first + shlex.join(words)

    def next_step(culprits: frozenset[str], followed: str) -> str:
        kinds = dict.fromkeys(name.partition(":")[0] for name in names if name in culprits)
        return "; ".join(f"specdebug faults show {kind}" for kind in kinds)

    return Plan(
        source,
        lambda: Bisector(names, confidence=confidence, seed=seed),
        frozenset(names),
        f"{file}, arm {source.arm},",
        reproduce,
        next_step,
        signature=expected_signature(replace(scenario, expect=expected)),
        make=partial(fault_source, scenario, library.folders[1:], source.arm, added, timeout),
        gpus=int(engine_config(scenario, source.arm).device != "cpu"),
    )


def over_commits(
    command: Sequence[str],
    scenario: str | None,
    repo: Path | None,
    good: str | None,
    bad: str | None,
    build: str | None,
    confidence: float,
    *,
    jobs: int,
    timeout: float | None,
) -> Plan:
    from specdebug.trials.command import SEED_VARIABLE
    from specdebug.trials.commits import CommitChooser, CommitSource

    if scenario is not None:
        raise SpecDebugError(f"--over commits needs a command, such as: -- specdebug replay {scenario}")
    if good is None:
        raise SpecDebugError("--over commits needs --good REV, a commit where it does not fail")
    source = CommitSource(command, repo or Path(), good, bad or "HEAD", build=build, capacity=jobs, timeout_s=timeout)
    commits = [candidate.id for candidate in source.candidates]
    git = f"git -C {shlex.quote(str(source.top))}"
    what = shlex.join(command)

    def reproduce(reverted: frozenset[str], its_seed: int) -> str:
        (commit,) = reverted
        then = f"{build} && " if build else ""
        return f"{git} checkout {commit[:12]} && {then}{SEED_VARIABLE}={its_seed} {what}"

    def next_step(culprits: frozenset[str], followed: str) -> str:
        return "; ".join(f"{git} show {commit[:12]}" for commit in culprits)

    return Plan(
        source,
        lambda: CommitChooser(commits, confidence),
        frozenset(commits[-1:]),
        what,
        reproduce,
        next_step,
        name_length=12,
    )
