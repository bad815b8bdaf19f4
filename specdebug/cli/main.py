"""Entry point: the command tree, and how whatever goes wrong ends.

Exit codes: 0 and 1 say whether what was asked holds, 125 that it could not be decided (``git bisect run``
skips such a commit), 2 is the user's to mend (one line, ``error: ...``), 3 is a fault of specdebug itself,
128 and a signal's number what one cut short.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from specdebug import __version__, interrupts
from specdebug.cli import (
    bisect,
    bundle,
    diverge,
    doctor,
    faults,
    flake,
    minimise,
    probes,
    replay,
    scenarios,
    toggles,
    triage,
)
from specdebug.cli.options import Debug, debug_wanted, forget_debug, remember_command_line
from specdebug.cli.output import open_standard_streams, write
from specdebug.cli.trials import WithCommand
from specdebug.errors import SpecDebugError

INTERNAL_ERROR = 3

app = typer.Typer(
    name="specdebug",
    help="Debug speculative LLM serving: replay scenarios, revert fixes one by one, and name what breaks.",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("replay")(replay.replay)
app.command("compare")(replay.compare)
app.command("diverge")(diverge.diverge)
app.command("bundle")(bundle.bundle)
app.command("bisect", cls=WithCommand)(bisect.bisect)
app.command("flake", cls=WithCommand)(flake.flake)
app.command("minimise")(minimise.minimise)
app.command("triage")(triage.triage)
app.add_typer(toggles.app, name="toggles")
app.add_typer(probes.app, name="probes")
app.add_typer(scenarios.app, name="scenarios")
app.add_typer(faults.app, name="faults")
app.command("doctor")(doctor.doctor)

# Base of everything that can be wrong with a command line. Newer versions of typer keep their click to
# themselves.
_USAGE: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _version(wanted: bool) -> None:
    if wanted:
        write(f"specdebug {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Options before the command."""


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; nothing escapes."""
    forget_debug()
    remember_command_line(argv)
    try:
        code = app(args=list(argv) or ["--help"], prog_name="specdebug", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except SpecDebugError as error:
        code = error.exit_code if error.exit_code in (1, 2) else 2
        # Where the terminal went away, what was to be written to it fails because of that.
        return _failed(str(error), interrupts.exit_code() if interrupts.was_heard() else code, error)
    except (KeyboardInterrupt, typer.Abort):
        return interrupts.exit_code()
    except _USAGE as error:
        return _failed(_one_line(error), 2, error)
    except Exception as error:
        what = f"internal error: {type(error).__name__}: {' '.join(str(error).split())}"
        hint = "" if debug_wanted() else " (--debug shows where; please report it)"
        return _failed(what + hint, INTERNAL_ERROR, error)


def _one_line(error: Exception) -> str:
    """What typer has to say about a command line."""
    message: str = error.format_message()  # type: ignore[attr-defined]
    return " ".join(message.split()).rstrip(".")


def _failed(message: str, code: int, error: BaseException) -> int:
    if debug_wanted():
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    # stderr may be closed or full too; the exit code is then all that is left to say it with.
    try:
        print(f"error: {message}", file=sys.stderr, flush=True)
    except OSError:
        return code
    return code


def main() -> None:
    """The ``specdebug`` command."""
    open_standard_streams()
    interrupts.listen()
    try:
        code = run(sys.argv[1:])
        interrupts.last()
    except KeyboardInterrupt:  # came between the two
        code = interrupts.exit_code()
    sys.exit(code)
