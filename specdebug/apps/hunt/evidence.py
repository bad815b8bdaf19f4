"""A hunt's failures: the first scenario of each made small, and run again by itself, kept as a bundle and as what was
seen of it.

A hunt's scenarios share servers, and are not recorded. Here the scenario has a server of its own, whose log is kept,
and every step is written down, so that what is told upstream is what anyone sees who runs the same."""

from __future__ import annotations

import contextlib
import json
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specdebug import __version__
from specdebug.apps.hunt.draw import ARM
from specdebug.apps.hunt.hunting import Hunt
from specdebug.apps.hunt.record import Judged
from specdebug.apps.twins.plan import plan_twins
from specdebug.apps.twins.run import TwinRunner
from specdebug.apps.twins.shrunk import TwinSource
from specdebug.apps.twins.words import break_text
from specdebug.base.errors import ContentError
from specdebug.base.files import read_file
from specdebug.base.trial import trial_seed
from specdebug.base.yamlio import parse_json
from specdebug.bundle import ENDING
from specdebug.bundle.content import run_traced, versions_here, write_bundle
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Choices, Replay, plan
from specdebug.campaign.shrink import ScenarioSpace, ShrunkSource, scenario_text
from specdebug.campaign.trials.campaign import Campaign
from specdebug.campaign.trials.journal import Journal
from specdebug.diverge.locate import Locator
from specdebug.scenario.checks import load_scenario
from specdebug.search.minimise import Minimiser, MinimiseWatcher
from specdebug.targets.base import OverThere
from specdebug.targets.installs.steps import look_into
from specdebug.targets.installs.store import find_installed, store_folder
from specdebug.targets.launch.process import command_of
from specdebug.targets.registry import find_target
from specdebug.targets.relations import RELATIONS
from specdebug.targets.settings import LaunchedServer, ReleasedEngine, TargetChoice
from specdebug.targets.sglang.target import SglangTarget
from specdebug.verdict.twins import TWIN

CONFIDENCE = 0.9


def shrunk_path(hunt: Hunt, one: Judged) -> Path:
    return hunt.record.folder / f"{one.number:05d}-small.yaml"


def shrink(hunt: Hunt, one: Judged, max_trials: int) -> Path | None:
    """Write a smaller scenario that fails as ``one`` does, in so many trials; None where none failed again.

    Trials are kept beside it, so that a hunt that goes on goes on with them. Raises as ``specdebug minimise`` does.
    """
    runner = hunt.runner
    scenario = runner.scenario(one.number).on(runner.target)
    toggles = runner.library.toggles(runner.reverts, runner.target)
    space = ScenarioSpace(scenario, ARM, tuple(toggle.pr for toggle in toggles))
    source: ShrunkSource
    if one.signature.startswith(TWIN):
        source = TwinSource(space, toggles, RELATIONS[one.twin], runner.pool, runner.library)
    else:
        source = ShrunkSource(space, runner.library.packs(space.start.probes), toggles, runner.jobs)
    path = hunt.record.folder / f"{one.number:05d}-small.sqlite"
    about = f"making scenario {one.number} small, which fails with {one.signature}"
    identity = f"{source.question} {one.signature}"
    with contextlib.closing(source), Journal(path, identity, about, state=source.state()) as journal:
        search = Minimiser(
            space,
            Campaign(source, journal, runner.seed, max_trials),
            source.leave,
            seeds=lambda number: trial_seed(runner.seed, number),
            max_trials=max_trials,
            confidence=CONFIDENCE,
            pattern=one.signature,
        )
        summary = search.run(MinimiseWatcher())
    if not summary.seeds:
        return None
    header = (
        f"Fails with {one.signature} on {runner.target}.",
        "",
        f"Made by specdebug {__version__}, specdebug hunt, out of scenario {one.number} of seed {runner.seed}.",
    )
    text = scenario_text(summary.smallest, f"{scenario.name}-small", summary.seeds[0], one.signature, header)
    made = shrunk_path(hunt, one)
    hunt.record.write(made.name, text)
    return made


RUNS = 3  # runs in which a failure may show again
LOG_LINES = 60
_MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class SeenFailure:
    """The evidence for a failure, from its first scenario.

    Attributes:
        scenario: name of its file in the hunt's folder; ``runs``: how often it was run again.
        bundle: name of the bundle's file; empty where it did not fail so again, and then nothing else is known.
        found: signature, step and words of all that was found, the failure itself first.
        located: where the failure began, if that was looked for and found.
        command: that started the server, if one was started; ``log``: the last lines of its log.
    """

    scenario: str
    signature: str
    runs: int
    bundle: str = ""
    arm: str = ""
    found: tuple[tuple[str, int | None, str], ...] = ()
    located: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    command: str = ""
    log: str = ""

    @classmethod
    def read(cls, path: Path) -> SeenFailure | None:
        """The evidence that was kept; None where nothing was, or something else lies there: it can be seen again."""
        texts = ("scenario", "signature", "bundle", "arm", "located", "command", "log")
        try:
            root = parse_json(read_file(path, _MAX_BYTES), str(path)).root
            table = root.table(required=(*texts, "runs", "found", "versions"))
            found = [each.items(at_least=3)[:3] for each in table["found"].items()]
            versions = [each.items(at_least=2)[:2] for each in table["versions"].items()]
            return cls(
                runs=table["runs"].integer(low=0),
                found=tuple(
                    (one.text(empty=True), None if step.is_null else step.integer(), what.text(empty=True))
                    for one, step, what in found
                ),
                versions=tuple((name.text(empty=True), version.text(empty=True)) for name, version in versions),
                **{name: table[name].text(empty=True) for name in texts},
            )
        except (OSError, ContentError):
            return None


