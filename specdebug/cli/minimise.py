"""``specdebug minimise``: the smallest scenario that still fails in the same way."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdebug import interrupts
from specdebug.cli import complete
from specdebug.cli.options import (
    Content,
    Debug,
    InDtype,
    Json,
    JsonFile,
    OnDevice,
    Reverts,
    WithBackend,
    WithPageSize,
    engine_overrides,
    engine_words,
)
from specdebug.cli.output import check_writable, write
from specdebug.cli.replay import open_library
from specdebug.cli.results import check_files, tell_work, write_files
from specdebug.cli.trials import confidence_of, own_folder, tell_kept, tell_rerun
from specdebug.errors import SpecDebugError, did_you_mean

if TYPE_CHECKING:
    from specdebug.minimise import Seen, Summary
    from specdebug.report.minimise import MinimiseProgress, Subject
    from specdebug.scenario.grammar import Scenario
    from specdebug.trials.journal import Journal

UNDECIDED = 125


def minimise(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO",
            help="A scenario file, or the name of a shipped one.",
            autocompletion=complete.scenarios,
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where the small scenario goes.")],
    arm: Annotated[
        str | None,
        typer.Option(
            "--arm",
            help="The arm that fails; the first that is expected to unless given.",
            autocompletion=complete.arms,
        ),
    ] = None,
    revert: Reverts = None,
    signature: Annotated[
        str | None,
        typer.Option(
            "--signature",
            metavar="GLOB",
            help="Keep these failures, not the most frequent.",
            autocompletion=complete.signatures,
        ),
    ] = None,
    confidence: Annotated[
        str, typer.Option("--confidence", metavar="P", help="What is kept is needed at this probability (0.95, 95%).")
    ] = "95%",
    max_trials: Annotated[int, typer.Option("--max-trials", min=1, help="Write what there is after so many.")] = 1000,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Trials at a time.")] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the trials' seeds.")] = 0,
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal", metavar="FILE", help="Where trials are kept; .specdebug/minimise-*.sqlite unless given."
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; the journal is kept as FILE.bak, in place of any there.")
    ] = False,
    as_json: Json = False,
    json_file: JsonFile = None,
    device: OnDevice = None,
    dtype: InDtype = None,
    backend: WithBackend = None,
    page_size: WithPageSize = None,
    content: Content = None,
    debug: Debug = False,
) -> int:
    """Write the smallest scenario that still fails in the same way, however seldom it fails.

    Requests are dropped, then prompts, outputs and engine options are made smaller. What is kept was taken away by
    itself until it was certain that the failure needs it. The file that is written fails every time it is replayed.

    Every trial is kept in a journal: the same command goes on where it was stopped. Exit code 0 when nothing more can
    be taken away, 125 when that is not known yet (what there is is written all the same), or when nothing failed.
    """
    from specdebug.toggles import parse_numbers, reverts_from_environment

    level = confidence_of(confidence)
    check_writable(output)
    check_files(json_file)
    library = open_library(content)
    over = engine_overrides(device, dtype, backend, page_size)
    whole = replace(library.scenario(scenario), overrides=dict(over))
    name = _arm_of(whole, arm)
    toggles = library.toggles(
        (*whole.arms[name].revert, *parse_numbers(",".join(revert or ())), *reverts_from_environment())
    )

    from specdebug import __version__
    from specdebug.loops.warm import WarmPool
    from specdebug.minimise import Minimiser
    from specdebug.report.minimise import Subject
    from specdebug.shrink.space import ScenarioSpace
    from specdebug.shrink.trials import WarmOracle
    from specdebug.trials.command import digest_of
    from specdebug.trials.journal import Journal
    from specdebug.trials.trial import trial_seed

    space = ScenarioSpace(whole, name, tuple(toggle.pr for toggle in toggles))
    added = [str(toggle.pr) for toggle in toggles if not set(toggle.numbers) & set(whole.arms[name].revert)]
    words = [scenario, "--arm", name, *(("--revert", ",".join(added)) if added else ()), *engine_words(over)]
    what = shlex.join(words)
    facts = (repr(space.start.to_dict()), repr(toggles), repr(library.packs(space.start.probes)), __version__)
    identity = digest_of("minimise", *facts, str(seed), str(jobs), signature or "", str(level))
    path = journal or own_folder() / f"minimise-{identity}.sqlite"
    subject = Subject(what, len(space.start.workload), str(output), str(path), level)
    with (
        interrupts.held(),
        Journal(path, identity, f"minimising {what}, seed {seed}, {jobs} at a time", fresh=fresh) as kept,
        WarmPool(space.start, (name,), toggles, jobs) as pool,
        _watcher() as watcher,
    ):
        tell_kept(kept)
        search = Minimiser(
            space,
            WarmOracle(pool, space, library.packs(space.start.probes), toggles),
            seeds=lambda number: trial_seed(seed, number),
            memory=_Remembered(kept),
            max_trials=max_trials,
            confidence=level,
            pattern=signature,
        )
        summary = search.run(watcher)
    tell_rerun(pool.rerun)
    _publish(summary, subject, whole.name, json_file, as_json=as_json)
    return _exit_code(summary)


class _Remembered:
    """The journal, as the search sees it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def recall(self, number: int, gone: frozenset[str], seed: int) -> Seen | None:
        """What the journal has; raises where it has another trial, for then it was not made by this search."""
        from specdebug.minimise import Seen
        from specdebug.trials.journal import JournalError

        found = self._journal.trials.get(number)
        if found is None:
            return None
        trial, result = found
        if trial.reverted != gone or trial.seed != seed:
            hint = "start over with --fresh, which keeps it under another name"
            raise JournalError(f"the journal {self._journal.path} has another trial {number} than this search; {hint}")
        return Seen(result.signature, result.seconds)

    def keep(self, number: int, gone: frozenset[str], seed: int, seen: Seen) -> None:
        """Write a trial down."""
        from specdebug.trials.trial import Trial, TrialResult

        outcome = TrialResult("pass" if seen.signature is None else "fail", seen.signature, seen.seconds)
        self._journal.record(Trial(number, gone, seed), outcome)


