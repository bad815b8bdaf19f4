"""pytest plugin: scenario files as tests, one for each arm (and seed: ``x.yaml::arm[1234]``).

It is there wherever specdebug is installed and collects nothing unless told to: a scenario file named on the command
line (``x.yaml``, ``x.yaml::arm``), or files that match the ini option ``specdebug_scenarios``. Until then it imports
nothing of specdebug, and torch only ever in workers. Content folders come from ``--specdebug-content``, else from the
ini option ``specdebug_content``, else from specdebug's configuration file, and beside them from ``SPECDEBUG_PATH``.
``--specdebug-exit`` makes pytest's exit code fit to be judged by ``specdebug bisect``, ``specdebug flake`` and ``git
bisect run``: 1 only when a test failed, 125 when nothing could be tested.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Generator, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from specdebug.campaign.loops.baseline import Baseline
    from specdebug.campaign.loops.replay import ArmResult
    from specdebug.scenario.grammar import Scenario
    from specdebug.scenario.library import Library
    from specdebug.workers.pool import WorkerPool

ENDINGS = (".yaml", ".yml")
UNTESTABLE = 125
UNKNOWN = ("specdebug_verdict", "unknown")
"""A property of the report of a test that came to no verdict."""

_BASELINES = ("specdebug_baseline", "specdebug_save_baseline")
_SCENARIO_KEY = re.compile(rb"^(engine|workload|arms)\s*:", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("specdebug", "specdebug scenarios")
    many: dict[str, Any] = {"action": "append", "default": []}

    def add(name: str, text: str, *others: str, **more: Any) -> None:
        dest = f"specdebug_{name.replace('-', '_')}"
        group.addoption(f"--specdebug-{name}", *others, dest=dest, help=text, **more)

    add("revert", "revert these fixes in every scenario test", "--revert", metavar="PR[,PR]", **many)
    add("content", "a folder with your own scenarios/, toggles/ and probes/ (toggles are code)", metavar="DIR", **many)
    add("seeds", "run every scenario test with N seeds (1)", type=int, default=1, metavar="N")
    add("baseline", "hold accept lengths against this file; a loss fails the test", metavar="FILE")
    add("save-baseline", "write accept lengths there, once all tests have run", metavar="FILE")
    add("no-locate", "do not run failing arms again to find where wrong outputs began", action="store_true")
    add("exit", "exit code 125 instead of 1 to 5 unless a test failed, as bisecting needs it", action="store_true")
    parser.addini("specdebug_scenarios", "globs of scenario files to collect, from the root folder", "args", [])
    parser.addini("specdebug_content", "folders with your own scenarios/, toggles/ and probes/", "paths", [])


def pytest_configure(config: pytest.Config) -> None:
    """Check the options. Raises pytest.UsageError."""
    if config.getoption("specdebug_seeds") < 1:
        raise pytest.UsageError("--specdebug-seeds must be at least 1")
    if config.getoption("specdebug_save_baseline") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--specdebug-save-baseline writes one file: run it in one process, with -n 0")
    if any(map(config.getoption, ("specdebug_revert", "specdebug_content", *_BASELINES))):
        from specdebug.base.errors import SpecDebugError

        try:
            _bench(config).check()
        except SpecDebugError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Scenario files that were named, or that the ini option names."""
    if file_path.suffix not in ENDINGS:
        return None
    named = parent.session.isinitpath(file_path) and _looks_like_a_scenario(file_path)
    root, globs = parent.config.rootpath, parent.config.getini("specdebug_scenarios")
    name = file_path.relative_to(root).as_posix() if file_path.is_relative_to(root) else ""
    found = named or any(name and fnmatchcase(name, glob) for glob in globs)
    collector: pytest.Collector | None = ScenarioFile.from_parent(parent, path=file_path) if found else None
    return collector


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Save what was accepted, if that is asked for. Raises pytest.UsageError."""
    if bench := session.config.stash.get(_BENCH, None):
        from specdebug.base.errors import SpecDebugError

        try:
            bench.save()
        except SpecDebugError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the workers, if there are any."""
    if bench := config.stash.get(_BENCH, None):
        bench.close()


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    """Translate the exit code, if that is asked for."""
    if not config.getoption("specdebug_exit"):
        return (yield)
    codes = ExitCodes()
    config.pluginmanager.register(codes)
    try:
        code = yield
    except pytest.UsageError as error:  # which pytest would report just like this, and end with 4
        for message in error.args:
            print(f"ERROR: {message}", file=sys.stderr)
        return UNTESTABLE
    return codes.translate(int(code))


