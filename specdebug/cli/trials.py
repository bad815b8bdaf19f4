"""Commands that run trials share this: a command after ``--``, a place for journals."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specdebug.cli.old_calls import OldJson
from specdebug.cli.output import OutputError, write_file
from specdebug.errors import SpecDebugError

if TYPE_CHECKING:
    from specdebug.trials.journal import Journal

_COMMAND = "specdebug.command"


class WithCommand(OldJson):
    """A command line that may end in ``-- CMD ...``; what follows the dashes is left as it is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command aside, parse the rest."""
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[_COMMAND] = args[:at], tuple(args[at + 1 :])
        return super().parse_args(ctx, args)

    def has_subject(self, ctx: Any, words: list[str]) -> bool:
        """A command is one, too."""
        return _COMMAND in ctx.meta or super().has_subject(ctx, words)


def command_of(ctx: typer.Context) -> tuple[str, ...]:
    """Return what followed the dashes; nothing where there were none."""
    command: tuple[str, ...] = ctx.meta.get(_COMMAND, ())
    return command


def confidence_of(text: str) -> float:
    """A confidence as the command line has it. Raises SpecDebugError."""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = 0.0
    if rest or not 0.5 < value < 1:
        raise SpecDebugError(f"--confidence must be above 50% and below 100%, such as 0.95 or 95%, got {text!r}")
    return value


def tell_kept(journal: Journal) -> None:
    """Say on stderr where the journal is that ``--fresh`` put aside."""
    if journal.kept is not None and sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"the journal of before is kept as {journal.kept}", file=sys.stderr, flush=True)


def tell_rerun(count: int) -> None:
    """Say on stderr how many trials were lost with their worker and made once more."""
    if count and sys.stderr is not None:
        whose = "1 trial whose worker was" if count == 1 else f"{count} trials whose workers were"
        with contextlib.suppress(OSError):
            print(f"{whose} killed, or lost the device, ran again: nothing of that counts", file=sys.stderr, flush=True)


def own_folder() -> Path:
    """Return where journals lie that nobody named a place for, and tell git to leave it alone."""
    folder = Path(".specdebug")
    with contextlib.suppress(OSError, OutputError):  # whoever writes to it next will say so
        folder.mkdir()
        write_file(folder / ".gitignore", "*\n")
    return folder
