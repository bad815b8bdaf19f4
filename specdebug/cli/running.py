"""The shared part of commands that run something: workers, progress, a command after ``--``, and the journal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from specdebug.base.errors import SpecDebugError
from specdebug.cli.options import ResumeAnyway
from specdebug.cli.output import OutputError, note, on_stderr, write_file

if TYPE_CHECKING:
    from specdebug.campaign.trials.journal import Earlier, Journal
    from specdebug.campaign.trials.state import State
    from specdebug.report.progress import RunProgress
    from specdebug.workers.pool import WorkerPool

UNDECIDED = 125
"""The exit code of a command that came to no answer."""
FOLDER = Path(".specdebug")
"""The folder for files without a place of their own."""
_COMMAND = "specdebug.command"


@contextlib.contextmanager
def workers(jobs: int) -> Iterator[WorkerPool]:
    """Start workers, which get ready while the caller reads and checks their work."""
    from specdebug.campaign.preload import PRELOAD
    from specdebug.workers.pool import WorkerPool

    with WorkerPool(jobs, PRELOAD) as pool:
        pool.start()
        yield pool


def progress() -> AbstractContextManager[RunProgress]:
    """Return the display of runs on stderr."""
    from specdebug.report.progress import RunProgress

    return on_stderr(RunProgress)


class WithCommand(TyperCommand):
    """A command line that may end in ``-- CMD ...``; the words after the dashes are left as they are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command aside, parse the rest."""
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[_COMMAND] = args[:at], tuple(args[at + 1 :])
        return super().parse_args(ctx, args)


def command_of(ctx: typer.Context, scenario: str | None) -> tuple[str, ...]:
    """Return the words after ``--``; empty where there is a scenario. Raises SpecDebugError for both, or neither."""
    command: tuple[str, ...] = ctx.meta.get(_COMMAND, ())
    name = ctx.command.name
    if scenario is not None and command:
        raise SpecDebugError(f"{name} takes a scenario or, after --, a command; not both")
    if scenario is None and not command:
        raise SpecDebugError(f"{name} needs a scenario or, after --, a command, as in: specdebug {name} -- ./test.sh")
    return command


def confidence_of(text: str) -> float:
    """Return a confidence given as 0.95 or 95%. Raises SpecDebugError."""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = 0.0
    if rest or not 0.5 < value < 1:
        raise SpecDebugError(f"--confidence must be above 50% and below 100%, such as 0.95 or 95%, got {text!r}")
    return value


def tell_rerun(count: int) -> None:
    """Say on stderr how many trials were lost with their worker and made once more."""
    if count:
        whose = "1 trial whose worker was" if count == 1 else f"{count} trials whose workers were"
        note(f"{whose} killed, or lost the device, ran again: nothing of that counts")


def own_folder() -> Path:
    """Make our folder, tell git to ignore it, and return it."""
    with contextlib.suppress(OSError, OutputError):  # the next to write to it will say so
        FOLDER.mkdir()
        write_file(FOLDER / ".gitignore", "*\n")
    return FOLDER


@dataclass(frozen=True)
class JournalOptions:
    """The file that a search keeps its trials in."""

    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal", metavar="FILE", help="Where trials are kept; .specdebug/{command}-*.sqlite unless given."
        ),
    ] = None
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; the journal is kept as FILE.bak, in place of any there.")
    ] = False

    def path(self, command: str, identity: str) -> Path:
        """Return the path of the journal; without one on the command line, in our own folder."""
        return self.journal or own_folder() / f"{command}-{identity}.sqlite"

    resume_anyway: ResumeAnyway = False

    @contextlib.contextmanager
    def opened(self, path: Path, identity: str, about: str, state: State) -> Iterator[Journal]:
        """Open the journal; if another was put aside, say on stderr where and why. Raises SpecDebugError."""
        from specdebug.campaign.trials.journal import Journal

        if self.fresh and self.resume_anyway:
            raise SpecDebugError("--fresh starts over, --resume-anyway goes on; give one of them")
        asked = {"fresh": self.fresh, "anyway": self.resume_anyway}
        with Journal(path, identity, about, state=state, **asked) as journal:
            if journal.kept is not None:
                note(f"the journal of before is kept as {journal.kept}")
            if journal.earlier is not None and journal.earlier.trials:
                note(_told_of(journal.earlier))
            yield journal


def gone_on(what: str, differs: Sequence[str]) -> str:
    """Say in one line that a search goes on with what it has of another state."""
    from specdebug.campaign.trials.state import shortly

    return f"going on with {what} of before a change, as --resume-anyway says ({shortly(differs)})"


def _told_of(earlier: Earlier) -> str:
    """Say in one line that a journal is there of another state."""
    from specdebug.campaign.trials.state import shortly
    from specdebug.report.words import counted

    trials = counted(earlier.trials, "trial")
    if earlier.adopted:
        return gone_on(trials, earlier.differs)
    begun = "goes on with the trials of this state" if earlier.back else "is another search, from nothing"
    again = f"--resume-anyway goes on with the {trials} of before, kept in {earlier.path}"
    return f"{shortly(earlier.differs)}: this {begun}; {again}"