class ExitCodes:
    """Counts what bisecting needs to know of a session."""

    def __init__(self) -> None:
        self._passed = self._failed = self._unknown = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one phase of one test."""
        if report.failed:
            unknown = UNKNOWN in map(tuple, report.user_properties)
            self._unknown += unknown
            self._failed += not unknown
        elif report.when == "call" and (report.passed or hasattr(report, "wasxfail")):
            self._passed += 1

    def translate(self, code: int) -> int:
        """0 when something passed and nothing else happened, 1 when a test failed, else 125."""
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return UNTESTABLE
        if self._failed:
            return int(pytest.ExitCode.TESTS_FAILED)
        return 0 if self._passed and not self._unknown else UNTESTABLE


class ArmFailed(Exception):
    """An arm did not do what it should have; the text says what it did."""


class ScenarioFile(pytest.File):
    """A scenario."""

    def collect(self) -> Iterable[pytest.Item]:
        """An item for each arm and seed."""
        from specdebug.base.errors import SpecDebugError, problems_in

        bench = _bench(self.config)
        try:
            scenario = bench.library.scenario(str(self.path))
            seeds = bench.seeds(scenario)
        except SpecDebugError as error:
            raise self.CollectError("\n".join(map(str, problems_in(error)))) from None
        for arm in scenario.arms:
            for seed in seeds:
                name = arm if len(seeds) == 1 else f"{arm}[{seed}]"
                yield ArmItem.from_parent(self, name=name, scenario=scenario, arm=arm, seed=seed)


class ArmItem(pytest.Item):
    """One arm with one seed."""

    def __init__(self, *, scenario: Scenario, arm: str, seed: int, **node: Any) -> None:
        super().__init__(**node)
        self._scenario, self._arm, self._seed = scenario, arm, seed

    def runtest(self) -> None:
        """Run the arm in a worker. Raises ArmFailed."""
        from specdebug.campaign.loops.replay import NotOnTarget

        bench = _bench(self.config)
        try:
            result = bench.run(self._scenario, self._arm, self._seed)
        except NotOnTarget as left_out:
            pytest.skip(str(left_out))
        verdict = bench.judge(result)
        if verdict == "pass":
            return
        if verdict == "unavailable":
            pytest.skip(result.outcome.detail)
        if verdict == "unknown":
            self.user_properties.append(UNKNOWN)
        raise ArmFailed(self._story(result))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The story without a traceback, which would be through this file and nothing else."""
        from specdebug.base.errors import SpecDebugError

        if isinstance(excinfo.value, (ArmFailed, SpecDebugError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        line = self._scenario.where("arms", self._arm).line
        return self.path, line - 1 if line else None, self.name

    def _story(self, result: ArmResult) -> str:
        from specdebug.base.redaction import redacted
        from specdebug.report.replay import evidence
        from specdebug.report.terminal import text_of

        outcome, expectation = result.outcome, result.run.expectation
        wanted = ["pass"] if expectation is None else [expectation.verdict, *expectation.signatures]
        got = " ".join([outcome.verdict, *([outcome.signature] if outcome.signature else [])])
        lines = text_of([evidence(result)]).splitlines()
        here = self.config.invocation_params.dir
        file = self.path.relative_to(here) if self.path.is_relative_to(here) else self.path
        where = [str(file), "--arm", self._arm]
        own = self._scenario.arms[self._arm].revert
        if asked := [str(number) for number in result.run.reverts if number not in own]:
            where += ["--revert", ",".join(asked)]
        where += [word for folder in _bench(self.config).folders for word in ("--content", str(folder))]
        what = shlex.join(where)
        again = f"replay: specdebug replay {what} --seed {self._seed}", f"how often: specdebug flake {what}"
        return redacted("\n".join([f"{got}, expected {' '.join(wanted)}", *lines, *again]))


class ScenarioBench:
    """Content for the scenario tests of a session, and a pool that starts with the first of them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reverts = ",".join(config.getoption("specdebug_revert"))
        self._seeds: int = config.getoption("specdebug_seeds")
        self._locate: bool = not config.getoption("specdebug_no_locate")
        self._for_bisect: bool = config.getoption("specdebug_exit")
        self._pool: WorkerPool | None = None
        self._results: list[ArmResult] = []
        files = map(config.getoption, _BASELINES)
        self._held, self._saved = (one and config.invocation_params.dir / one for one in files)
        self.baseline: Baseline | None = None

    @cached_property
    def library(self) -> Library:
        """Shipped content, the session's folders, and what ``SPECDEBUG_PATH`` names. Raises SpecDebugError."""
        from specdebug.scenario.library import Library

        return Library(self.folders, "--specdebug-content")

    @cached_property
    def folders(self) -> list[Path]:
        """The session's content folders. Raises SpecDebugError."""
        from specdebug.base import configuration

        start = self._config.invocation_params.dir
        named = [start / name for name in self._config.getoption("specdebug_content")]
        return named or list(self._config.getini("specdebug_content")) or configuration.load(start).content

    def check(self) -> None:
        """Raise SpecDebugError when there is no such fix, no such content folder, or no such baseline."""
        from specdebug.base.content import content_roots
        from specdebug.base.errors import SpecDebugError
        from specdebug.campaign.loops.baseline import Baseline
        from specdebug.patching.toggles import parse_numbers, reverts_from_environment

        content_roots(self.folders)
        self.library.toggles(parse_numbers(self._reverts))
        if self._saved is not None and (self._reverts or reverts_from_environment()):
            raise SpecDebugError("--specdebug-save-baseline is of sound runs; it does not go with reverts")
        if self._saved is not None and self._saved.exists():
            Baseline.read(self._saved)
        if self._held is not None:
            self.baseline = Baseline.read(self._held)

    def seeds(self, scenario: Scenario) -> list[int]:
        """The scenario's own seed, or that of the trial in which this session runs, and as many more as are wanted."""
        from specdebug.base.trial import trial_seed
        from specdebug.campaign.trials.command import SEED_VARIABLE

        given = os.environ.get(SEED_VARIABLE, "")
        first = int(given) if given.isdecimal() else scenario.seed
        return [first, *(trial_seed(first, number) for number in range(1, self._seeds))]

    def run(self, scenario: Scenario, arm: str, seed: int) -> ArmResult:
        """Run one arm, as ``specdebug replay`` would. Raises SpecDebugError when that cannot be."""
        from specdebug.campaign.loops.replay import Choices, plan, run_arms
        from specdebug.campaign.preload import PRELOAD
        from specdebug.patching.toggles import parse_numbers, reverts_from_environment
        from specdebug.workers.pool import WorkerPool

        reverts = (*parse_numbers(self._reverts), *reverts_from_environment())
        (planned,) = plan(scenario, Choices(arms=(arm,), reverts=reverts, seed=seed), self.library)
        if self._pool is None:
            self._pool = WorkerPool(1, PRELOAD)
            self._pool.start()
        expected = None if reverts else scenario.expectation_of(arm)
        runs = [replace(planned, expectation=expected)]
        results, interrupted = run_arms(self._pool, self.library, runs, baseline=self.baseline)
        if interrupted:
            raise KeyboardInterrupt
        self._results += results
        return self._located(results[0])

    def _located(self, result: ArmResult) -> ArmResult:
        """The result of an arm that did not do as it should, with the place where its failure began."""
        from specdebug.diverge.locate import Locator

        assert self._pool is not None
        if not self._locate or self._for_bisect or self.judge(result) != "fail":
            return result
        locator = Locator(self._pool, self.library)
        (told,) = locator.located([result])
        if locator.interrupted:
            raise KeyboardInterrupt
        return told

    def judge(self, result: ArmResult) -> str:
        """``pass``, ``fail``, ``unknown`` or, where this machine lacks what the arm needs, ``unavailable``."""
        outcome = result.outcome
        if result.met or (result.met is None and outcome.verdict == "pass"):
            return "pass"
        if self._for_bisect and result.met is None:
            from specdebug.campaign.trials.scenario import result_of

            # A fix whose lines never ran has not shown: that is no failure, and bisecting needs to know it.
            return {"pass": "pass", "fail": "fail", "untestable": "unknown"}[result_of(outcome).outcome]
        if outcome.unavailable and not self._for_bisect:
            return "unavailable"
        return "unknown" if outcome.verdict == "unknown" else "fail"

    def save(self) -> None:
        """Write the baseline that is asked for, and say so on stderr. Raises SpecDebugError."""
        if self._saved is not None:
            from specdebug.campaign.loops.baseline import save

            for line in save(self._saved, self._results):
                print(line, file=sys.stderr)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()


_BENCH = pytest.StashKey[ScenarioBench]()


def _bench(config: pytest.Config) -> ScenarioBench:
    return config.stash.setdefault(_BENCH, ScenarioBench(config))


def _looks_like_a_scenario(path: Path) -> bool:
    """Return True if a file has a key of a scenario, right or wrong: other plugins have YAML files of their own."""
    from specdebug.base.files import open_file
    from specdebug.base.yamlio import MAX_BYTES

    try:
        with open_file(path) as file:
            return _SCENARIO_KEY.search(file.read(MAX_BYTES)) is not None
    except OSError:
        return False
