"""``specdebug triage``."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from specdebug import interrupts
from specdebug.cli.options import Content, Debug, Jobs, Json
from specdebug.cli.output import show, write
from specdebug.cli.replay import open_library, progress, workers
from specdebug.errors import SpecDebugError

if TYPE_CHECKING:
    from specdebug.harness.library import Library
    from specdebug.triage.candidates import Candidate
    from specdebug.triage.run import Tried
    from specdebug.triage.scan import Scan


class LogError(SpecDebugError):
    """A log cannot be read."""


def triage(
    log: Annotated[str, typer.Argument(metavar="LOG|-", help="A log file; - reads standard input.")],
    run: Annotated[bool, typer.Option("--run", help="Try the candidates: does one fail as the log did?")] = False,
    as_json: Json = False,
    jobs: Jobs = 0,
    content: Content = None,
    debug: Debug = False,
) -> int:
    """Name the failure in a CI log (ours, an SGLang server's, pytest's), the fixes to suspect, and what to run next.

    Exit code 0 when a failure was found, 1 when the log holds none. With --run: 0 when a candidate fails as the log
    did, 125 when none does.
    """
    from specdebug.triage.scan import scan

    name = "stdin" if log == "-" else log
    try:
        with _open(log) as stream:
            found = scan(stream)
    except OSError as error:
        raise LogError(f"{name}: cannot be read: {error.strerror or error}") from None
    library = open_library(content)
    return _answer(name, found, library, run=run, jobs=jobs, as_json=as_json)


@interrupts.held()
def _answer(name: str, found: Scan, library: Library, *, run: bool, jobs: int, as_json: bool) -> int:
    """Rank the candidates, try them if that is wanted, and say all of it."""
    from specdebug.triage.candidates import candidates, commands

    best = candidates(found, library)
    tried: tuple[Tried, ...] = ()
    interrupted, trouble = False, None
    if run and best and found.main is not None:
        from specdebug.triage import run as trying

        try:
            with workers(jobs) as pool, progress() as watcher:
                tried, interrupted = trying.try_out(pool, library, best, found.main, watcher)
        except KeyboardInterrupt:
            interrupted = True
        except SpecDebugError as error:  # what the log told is said all the same
            trouble = error
    told = commands(found, best, library)
    if as_json:
        from specdebug.report.document import to_json

        write(to_json(_document(name, found, best, told, tried)))
    else:
        from specdebug.report.triage import render_triage

        show(render_triage(name, found, best, told, tried), fold=False)
    if trouble is not None:
        raise trouble
    if interrupted:
        return interrupts.exit_code()
    if found.main is None:
        return 1
    return 125 if run and not any(one.alike for one in tried) else 0


def _open(log: str) -> AbstractContextManager[BinaryIO]:
    if log != "-":
        return open(log, "rb")
    if sys.stdin is None:
        raise LogError("stdin: is closed; name a log file")
    return nullcontext(sys.stdin.buffer)


def _document(
    name: str, found: Scan, best: tuple[Candidate, ...], commands: tuple[str, ...], tried: tuple[Tried, ...]
) -> dict[str, Any]:
    return {
        "log": name,
        "lines": found.lines,
        "bytes": found.size,
        "signature": None if found.main is None else found.main.signature,
        "findings": [finding.to_dict() for finding in found.ranked()],
        "facts": found.facts.to_dict(),
        "candidates": [
            {
                "pr": candidate.toggle.pr,
                "title": candidate.toggle.title,
                "scenario": candidate.toggle.detected_by.scenario,
                "arm": candidate.arm,
                "points": candidate.points,
                "exact": candidate.exact,
                "reasons": list(candidate.reasons),
            }
            for candidate in best
        ],
        "commands": list(commands),
        "tried": [one.to_dict() for one in tried],
    }
