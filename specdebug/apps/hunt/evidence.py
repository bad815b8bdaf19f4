"""Make the first scenario of each failure small, by the search of ``specdebug minimise``."""

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
from specdebug.base.abilities import DEFAULT
from specdebug.base.errors import ContentError
from specdebug.base.files import read_file
from specdebug.base.schema import Item
from specdebug.base.trial import trial_seed
from specdebug.base.yamlio import parse_json
from specdebug.bundle import ENDING
from specdebug.bundle.content import Traced, run_traced, versions_here, write_bundle
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
from specdebug.targets.launch.target import StartedTarget
from specdebug.targets.registry import find_target
from specdebug.targets.settings import ReleasedEngine, StartedServer, TargetChoice

CONFIDENCE = 0.9


def shrunk_path(hunt: Hunt, one: Judged) -> Path:
    """Where the small scenario of a failure goes."""
    return hunt.record.folder / f"{one.number:05d}-small.yaml"


def shrink(hunt: Hunt, one: Judged, max_trials: int) -> Path | None:
    """Write a smaller scenario that fails as ``one`` does, in so many trials; None where none failed again.

    Trials are kept beside it, so that a hunt that goes on goes on with them. Raises as ``specdebug minimise`` does.
    """
    runner = hunt.runner
    scenario = runner.scenario(one.number).on(runner.target)
    toggles = runner.library.toggles(runner.reverts, runner.target)
    space = ScenarioSpace(scenario, ARM, tuple(toggle.pr for toggle in toggles))
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


RUNS = 3
"""Runs in which a failure may show again."""
LOG_LINES = 60
_MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class SeenFailure:
    """What was seen of a failure's first scenario.

    Attributes:
        scenario: name of its file in the hunt's folder.
        signature: of the failure in the hunt.
        runs: how often it was run again.
        bundle: name of the bundle's file; empty where it did not fail so again, and then nothing else is known.
        found: signature, step and words of all that was found, the failure itself first.
        located: where the failure began, if that was looked for and found.
        versions: of what ran.
        command: that started the server, if one was started.
        log: the last lines of that server's log.
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
        try:
            return cls._of(parse_json(read_file(path, _MAX_BYTES), str(path)).root)
        except (OSError, ContentError):
            return None

    @classmethod
    def _of(cls, item: Item) -> SeenFailure:
        """Inverse of ``asdict``. Raises ContentError."""
        texts = ("scenario", "signature", "bundle", "arm", "located", "command", "log")
        table = item.table(required=(*texts, "runs", "found", "versions"))
        found = [each.items(at_least=3) for each in table["found"].items()]
        versions = [each.items(at_least=2) for each in table["versions"].items()]
        return cls(
            runs=table["runs"].integer(low=0),
            found=tuple(
                (one.text(empty=True), None if step.is_null else step.integer(), what.text(empty=True))
                for one, step, what, *_ in found
            ),
            versions=tuple((name.text(empty=True), version.text(empty=True)) for name, version, *_ in versions),
            **{name: table[name].text(empty=True) for name in texts},
        )


Document = Callable[[Replay], Mapping[str, Any]]
"""The report of a run that goes into its bundle."""


def gather(hunt: Hunt, signature: str, file: Path, document: Document) -> SeenFailure | None:
    """Return the evidence for a failure whose scenario is ``file``, or that of before; None if a signal came. Raises
    SpecDebugError where it cannot be run or kept."""
    path = file.with_suffix(".json")
    kept = SeenFailure.read(path)
    if kept is not None and kept.signature == signature and (not kept.bundle or (file.parent / kept.bundle).exists()):
        return kept
    began, run = time.monotonic(), _run_of(hunt, file)
    again = _run_again(hunt, run, signature)
    if again is None:
        return None
    seen = SeenFailure(file.name, signature, again.runs, arm=run.arm)
    if again.failed:
        own = replace(again.traced, result=ArmResult(run, again.traced.result.outcome))
        _bundle(hunt, file, own, document(Replay(run.scenario, (own.result,), time.monotonic() - began)))
        seen = replace(
            seen,
            bundle=file.with_suffix(ENDING).name,
            found=tuple((each.signature, each.step, each.detail) for each in own.result.outcome.violations),
            located=_located(hunt, own.result),
            versions=tuple(_versions(run.target, own).items()),
            command=_command(run),
            log=again.log,
        )
    hunt.record.write(path.name, json.dumps(asdict(seen), indent=1) + "\n")
    return seen


@dataclass(frozen=True)
class _Again:
    """The last of so many ``runs``, in which it ``failed`` as before, or not. ``log``: the end of its server's."""

    traced: Traced
    runs: int
    failed: bool
    log: str


def _run_again(hunt: Hunt, run: ArmRun, signature: str) -> _Again | None:
    """Run it until it fails with a signature, :data:`RUNS` times at most; None if a signal came."""
    with tempfile.TemporaryDirectory(prefix="specdebug-hunt-") as folder:
        runs, failed = 0, False
        while True:
            traced = run_traced(hunt.runner.pool, hunt.runner.library, _with_log(run, folder))
            if traced is None or traced.interrupted:
                return None
            runs, failed = runs + 1, traced.result.outcome.signature == signature
            if failed or runs == RUNS:
                return _Again(traced, runs, failed, _last_log(Path(folder)))


def _run_of(hunt: Hunt, file: Path) -> ArmRun:
    runner, scenario = hunt.runner, load_scenario(file)
    choices = Choices(arms=(next(iter(scenario.arms)),), target=runner.target, reverts=runner.reverts)
    (run,) = plan(scenario, choices, runner.library)
    return run


def _with_log(run: ArmRun, folder: str) -> ArmRun:
    """The run with the log of its server in a folder, if it starts one."""
    if not isinstance(run.target, StartedServer):
        return run
    return replace(run, scenario=run.scenario.on(replace(run.target, log=folder)))


def _last_log(folder: Path) -> str:
    """The last lines of the log that was written last; empty where there is none."""
    logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
    lines = logs[-1].read_text(encoding="utf-8", errors="replace").splitlines() if logs else []
    return "\n".join(lines[-LOG_LINES:])


def _bundle(hunt: Hunt, file: Path, traced: Traced, report: Mapping[str, Any]) -> None:
    run = traced.result.run
    requests = hunt.runner.library.workload(run.scenario, run.arm, run.seed)
    here = versions_here(traced.result.outcome.stack)
    write_bundle(file.with_suffix(ENDING), traced, requests, here, report, force=True)


def _located(hunt: Hunt, result: ArmResult) -> str:
    """Where the failure began, in words; empty where that cannot be looked for, or was not found."""
    if result.run.target != DEFAULT or not result.to_locate:
        return ""
    (told,) = Locator(hunt.runner.pool, hunt.runner.library).located([result])
    return "" if told.outcome.located is None else told.outcome.located.text


def _versions(target: TargetChoice, traced: Traced) -> dict[str, str]:
    """What the failure was seen on; of an engine in an environment of its own, what is there."""
    here = versions_here(traced.result.outcome.stack)
    told: dict[str, str] = {
        name: here[name] for name in ("specdebug", "torch", "python", "os", "device") if name in here
    }
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
    target = find_target(run.target)
    if not isinstance(target, StartedTarget):
        return ""
    words = target.command(run.scenario.engine_of(run.arm), run.seed, OverThere(run.toggles)).on(30000)
    return shlex.join([Path(words[0]).name, *words[1:]])
