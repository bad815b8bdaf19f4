"""Groups of options: a frozen dataclass is declared once, and every command that takes it has its fields as options.

A field is annotated as a parameter of a typer command would be, its default is the option's. A command names the group
as one parameter, under the decorator :func:`grouped`::

    @dataclass(frozen=True)
    class EngineOptions:
        device: Annotated[str | None, typer.Option("--device")] = None

    @grouped
    def replay(file: File, engine: EngineOptions) -> int: ...

On the command line the fields stand where the group does, in their order, and a configuration file and a shell's
completion know them by their names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import ParameterInfo


@dataclass(frozen=True)
class Help:
    """The help text of an option that several commands share, where one of them says it in its own words.

    It stands in the annotation behind the option. ``{command}`` in any help text is the command's name.
    """

    text: str


def grouped(command: Callable[..., int]) -> Callable[..., int]:
    """Return the command with the fields of its groups in place of them, as typer reads a command's parameters.

    Raises TypeError when two options have the same name.
    """
    name = command.__name__
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if isinstance(hint, type) and is_dataclass(hint):
            groups[parameter.name] = hint
            parameters += _parameters_of(hint, name)
        else:
            parameters.append(_parameter(parameter.name, hint, parameter.default, name))
    names = [parameter.name for parameter in parameters]
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise TypeError(f"{name} has two options called {', '.join(twice)}")

    def ungrouped(**values: Any) -> int:
        for parameter, group in groups.items():
            values[parameter] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return command(**values)

    ungrouped.__name__, ungrouped.__doc__, ungrouped.__module__ = name, command.__doc__, command.__module__
    ungrouped.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": int}
    ungrouped.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    return ungrouped


def _parameters_of(group: type[Any], command: str) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [_parameter(field.name, hints[field.name], _default_of(field), command) for field in fields(group)]


def _default_of(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default


def _parameter(name: str, hint: Any, default: Any, command: str) -> inspect.Parameter:
    # Only by keyword, as typer calls: then one without a default may follow one that has a default.
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_with_help(hint, command)
    )


def _with_help(hint: Any, command: str) -> Any:
    """Return an annotation with its option's help text filled in; one without an option is left as it is."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, *metadata = get_args(hint)
    own = [one.text for one in metadata if isinstance(one, Help)]
    infos = [copy(one) for one in metadata if isinstance(one, ParameterInfo)]
    for info in infos:
        info.help = (own[-1] if own else info.help or "").replace("{command}", command) or None
    return Annotated[(kind, *infos)] if infos else hint