Document = Callable[[Replay], Mapping[str, Any]]  # the report of a run that goes into its bundle


def gather(hunt: Hunt, signature: str, file: Path, document: Document) -> SeenFailure | None:
    """Return the evidence for a failure whose scenario is ``file``, or that of before; None if a signal came. Raises
    SpecDebugError where it cannot be run or kept."""
    path = file.with_suffix(".json")
    kept = SeenFailure.read(path)
    if kept is not None and kept.signature == signature and (not kept.bundle or (file.parent / kept.bundle).exists()):
        return kept
    if signature.startswith(TWIN):
        return _gather_twin(hunt, signature, file)
    began, runner, scenario = time.monotonic(), hunt.runner, load_scenario(file)
    choices = Choices((next(iter(scenario.arms)),), runner.reverts, target=runner.target)
    (run,) = plan(scenario, choices, runner.library)
    seen = SeenFailure(file.name, signature, 0, arm=run.arm)
    with tempfile.TemporaryDirectory(prefix="specdebug-hunt-") as folder:
        failed, logged = False, run
        if isinstance(run.target, LaunchedServer):
            logged = replace(run, scenario=run.scenario.on(replace(run.target, log=folder)))
        while not failed and seen.runs < RUNS:
            again = run_traced(runner.pool, runner.library, logged)
            if again is None or again.interrupted:
                return None
            traced = again
            failed, seen = traced.result.outcome.signature == signature, replace(seen, runs=seen.runs + 1)
        log = _last_log(Path(folder))
    if failed:
        outcome = traced.result.outcome
        own = replace(traced, result=ArmResult(run, outcome))
        requests, here = runner.library.workload(run.scenario, run.arm, run.seed), versions_here(outcome.stack)
        report = document(Replay(run.scenario, (own.result,), time.monotonic() - began))
        write_bundle(file.with_suffix(ENDING), own, requests, here, report, force=True)
        seen = replace(
            seen,
            bundle=file.with_suffix(ENDING).name,
            found=tuple((each.signature, each.step, each.detail) for each in outcome.violations),
            located=_located(hunt, own.result),
            versions=tuple(_versions(run.target, here).items()),
            command=_command(run),
            log=log,
        )
    hunt.record.write(path.name, json.dumps(asdict(seen), indent=1) + "\n")
    return seen


def _gather_twin(hunt: Hunt, signature: str, file: Path) -> SeenFailure | None:
    """The evidence for a broken twin: where its two servings part, and the first tensor of the two that differs. A
    bundle holds one run, and so none of this."""
    runner, scenario = hunt.runner, load_scenario(file)
    arm, relation = next(iter(scenario.arms)), signature.removeprefix(TWIN)
    choices = Choices((arm,), runner.reverts, target=runner.target)
    plan = plan_twins(scenario, choices, [relation], runner.library)
    seen = SeenFailure(file.name, signature, 0, arm=arm)
    while not seen.found and seen.runs < RUNS:
        twins = TwinRunner(runner.pool, runner.library)
        ((result,),) = (each.results for each in twins.run([plan]))
        if twins.interrupted:
            return None
        seen = replace(seen, runs=seen.runs + 1)
        if result.signature == signature:
            here = versions_here(result.judged.outcomes[0].stack)
            seen = replace(
                seen,
                found=tuple((signature, None, break_text(result.judged, each)) for each in result.judged.breaks),
                located="" if result.place is None else " ".join(result.place.words),
                versions=tuple(_versions(plan.pairs[0].base.target, here).items()),
            )
    hunt.record.write(file.with_suffix(".json").name, json.dumps(asdict(seen), indent=1) + "\n")
    return seen


def _last_log(folder: Path) -> str:
    logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
    lines = logs[-1].read_text(encoding="utf-8", errors="replace").splitlines() if logs else []
    return "\n".join(lines[-LOG_LINES:])


def _located(hunt: Hunt, result: ArmResult) -> str:
    """Where the failure began, in words; empty where that cannot be looked for, or was not found."""
    if not result.to_locate:
        return ""
    (told,) = Locator(hunt.runner.pool, hunt.runner.library).located([result])
    return "" if told.outcome.located is None else told.outcome.located.text


def _versions(target: TargetChoice, here: Mapping[str, Any]) -> dict[str, str]:
    told = {name: here[name] for name in ("specdebug", "torch", "python", "os", "device") if name in here}
    if not isinstance(target, ReleasedEngine):
        return told
    store = store_folder(None if target.store is None else Path(target.store))
    environment = find_installed(store, target.named)
    there = look_into(Path(environment.python), environment.engine)
    python = ".".join(map(str, there.get("python", ())))
    own = {environment.engine: environment.version, "torch": str(there.get("torch", "")), "python": python}
    return own | {"device": environment.device} | {name: told[name] for name in ("specdebug", "os") if name in told}


def _command(run: ArmRun) -> str:
    """The command that starts the server of a run; empty where none is started."""
    target, options = find_target(run.target), run.scenario.engine_of(run.arm)
    if isinstance(target, SglangTarget):
        words = target.command(options).on(30000)
    elif isinstance(run.target, LaunchedServer):
        words = command_of(run.target, options, run.seed, OverThere(run.toggles)).on(30000)
    else:
        return ""
    return shlex.join([Path(words[0]).name, *words[1:]])
