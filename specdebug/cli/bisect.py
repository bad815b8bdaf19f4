"""``specdebug bisect``: name what makes a flaky failure appear."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from specdebug.base import interrupts
from specdebug.base.errors import CannotRunHere, SpecDebugError
from specdebug.campaign.trials.command import Takes
from specdebug.cli import options as opt
from specdebug.cli.output import UNDECIDED, note, on_stderr, tell, tell_rerun
from specdebug.patching.hook import REVERT_VARIABLE
from specdebug.report.words import some

if TYPE_CHECKING:
    from specdebug.campaign.trials.campaign import TrialSource
    from specdebug.campaign.trials.command import CommandSource
    from specdebug.campaign.trials.engines import EngineRange
    from specdebug.report.bisect import Bisection
    from specdebug.scenario.grammar import Scenario
    from specdebug.search.posterior import BayesianSearch
    from specdebug.targets.settings import ReleasedEngine, TargetChoice


class Over(StrEnum):
    """The kind of thing that may be the cause."""

    TOGGLES = "toggles"
    CONFIG = "config"
    FAULTS = "faults"
    COMMITS = "commits"
    RELEASES = "releases"


_OWN = {
    "good": (Over.COMMITS, Over.RELEASES),
    "bad": (Over.COMMITS, Over.RELEASES),
    "repo": (Over.COMMITS,),
    "build": (Over.COMMITS,),
    "option": (Over.CONFIG,),
    "fault": (Over.FAULTS,),
}
"""Options of some kinds alone."""


@dataclass(frozen=True)
class Plan:
    """One search: the source that runs its trials, the words for it, and what picks the trials.

    ``proven``: what is switched on takes effect. ``make`` makes the source on another machine, whose workers then need
    so many ``gpus``.
    """

    source: Any
    subject: Bisection
    chooser: Callable[[Sequence[str]], BayesianSearch]
    opening: tuple[frozenset[str], ...]
    proven: bool = True
    signature: str | None = None
    make: Callable[[], Any] | None = None
    gpus: int = 0


class BisectCommand(opt.TrialOptions, opt.ClusterOptions, opt.PageOptions):
    """Name the fix whose revert makes a flaky failure appear, or the pair, option, fault, commit or release, and how
    surely.

    SCENARIO is run with fixes reverted, with engine options set (--over config), with some of its faults injected and
    the others not (--over faults), on the installed releases of an engine (--over releases), or at the commits of a
    checkout of one, beside the dependencies of the release that --target names (--over commits).

    -- CMD ... is any command: it passes with 0, cannot be tested with 125, and fails with anything else; the trial's
    seed is in SPECDEBUG_TRIAL_SEED. It runs as under `specdebug run`: fixes of the packages that it imports are
    reverted in its Python processes, and count only where their lines ran. Where that cannot reach, and with
    --no-proof, SGLANG_DEBUG_REVERT_PR tells the fix (with --takes set, several): then a fix can be convicted, and none
    acquitted. Over commits the command runs in a worktree of its own at each commit.

    Every trial is kept in a journal: the same command goes on where it was stopped. Exit code 0 when a culprit, or
    that there is none, was named; 125 when it ended undecided, or unproven.
    """

    example = "bisect --over toggles -- ./ci-job.sh"
    over: Over = opt.option("Look for the cause among these.", default=Over.TOGGLES)
    confidence: str = opt.confidence_option("Name a culprit at this probability (0.95, 95%).", default="95%")
    jobs: int | None = opt.trials_at_a_time(
        "Run so many trials at a time; unless given, 1 for a command, one a core for a scenario."
    )
    seed: int = opt.option(
        "Draw the trials' seeds from this seed, and the order of equal candidates.", default=0, min=0
    )
    max_trials: int = opt.option("Stop undecided after so many trials.", default=1000, min=1)
    arm: str | None = opt.arm_option(
        "Run this arm of the scenario; unless given, the first that reverts nothing (over faults, that has any)."
    )
    fault: list[str] | None = opt.fault_option(
        "Over faults: suspect this one as well as those that the arm declares (repeatable)."
    )
    good: str | None = opt.option("Over commits or releases: start from this one, which passes.", metavar="REV|RELEASE")
    bad: str | None = opt.option(
        "Over commits or releases: end at this one, which fails; of commits HEAD unless given.", metavar="REV|RELEASE"
    )
    repo: Path | None = opt.option("Over commits: search this repository, not this folder's.", metavar="DIR")
    build: str | None = opt.option("Over commits: run this in a shell after each checkout.", metavar="CMD")
    signature: str | None = opt.signature_option(
        "Follow these failures; else what the scenario expects, or the most frequent."
    )
    option: list[str] | None = opt.option("Over config: suspect this engine option (repeatable).", metavar="KEY=VALUE")

    def run(self) -> int:
        opt.confidence_of(self.confidence)
        opt.positive(self.timeout)
        self.check_outputs()
        self.words()
        self._check_together()
        self.over_engine = self.overrides()
        plan = self._plan()
        source = plan.source
        if plan.make is not None and self.on_ray:
            from specdebug.campaign.trials.ray_executor import RaySource

            source = RaySource(source, plan.make, address=self.ray_address, jobs=self.jobs, gpus=plan.gpus)
        with contextlib.closing(source), interrupts.held():
            return self._search(plan, source)

    def _search(self, plan: Plan, source: TrialSource) -> int:
        """Search to the end, or as far as it goes, tell the findings, and return the exit code."""
        from specdebug.campaign.trials.campaign import Campaign
        from specdebug.campaign.trials.search import CulpritSearch
        from specdebug.campaign.trials.state import digest_of
        from specdebug.report.bisect import BisectProgress, bisect_report

        over, pattern = self.over.value, self.signature or plan.signature
        identity = digest_of(over, plan.source.question, str(self.seed))
        path = self.journal_path("bisect", identity)
        subject = replace(plan.subject, journal=str(path))
        about = f"{subject.what} over {over}, seed {self.seed}"
        with self.opened(path, identity, about, plan.source.state()) as journal:
            search = CulpritSearch(
                source.candidates,
                plan.chooser,
                opening=plan.opening,
                proven=plan.proven,
                max_trials=self.max_trials,
                pattern=pattern,
            )
            if subject.at_head is not None:
                findings = search.end("at-head")
            else:
                with on_stderr(lambda stream: BisectProgress(stream, subject)) as watcher:
                    findings = Campaign(source, journal, self.seed, self.max_trials).search(search, watcher)
            tell_rerun(source.rerun)
            answered = UNDECIDED if subject.proof == "out of reach" else 0
            codes = {"answered": answered, "interrupted": interrupts.exit_code()}
            code = findings.trouble.exit_code if findings.trouble else codes.get(findings.reason, UNDECIDED)
            tried = partial(plan.chooser, [name for name in subject.labels if name not in findings.not_tried])
            report = bisect_report(findings, subject, code, journal.trials, journal.evidence, tried, pattern)
            return tell(report, self, trouble=findings.trouble)

    def _check_together(self) -> None:
        """Raise SpecDebugError for an option that is of no use beside the others."""
        for name, kinds in _OWN.items():
            if self.over not in kinds and getattr(self, name) is not None:
                raise SpecDebugError(f"--{name} is of no use with --over {self.over.value}")
        if self.takes is Takes.SET and self.over is not Over.TOGGLES:
            raise SpecDebugError(f"--takes is of no use with --over {self.over.value}")
        if self.arm is not None and self.scenario is None:
            raise SpecDebugError("--arm is for scenarios")
        if self.on_ray and self.over in (Over.COMMITS, Over.RELEASES):
            where = "its worktrees are" if self.over is Over.COMMITS else "the releases are installed"
            raise SpecDebugError(
                f"--over {self.over.value} runs where {where}, on this machine; leave out --executor ray"
            )

    def _plan(self) -> Plan:
        """The plan for what was asked. Raises SpecDebugError for what cannot be bisected so."""
        if self.scenario is not None and self.over in (Over.COMMITS, Over.RELEASES):
            return self._over_engines(self.scenario)
        if self.over is Over.COMMITS:
            return self._over_commits()
        if self.over is Over.RELEASES:
            raise SpecDebugError("--over releases needs a scenario: a command has an engine of its own")
        if self.scenario is not None:
            if self.over is Over.FAULTS:
                return self._over_faults(self.scenario)
            if self.over is Over.CONFIG and not self.option:
                raise SpecDebugError("--over config needs --option KEY=VALUE, once for each engine option to suspect")
            return self._over_scenario(self.scenario)
        if self.over is Over.FAULTS:
            raise SpecDebugError("--over faults needs a scenario: nothing can be injected into a command")
        if self.over is Over.CONFIG:
            raise SpecDebugError("--over config needs a scenario: a command has no engine options to set")
        return self._over_toggles_of_command()

    def _choice(
        self, names: Sequence[str], apart: frozenset[frozenset[str]] = frozenset()
    ) -> tuple[Callable[[Sequence[str]], BayesianSearch], tuple[frozenset[str], ...]]:
        """A maker of a Bayesian search among these candidates, and what its first trials switch on."""
        from specdebug.search.bisect import Bisector, openings

        level = opt.confidence_of(self.confidence)
        return partial(Bisector, confidence=level, seed=self.seed, apart=apart), openings(names, apart)

    def _subject(
        self,
        source: Any,
        what: str,
        reproduce: _Reproduce,
        next_step: _Next,
        how_often: str,
        takes: Takes | None = None,
    ) -> Bisection:
        """What is searched, in words; where the journal lies is not known yet."""
        from specdebug.report.bisect import Bisection

        labels = {candidate.id: candidate.label for candidate in source.candidates}
        pairs = [] if takes is Takes.ONE else getattr(source, "apart", [])
        apart = sorted(tuple(sorted(pair, key=int)) for pair in pairs)
        called, known = {name: name for name in labels}, None if takes is None else takes.value
        return Bisection(self.over.value, what, labels, called, "", reproduce, next_step, how_often, known, apart)

    def _typed(self, *words: str, first: str = "") -> str:
        """A command with the same engine options and content folders."""
        return first + shlex.join(["specdebug", *words, *opt.engine_words(self.over_engine), *self.content_words()])

    def _over_toggles_of_command(self) -> Plan:
        from specdebug.campaign.trials import hooked
        from specdebug.campaign.trials.command import command_source, made_there
        from specdebug.campaign.trials.state import digest_of

        command, library = self.words(), self.library()
        limits: dict[str, Any] = {"capacity": self.jobs or 1, "timeout_s": self.timeout}
        options: dict[str, Any] = {"takes": self.takes}
        kind: Callable[..., CommandSource] = command_source
        proof, at_head, left = "waived", None, dict[str, str]()
        if not self.no_proof:
            identity = digest_of(self.over.value, hooked.question(command, self.timeout), str(self.seed))
            look = self.looked(command, library.registry, self.journal_path("bisect", identity))
            fixes, left = hooked.reachable(library.registry, look.packages)
            if left and not fixes:
                why = "; ".join(f"{number} {each}" for number, each in left.items())
                raise CannotRunHere(f"no fix of what the command imports can be tried: {why}")
            proof = "proven" if fixes else "out of reach"
            if not fixes and look.signature is None:
                note(_out_of_reach(sorted(look.packages)))
            at_head = look.signature
            if proof == "proven":
                kind, options = hooked.hooked_source, {"numbers": [toggle.pr for toggle in fixes], "look": look}
        source = kind(library, command, **options, **limits)
        takes = self.takes if proof != "proven" else None
        subject = self._subject(source, shlex.join(command), *self._told_of_command(command, proof), takes)
        subject = replace(subject, proof=proof, left=left, at_head=at_head, command=True, toggles=library.registry.all)
        make = partial(made_there, kind, library.folders[1:], command, timeout_s=self.timeout, **options)
        choice = self._choice(list(subject.labels), source.apart)
        return Plan(source, subject, *choice, proven=source.proven, make=make)

    def _told_of_command(self, command: Sequence[str], proof: str) -> tuple[_Reproduce, _Next, str]:
        from specdebug.campaign.trials.command import SEED_VARIABLE

        content = self.content_words() if proof == "proven" else None

        def reproduce(reverted: frozenset[str], seed: int) -> str:
            return f"{SEED_VARIABLE}={seed} {opt.run_line(command, reverted, content)}"

        def next_step(culprits: frozenset[str], _: str) -> str:
            show = (["specdebug", "toggles", "show", one, *self.content_words()] for one in sorted(culprits, key=int))
            return "; ".join(map(shlex.join, show))

        return reproduce, next_step, shlex.join(["specdebug", "flake", "--", *command])

    def _over_scenario(self, file: str) -> Plan:
        """The fixes that an arm does not revert, or engine options."""
        from specdebug.campaign.trials.scenario import ScenarioSource, expected_signature

        options = tuple(self.option or ())
        for text in options:
            if text.partition("=")[0] in self.over_engine:
                flags = shlex.join(opt.engine_words(self.over_engine))
                raise SpecDebugError(f"--option {text} is suspected, but {flags} sets it for all")
        library = self.library()
        scenario = library.scenario(file).laid_over(self.over_engine)
        same: dict[str, Any] = {"options": options, "timeout_s": self.timeout, "takes": self.takes}
        source = ScenarioSource(library, scenario, arm=self.arm, jobs=self._jobs, **same)
        if source.proven and self.takes is Takes.SET:
            raise SpecDebugError("--takes is for a command, or a server that is not ours")
        names = [candidate.id for candidate in source.candidates]
        if not names:
            raise SpecDebugError(f"arm '{source.arm}' reverts every fix there is; nothing is left to suspect")
        told = self._told_of_options(file, source.arm) if options else self._told_of_fixes(file, source.arm)
        how_often = self._typed("flake", file, "--arm", source.arm)
        takes = None if source.proven or options else self.takes
        return Plan(
            source,
            replace(
                self._subject(source, f"{file}, arm {source.arm},", *told, how_often, takes),
                toggles=library.registry.all,
            ),
            *self._choice(names, source.apart),
            proven=source.proven,
            signature=expected_signature(scenario),
            **_elsewhere(ScenarioSource, library.folders[1:], scenario, source.arm, same),
        )

    @property
    def _jobs(self) -> int:
        """The number of trials of a scenario that run at a time."""
        from specdebug.workers.system import cpu_count

        return self.jobs or cpu_count()

    def _told_of_fixes(self, file: str, arm: str) -> tuple[_Reproduce, _Next]:
        from specdebug.campaign.trials.command import reverts_text

        def reproduce(reverted: frozenset[str], seed: int) -> str:
            reverts = ["--revert", reverts_text(reverted)] if reverted else []
            return self._typed("replay", file, "--arm", arm, "--seed", str(seed), *reverts)

        def next_step(culprits: frozenset[str], followed: str) -> str:
            reverts = ("--revert", reverts_text(culprits))
            return self._typed("minimise", file, "--arm", arm, *reverts, "--signature", followed, "-o", "small.yaml")

        return reproduce, next_step

    def _told_of_options(self, file: str, arm: str) -> tuple[_Reproduce, _Next]:
        def reproduce(switched: frozenset[str], seed: int) -> str:
            first = f"set {' and '.join(sorted(switched))} in the engine of arm '{arm}', then "
            return self._typed("replay", file, "--arm", arm, "--seed", str(seed), first=first)

        def next_step(culprits: frozenset[str], followed: str) -> str:
            first = f"with {' and '.join(sorted(culprits))} set in the file, "
            return self._typed("minimise", file, "--arm", arm, "--signature", followed, "-o", "small.yaml", first=first)

        return reproduce, next_step

    def _over_faults(self, file: str) -> Plan:
        from specdebug.campaign.trials.scenario import FaultSource, expected_signature
        from specdebug.faults.declare import parse_fault

        library = self.library()
        scenario = library.scenario(file).laid_over(self.over_engine)
        same = {"faults": tuple(map(parse_fault, self.fault or ())), "timeout_s": self.timeout}
        source = FaultSource(library, scenario, arm=self.arm, jobs=self._jobs, **same)  # type: ignore[arg-type]
        names = [candidate.id for candidate in source.candidates]
        # What other arms are expected to fail with has other causes.
        expected = {source.arm: scenario.expect[source.arm]} if source.arm in scenario.expect else {}

        def reproduce(switched: frozenset[str], seed: int) -> str:
            added = [word for name in names if name in switched - source.declared for word in ("--fault", name)]
            unwanted = [name for name in names if name in source.declared - switched]
            first = f"take {' and '.join(unwanted)} out of the faults of arm '{source.arm}', then " if unwanted else ""
            return self._typed("replay", file, "--arm", source.arm, "--seed", str(seed), *added, first=first)

        def next_step(culprits: frozenset[str], followed: str) -> str:
            kinds = dict.fromkeys(name.partition(":")[0] for name in names if name in culprits)
            return "; ".join(f"specdebug faults show {kind}" for kind in kinds)

        how_often = self._typed("flake", file, "--arm", source.arm)
        return Plan(
            source,
            self._subject(source, f"{file}, arm {source.arm},", reproduce, next_step, how_often),
            *self._choice(names),
            signature=expected_signature(replace(scenario, expect=expected)),
            **_elsewhere(FaultSource, library.folders[1:], scenario, source.arm, same),
        )

    def _over_engines(self, file: str) -> Plan:
        """The releases of an engine, or commits of a checkout beside the dependencies of one."""
        from specdebug.campaign.trials.engines import GOOD, EngineSource
        from specdebug.campaign.trials.scenario import arm_of
        from specdebug.search.bisect import OrderedBisector

        library = self.library()
        scenario = library.scenario(file).laid_over(self.over_engine)
        arm = arm_of(scenario, self.arm)
        engines, names = self._engines(scenario.target_of(arm), file)
        source = EngineSource(library, scenario, engines, arm=arm, jobs=self._jobs, timeout_s=self.timeout)
        order = [candidate.id for candidate in engines.candidates]

        def typed(command: str, on: str, *words: str) -> str:
            target = shlex.join(["--target", _target_text(engines.targets[on])])
            over = {name: value for name, value in self.over_engine.items() if name != "target"}
            rest = [*words, *opt.engine_words(over), *self.content_words()]
            return f"{shlex.join(['specdebug', command, file, '--arm', arm])} {target} {shlex.join(rest)}".rstrip()

        def reproduce(chosen: frozenset[str], seed: int) -> str:
            return typed("replay", next(iter(chosen), GOOD), "--seed", str(seed))

        def next_step(culprits: frozenset[str], followed: str) -> str:
            (culprit,) = culprits
            if self.over is Over.COMMITS:
                return f"git -C {shlex.quote(str(engines.targets[culprit].tree))} show {culprit[:12]}"
            before = [GOOD, *order][order.index(culprit)]
            arms = (f"{arm}@{engines.targets[one].release}" for one in (before, culprit))
            return shlex.join(["specdebug", "diverge", file, *(word for each in arms for word in ("--arm", each))])

        how_often = typed("flake", order[-1])
        subject = self._subject(source, f"{file}, arm {arm},", reproduce, next_step, how_often)
        chooser = partial(OrderedBisector, confidence=opt.confidence_of(self.confidence))
        return Plan(
            source,
            replace(subject, names=names),
            chooser,
            (frozenset(order[-1:]),),
        )

    def _engines(self, target: TargetChoice, file: str) -> tuple[EngineRange, dict[str, str]]:
        """The engines to search, and their short names. Raises SpecDebugError for what is not named, or cannot be."""
        from specdebug.campaign.trials.engines import commits_between, releases_between
        from specdebug.targets.settings import ReleasedEngine

        release = target if isinstance(target, ReleasedEngine) else None
        if self.over is Over.RELEASES:
            if self.good is None or self.bad is None:
                raise SpecDebugError("--over releases needs --good and --bad, such as --good sglang==0.5.18")
            engines = releases_between(release, self.good, self.bad)
            if engines.lacking:
                lacking = ", ".join(map(str, engines.lacking))
                install = "; ".join(f"specdebug engines install {each} --cpu" for each in engines.lacking)
                note(f"not installed, and left out: {lacking}; {install}")
            return engines, {each.id: each.id for each in engines.candidates}
        if self.build is not None:
            raise SpecDebugError("--build is for a command; a scenario's engine is taken as the commit has it")
        if release is None:
            raise SpecDebugError(
                "--over commits of a scenario needs --target, an installed release beside whose dependencies the "
                f"commits run, as sglang==0.5.23; or it needs a command, such as: -- specdebug replay {file}"
            )
        if self.good is None:
            raise SpecDebugError("--over commits needs --good REV, a commit where it does not fail")
        engines = commits_between(release, self.repo or Path(), self.good, self.bad or "HEAD")
        return engines, {each.id: each.id[:12] for each in engines.candidates}

    def _over_commits(self) -> Plan:
        from specdebug.campaign.trials.command import SEED_VARIABLE
        from specdebug.campaign.trials.commits import CommitSource
        from specdebug.search.bisect import OrderedBisector

        if self.good is None:
            raise SpecDebugError("--over commits needs --good REV, a commit where it does not fail")
        command, build = self.words(), self.build
        places = (self.repo or Path(), self.good, self.bad or "HEAD")
        source = CommitSource(command, *places, build=build, capacity=self.jobs or 1, timeout_s=self.timeout)
        commits = [candidate.id for candidate in source.candidates]
        git, what = f"git -C {shlex.quote(str(source.top))}", shlex.join(command)

        def reproduce(reverted: frozenset[str], seed: int) -> str:
            (commit,) = reverted
            then = f"{build} && " if build else ""
            return f"{git} checkout {commit[:12]} && {then}{SEED_VARIABLE}={seed} {what}"

        def next_step(culprits: frozenset[str], followed: str) -> str:
            return "; ".join(f"{git} show {commit[:12]}" for commit in culprits)

        how_often = shlex.join(["specdebug", "flake", "--", *command])
        subject = self._subject(source, what, reproduce, next_step, how_often)
        subject = replace(subject, names={commit: commit[:12] for commit in commits}, command=True)
        chooser = partial(OrderedBisector, confidence=opt.confidence_of(self.confidence))
        return Plan(source, subject, chooser, (frozenset(commits[-1:]),), proven=source.proven)


def _target_text(target: ReleasedEngine) -> str:
    """A released engine as ``--target`` takes it."""
    usual = type(target)(release=target.release).to_dict()
    plain = {name: value for name, value in target.to_dict().items() if name == "engine" or value != usual.get(name)}
    return target.release if set(plain) == {"engine"} else json.dumps(plain)


def _out_of_reach(packages: Sequence[str]) -> str:
    """Return the words before a search whose fixes no hook can revert: a forgotten ``--content`` costs many trials."""
    imports = f"imports {some(packages, 5)}, and no known fix is in that" if packages else "imports no package"
    told = f"{REVERT_VARIABLE} tells an engine elsewhere the known fixes, one in a trial, and the answer is unproven"
    return f"the command's Python {imports}; --content DIR adds toggles of yours. Going on: {told}"


_Reproduce: TypeAlias = Callable[[frozenset[str], int], str]
_Next: TypeAlias = Callable[[frozenset[str], str], str]


def _elsewhere(
    kind: Any, folders: Sequence[Path], scenario: Scenario, arm: str, same: Mapping[str, Any]
) -> dict[str, Any]:
    """What makes the source of a scenario's trials on another machine, and the GPUs that a worker needs there."""
    from specdebug.campaign.trials.command import made_there
    from specdebug.scenario.checks import engine_shape

    gpus = int(engine_shape(scenario, arm).device != "cpu")
    return {"make": partial(made_there, kind, folders, scenario, arm=arm, **same), "gpus": gpus}
