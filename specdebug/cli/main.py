"""Entry point: the command tree, and the end of a command that fails.

Exit codes: 0 and 1 answer the question asked, 125 leaves it undecided (``git bisect run`` skips such a commit), 2 is
the user's to mend (one line, ``error: ...``), 3 is a fault of specdebug itself, 128 and N a signal's.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from specdebug import __version__
from specdebug.base import configuration, interrupts
from specdebug.base.errors import SpecDebugError, problems_in
from specdebug.cli import (
    bisect,
    bundle,
    compare,
    config,
    diverge,
    doctor,
    engines,
    eval,
    faults,
    flake,
    hunt,
    minimise,
    mutants,
    probes,
    replay,
    scenarios,
    serve,
    toggles,
    triage,
)
from specdebug.cli.config import defaults_of
from specdebug.cli.options import Debug
from specdebug.cli.output import begin_command_line, complain, debug_wanted, note, open_standard_streams, write
from specdebug.cli.running import UNDECIDED, WithCommand
from specdebug.workers.machine_failure import machine_failure

INTERNAL_ERROR = 3
COMPLETING = "_SPECDEBUG_COMPLETE"
"""Set by a shell that asks for completions."""

app = typer.Typer(
    name="specdebug",
    help="Debug speculative LLM serving: replay scenarios, revert fixes one by one, and name what breaks.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("replay")(replay.replay)
app.command("compare")(compare.compare)
app.command("diverge")(diverge.diverge)
app.command("bundle")(bundle.bundle)
app.command("bisect", cls=WithCommand)(bisect.bisect)
app.command("flake", cls=WithCommand)(flake.flake)
app.command("minimise")(minimise.minimise)
app.command("minimize", hidden=True)(minimise.minimise)
app.command("hunt")(hunt.hunt)
app.command("mutants")(mutants.mutants)
app.command("triage")(triage.triage)
app.command("eval")(eval.evaluate)
app.add_typer(toggles.app, name="toggles")
app.add_typer(probes.app, name="probes")
app.add_typer(scenarios.app, name="scenarios")
app.add_typer(faults.app, name="faults")
app.add_typer(engines.app, name="engines")
app.command("serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(serve.serve)
app.command("doctor")(doctor.doctor)
app.command("config")(config.config)

# The base of all errors of a command line. Newer versions of typer keep their click to themselves.
_USAGE: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _flow_help(app: typer.Typer) -> None:
    """Take the line breaks of the source out of every command's help, for terminals of any width."""
    for command in app.registered_commands:
        text = command.help or inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _flow_help(group.typer_instance)


_flow_help(app)


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
    """Run one command line and return its exit code; no exception escapes."""
    begin_command_line(argv)
    try:
        command = typer.main.get_command(app)
        settings = defaults_of(command, _configured())
        code = command.main(list(argv) or ["--help"], "specdebug", standalone_mode=False, default_map=settings)
        if interrupts.was_heard():  # typer makes a 130 of any
            return interrupts.exit_code()
        return code if isinstance(code, int) else 0
    except SpecDebugError as error:
        return _failed([str(each) for each in problems_in(error)], error.exit_code, error)
    except (KeyboardInterrupt, typer.Abort):
        return interrupts.exit_code()
    except _USAGE as error:
        message: str = error.format_message()  # type: ignore[attr-defined]
        return _failed([" ".join(message.split()).rstrip(".")], 2, error)
    except Exception as error:
        machine = machine_failure(error)
        if machine is not None:
            return _failed([machine.reason], UNDECIDED, error)
        what = f"internal error: {type(error).__name__}: {' '.join(str(error).split())}"
        hint = "" if debug_wanted() else " (--debug shows where; please report it)"
        return _failed([what + hint], INTERNAL_ERROR, error)


def _configured() -> Mapping[str, Any]:
    """Return the settings of the configuration file; at a shell's prompt a wrong file has none."""
    try:
        return configuration.load().values
    except SpecDebugError:
        if COMPLETING in os.environ:
            return {}
        raise


def _failed(messages: Sequence[str], code: int, error: BaseException) -> int:
    """Say what ended the command, and return its exit code: a signal's, if one was heard. Where the terminal went away
    writing to it fails because of that, and what was cut short may lack what a report wants."""
    if debug_wanted():
        note("".join(traceback.format_exception(error)).rstrip())
    for each in messages:
        complain(each)
    return interrupts.exit_code() if interrupts.was_heard() else code


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


if __name__ == "__main__":  # `python -m specdebug.cli.main` is the command as well, and not nothing
    main()
