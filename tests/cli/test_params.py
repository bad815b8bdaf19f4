"""Groups of options: what a command that takes them looks like to typer, and what it is called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from specdebug.cli.options import Help, grouped

Loud = Annotated[bool, typer.Option("--loud", help="Said by {command}.")]


@dataclass(frozen=True)
class Greeting:
    """Whom to greet."""

    name: Annotated[str, typer.Argument(metavar="NAME", help="Whom to greet.")]
    loud: Loud = False


@dataclass(frozen=True)
class LoudGreeting(Greeting):
    """The same with more to choose."""

    times: Annotated[int, typer.Option("--times", min=1, help="How often.")] = 1


@dataclass(frozen=True)
class OwnWords:
    """A shared option in a command's own words."""

    loud: Annotated[Loud, Help("Cry it out in {command}.")] = False


CALLS: list[object] = []


@grouped
def greet(ctx: typer.Context, greeting: LoudGreeting, at: Annotated[str, typer.Option("--at")] = "noon") -> int:
    """Say good day."""
    CALLS.append((ctx.command.name, greeting, at))
    return 7


@grouped
def cry(words: OwnWords) -> int:
    """Cry."""
    CALLS.append(words)
    return 0


APP = typer.Typer()
APP.command("greet")(greet)
APP.command("cry")(cry)


def called_with(*argv: str) -> object:
    CALLS.clear()
    result = CliRunner().invoke(APP, list(argv), standalone_mode=False)
    assert result.exception is None, result.output
    (call,) = CALLS
    return call


def parameters_of(command: str) -> dict[str, object]:
    group = typer.main.get_command(APP)
    return {param.name: param for param in group.commands[command].params}  # type: ignore[attr-defined]


def test_a_command_is_called_with_its_groups() -> None:
    assert called_with("greet", "Ada") == ("greet", LoudGreeting("Ada"), "noon")
    told = called_with("greet", "--times", "3", "--at", "dawn", "--loud", "Ada")
    assert told == ("greet", LoudGreeting("Ada", loud=True, times=3), "dawn")


def test_fields_stand_where_their_group_does_those_of_a_base_first() -> None:
    assert [name for name in parameters_of("greet") if name != "help"] == ["name", "loud", "times", "at"]


def test_a_field_without_a_default_is_required() -> None:
    result = CliRunner().invoke(APP, ["greet"])
    assert result.exit_code == 2
    assert "NAME" in result.output


def test_two_options_of_one_name_are_refused() -> None:
    def both(words: OwnWords, loud: Loud = False) -> int:
        return 0

    with pytest.raises(TypeError, match="both has two options called loud"):
        grouped(both)
