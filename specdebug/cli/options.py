"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


class _State:
    debug = False


def debug_wanted() -> bool:
    """Whether ``--debug`` was given."""
    return _State.debug


def forget_debug() -> None:
    """Before each command line: a process may run several (the tests do)."""
    _State.debug = False


def _set_debug(value: bool) -> None:
    _State.debug = _State.debug or value


Debug = Annotated[
    bool, typer.Option("--debug", help="Show tracebacks.", callback=_set_debug, is_eager=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]
Content = Annotated[
    list[Path] | None,
    typer.Option("--content", metavar="DIR", help="A folder with your own scenarios/, toggles/ and probes/."),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=0, help="Workers at a time; 0: one more than cores.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Instead of the scenario's own seed.")]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", help="For each arm, not the scenario's.")
]
File = Annotated[str, typer.Argument(metavar="FILE", help="A scenario file, or the name of a shipped one.")]

