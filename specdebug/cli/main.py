"""Entry point: the command tree, and the end of a command that fails.

Exit codes: 0 and 1 answer the question asked, 125 leaves it undecided (``git bisect run`` skips such a commit), 2 is
the user's to mend (one line, ``error: ...``), 3 is a fault of specdebug itself, 128 and N a signal's.
"""

import contextlib
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
    compare,
    engines,
    evaluate,
    faults,
    flake,
    history,
    hunt,
    listings,
    minimise,
    mutants,
    new,
    output,
    replay,
    serve,
    solve,
    toggles,
    triage,
    twins,
)
from specdebug.cli import run as run_command
from specdebug.cli.options import Command, enter
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
COMMANDS: dict[str, tuple[type[Command], dict[str, Any]]] = {
    "replay": (replay.ReplayCommand, {}),
    "compare": (compare.CompareCommand, {}),
    "diverge": (compare.DivergeCommand, {}),
    "twins": (twins.TwinsCommand, {}),
    "bundle": (replay.BundleCommand, {}),
    "bisect": (bisect.BisectCommand, {}),
    "flake": (flake.FlakeCommand, {}),
    "run": (run_command.RunCommand, {}),
    "minimise": (minimise.MinimiseCommand, {}),
    "minimize": (minimise.MinimiseCommand, {"hidden": True}),
    "hunt": (hunt.HuntCommand, {}),
    "mutants": (mutants.MutantsCommand, {}),
    "history": (history.HistoryCommand, {}),
    "triage": (triage.TriageCommand, {}),
    "solve": (solve.SolveCommand, {}),
    "eval": (evaluate.EvalCommand, {}),
    "serve": (
        serve.ServeCommand,
        {"context_settings": {"allow_extra_args": True, "ignore_unknown_options": True}},
    ),
    "doctor": (listings.DoctorCommand, {}),
    "config": (listings.ConfigCommand, {}),
}
GROUPS: dict[str, tuple[str, dict[str, type[Command]]]] = {
    "new": ("Write scenarios, toggles and probe packs to begin with, and their schemas.", new.COMMANDS),
    "toggles": ("List, show, verify and check the fixes that can be reverted.", toggles.COMMANDS),
    "probes": ("List probe sites and packs, and check packs.", listings.PROBES),
    "scenarios": ("List and check scenarios.", listings.SCENARIOS),
    "faults": ("List and show the faults that can be injected, and verify what catches them.", faults.COMMANDS),
    "engines": ("Install releases of SGLang and vLLM, to run scenarios on.", engines.COMMANDS),
}
for name, (kind, settings) in COMMANDS.items():
    enter(app, name, kind, **settings)
for name, (about, below) in GROUPS.items():
    app.add_typer(group := typer.Typer(name=name, help=about))
    for word, kind in below.items():
        enter(group, word, kind)

# The base of all errors of a command line. Newer versions of typer keep their click to themselves.
_USAGE: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _version(wanted: bool) -> None:
    if wanted:
        output.write(f"specdebug {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", callback=output.set_debug, is_eager=True, help="Show tracebacks.")
    ] = False,
) -> None:
    """Options before the command."""


def defaults_of(command: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults that settings give a command and those below it, by the option's name."""
    below = {name: defaults_of(one, settings) for name, one in getattr(command, "commands", {}).items()}
    keys = {param.name: configuration.ALIASES.get(param.name, param.name) for param in command.params}
    return below | {name: settings[key] for name, key in keys.items() if key in settings}


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; no exception escapes."""
    output.begin_command_line(argv)
    try:
        command = typer.main.get_command(app)
        try:
            settings = defaults_of(command, configuration.load().values)
        except SpecDebugError:
            if COMPLETING not in os.environ:
                raise
            settings = {}  # at a shell's prompt a wrong file sets nothing
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
            return _failed([machine.reason], output.UNDECIDED, error)
        return _failed([output.internal_error(error)], INTERNAL_ERROR, error)


def _failed(messages: Sequence[str], code: int, error: BaseException) -> int:
    """Say what ended the command, and return its exit code: a signal's, if one was heard. Where the terminal went away
    writing to it fails because of that, and what was cut short may lack what a report wants."""
    if output.debug_wanted():
        output.note("".join(traceback.format_exception(error)).rstrip())
    for each in messages:
        output.complain(each)
    return interrupts.exit_code() if interrupts.was_heard() else code


def main() -> None:
    """The ``specdebug`` command."""
    output.open_standard_streams()
    interrupts.listen()
    try:
        with contextlib.nullcontext() if COMPLETING in os.environ else output.heartbeat():
            code = run(sys.argv[1:])
        interrupts.last()
    except KeyboardInterrupt:  # came between the two
        code = interrupts.exit_code()
    sys.exit(code)


if __name__ == "__main__":  # `python -m specdebug.cli.main` is the command as well, and not nothing
    main()
