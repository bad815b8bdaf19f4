"""Groups of options: frozen dataclasses whose fields are options of every command that takes the group.

A field is annotated as a parameter of a typer command is, and its default is the option's. A command names the group as
one parameter, under the decorator :func:`grouped`. On the command line the fields stand where the group does, in their
order, and a configuration file and a shell's completion know them by their names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import ParameterInfo


@dataclass(frozen=True)
class Help:
    """One command's own help text for a shared option, behind the option in its annotation.

    ``{command}`` in any help text is the command's name.
    """

    text: str


def grouped(command: Callable[..., int]) -> Callable[..., int]:
    """Return the command with its groups' fields as parameters for typer. Raises TypeError for two of one name."""
    name = command.__name__
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if isinstance(hint, type) and is_dataclass(hint):
            groups[parameter.name] = hint
            own = get_type_hints(hint, include_extras=True)
            parameters += [_parameter(one.name, own[one.name], one.default, name) for one in fields(hint)]
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


def _parameter(name: str, hint: Any, default: Any, command: str) -> inspect.Parameter:
    default = inspect.Parameter.empty if default is MISSING else default
    # Only by keyword, as typer calls: then one without a default may follow one that has a default.
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=_with_help(hint, command))


def _with_help(hint: Any, command: str) -> Any:
    """Return an annotation with the help text of its option, if it has one, filled in."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, *metadata = get_args(hint)
    own = [one.text for one in metadata if isinstance(one, Help)]
    infos = [copy(one) for one in metadata if isinstance(one, ParameterInfo)]
    for info in infos:
        info.help = (own[-1] if own else info.help or "").replace("{command}", command) or None
    return Annotated[(kind, *infos)] if infos else hint