def _arm_of(scenario: Scenario, named: str | None) -> str:
    if named is not None and named not in scenario.arms:
        raise SpecDebugError(f"{scenario.path}: no arm '{named}'{did_you_mean(named, scenario.arms)}")
    failing = [name for name, expected in scenario.expect.items() if expected.verdict == "fail"]
    return named or next(iter(failing), None) or next(iter(scenario.arms))


def _file_text(summary: Summary[Scenario], subject: Subject, name: str) -> str:
    from specdebug import __version__
    from specdebug.report.minimise import headline, needed_lines, rate_text
    from specdebug.shrink.file import scenario_text

    followed = summary.followed or "*"
    header: Sequence[str] = (
        f"The smallest part of {name} found to fail with {followed}.",
        "",
        f"Made by specdebug {__version__}: specdebug minimise {subject.what} -o {shlex.quote(subject.output)}",
        f"{headline(replace(summary, resumed=0), subject)}.",  # the file is the same however often it was stopped
        f"The whole {rate_text(*summary.whole)}; this {rate_text(*summary.left)} with fresh seeds, with the one below"
        " every time.",
        *needed_lines(summary, subject),
        "",
        f"Look at: the signature {followed}. Seeds that fail: {', '.join(map(str, summary.seeds[:8]))}",
    )
    return scenario_text(summary.smallest, f"{name}-minimal", summary.seeds[0], followed, header)


def _publish(summary: Summary[Scenario], subject: Subject, name: str, json_file: Path | None, *, as_json: bool) -> None:
    """Report on stdout, where a JSON document takes its place; then the small scenario, and the document in a file."""
    from specdebug.report.document import to_json
    from specdebug.report.minimise import minimise_document, summary_text

    document = to_json(minimise_document(summary, subject, _exit_code(summary)))

    def keep() -> None:
        small = Path(subject.output) if summary.seeds else None
        write_files((small, lambda: _file_text(summary, subject, name)), (json_file, lambda: document + "\n"))

    tell_work(summary.trouble, lambda: write(document if as_json else summary_text(summary, subject)), keep)


def _exit_code(summary: Summary[Scenario]) -> int:
    if summary.trouble is not None:
        return summary.trouble.exit_code
    return {"done": 0, "interrupted": interrupts.exit_code()}.get(summary.reason, UNDECIDED)


@contextmanager
def _watcher() -> Iterator[MinimiseProgress]:
    """Progress on stderr, if there is one."""
    from specdebug.report.minimise import MinimiseProgress

    with contextlib.ExitStack() as stack:
        stream = sys.stderr or stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        yield MinimiseProgress(stream)
