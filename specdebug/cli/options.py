"""Options that several commands share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specdebug.errors import SpecDebugError


class _State:
    debug = False
    argv: tuple[str, ...] = ()


def debug_wanted() -> bool:
    """Whether ``--debug`` was given."""
    return _State.debug


def forget_debug() -> None:
    """Before each command line: a process may run several (the tests do)."""
    _State.debug = False


def remember_command_line(argv: Sequence[str]) -> None:
    """What this command was called with, for those who pass results on."""
    _State.argv = tuple(argv)


def command_line() -> str:
    """The command as one would type it."""
    return shlex.join(("specdebug", *_State.argv))


def _set_debug(value: bool) -> None:
    _State.debug = _State.debug or value


class Dtype(StrEnum):
    """Of weights, activations and KV."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Backend(StrEnum):
    """Whose attention metadata is planned."""

    FLASHINFER = "flashinfer"
    FA3 = "fa3"
    TRITON = "triton"


def engine_overrides(device: str | None, dtype: Dtype | None, backend: Backend | None) -> dict[str, str]:
    """Engine options that the command line sets for every arm. Raises SpecDebugError for a device that is none."""
    if device is not None and not re.fullmatch(r"cpu|cuda(:[0-9]{1,2})?", device):
        raise SpecDebugError(f"--device must be cpu, cuda or cuda:N, got {device!r}")
    chosen = {"device": device, "dtype": dtype, "attention_backend": backend}
    return {option: str(value) for option, value in chosen.items() if value is not None}


Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.", callback=_set_debug, is_eager=True)]
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
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="A self-contained page, too, whatever the verdict.")
]
Junit = Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="JUnit XML, too.")]
File = Annotated[str, typer.Argument(metavar="FILE", help="A scenario file, or the name of a shipped one.")]
OnDevice = Annotated[
    str | None, typer.Option("--device", metavar="cpu|cuda[:N]", help="Run every arm there, whatever the file says.")
]
InDtype = Annotated[Dtype | None, typer.Option("--dtype", help="For every arm, not the scenario's.")]
WithBackend = Annotated[Backend | None, typer.Option("--backend", help="Attention plan of every arm.")]
