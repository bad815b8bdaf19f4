"""``specdebug config``, and the defaults that a configuration file gives commands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from specdebug.base import configuration
from specdebug.base.content import PATH_VARIABLE
from specdebug.cli.options import Debug, Json
from specdebug.cli.output import answer


def defaults_of(command: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that settings give a command and those below it, by the option's name."""
    below = {name: defaults_of(one, settings) for name, one in getattr(command, "commands", {}).items()}
    keys = {param.name: configuration.ALIASES.get(param.name, param.name) for param in command.params}
    return below | {name: settings[key] for name, key in keys.items() if key in settings}


def config(as_json: Json = False, debug: Debug = False) -> int:
    """Say which options a configuration file sets here, and in which line of it.

    It is the nearest .specdebug.toml, or pyproject.toml with a table tool.specdebug. What the command line names goes
    over it. Folders of SPECDEBUG_PATH are searched beside those of content.
    """
    found = configuration.load()
    settings = {name.replace("_", "-"): each for name, each in sorted(found.settings.items())}
    values = {
        name: [str(one) for one in each.value] if isinstance(each.value, list) else each.value
        for name, each in settings.items()
    }
    path_variable = os.environ.get(PATH_VARIABLE)
    from specdebug.report.listings import settings_list

    document = {
        "path": None if found.path is None else str(found.path),
        "settings": {name: {"value": values[name], "line": each.where.line} for name, each in settings.items()},
        PATH_VARIABLE: path_variable,
    }
    texts = {name: ", ".join(value) if isinstance(value, list) else str(value) for name, value in values.items()}
    rows = ((name, texts[name], str(each.where)) for name, each in settings.items())
    return answer(as_json, settings_list(rows, path_variable and f"{PATH_VARIABLE}={path_variable}", document))
