"""Commands as dataclasses: what typer sees of them, and what they are called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import typer
from typer.testing import CliRunner

from specdebug.cli.options import Command, argument, enter, option


@dataclass(kw_only=True)
class LoudOption(Command):
    """Shared."""

    loud: bool = option("Cry it.", default=False)
    times_at_most: int = option("How often.", default=1, min=1)


@dataclass(kw_only=True)
class Greeting(LoudOption):
    """Say good
    day.

    Or night."""

    calls: ClassVar[list[Greeting]] = []
    name: str = argument("Whom to greet.", default=..., metavar="NAME")
    at: str = option("When.", "--at", "-a", default="noon")

    def run(self) -> int:
        self.calls.append(self)
        return 7


APP = typer.Typer()
enter(APP, "greet", Greeting)
enter(APP, "other", LoudOption)
GROUP = typer.main.get_command(APP)


def called_with(*argv: str, **settings: object) -> Greeting:
    Greeting.calls.clear()
    result = CliRunner().invoke(APP, ["greet", *argv], standalone_mode=False, default_map={"greet": settings})
    assert result.exception is None, result.output
    assert result.return_value == 7
    (call,) = Greeting.calls
    return call


def test_a_command_is_called_with_its_options_and_those_of_its_bases() -> None:
    assert called_with("Ada") == Greeting(name="Ada", at="noon", loud=False, times_at_most=1)
    told = called_with("--times-at-most", "3", "-a", "dawn", "--loud", "Ada")
    assert told == Greeting(name="Ada", at="dawn", loud=True, times_at_most=3)
    assert told.named(LoudOption) == "--loud"
    assert told.ctx.command.name == "greet"


def test_a_configuration_file_knows_a_field_by_its_name_and_is_not_the_command_line() -> None:
    told = called_with("Ada", times_at_most=4)
    assert (told.times_at_most, told.named(LoudOption)) == (4, None)


def test_own_fields_stand_first_and_the_docstring_is_the_help() -> None:
    command = GROUP.commands["greet"]  # type: ignore[attr-defined]
    assert [each.name for each in command.params if each.name != "help"] == [
        "name", "at", "loud", "times_at_most", "debug",
    ]  # fmt: skip
    assert command.help == "Say good day.\n\nOr night."


def test_a_field_without_a_default_is_required() -> None:
    result = CliRunner().invoke(APP, ["greet"])
    assert result.exit_code == 2
    assert "NAME" in result.output
