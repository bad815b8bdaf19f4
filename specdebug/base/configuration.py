"""The configuration file: ``[tool.specdebug]`` of a ``pyproject.toml``, or ``.specdebug.toml``, the nearest upwards.

A setting counts as if the command line had it. ``content`` names code, so a file that was only found must be the
user's own.
"""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from specdebug.base.attention_plans import PLANS
from specdebug.base.errors import ContentError, SpecDebugError, Where, did_you_mean
from specdebug.base.files import NotOwn, TooLarge, read_file
from specdebug.base.schema import Item, choice, form, name_of, real, whole
from specdebug.base.yamlio import plain_doc

VARIABLE = "SPECDEBUG_CONFIG"
OWN_NAME = ".specdebug.toml"
PROJECT_NAME = "pyproject.toml"
_TABLE = ("tool", "specdebug")
_MAX_BYTES = 1 << 20


class Setting(NamedTuple):
    """The value of one option, and its place."""

    value: Any
    where: Where


@dataclass(frozen=True)
class Configuration:
    """The settings by option (with ``_``); ``path`` is None where there is no file."""

    path: Path | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Any]:
        return {name: setting.value for name, setting in self.settings.items()}

    @property
    def content(self) -> list[Path]:
        """The user's content folders; none where the file names none."""
        return list(self.values.get("content", ()))


def load(start: Path | None = None, environment: Mapping[str, str] = os.environ) -> Configuration:
    """The configuration in force for a working directory (this process's, unless given). Raises SpecDebugError."""
    if VARIABLE in environment:
        if not environment[VARIABLE]:
            return Configuration()
        path = Path(environment[VARIABLE])
        table = _table_of(path, _read(path, VARIABLE))
        if table is None:
            raise SpecDebugError(f"{path}: has no [tool.specdebug] ({VARIABLE} names it)")
        return _configuration(path, table)
    folder = (start or Path()).absolute()
    for path in (each / name for each in (folder, *folder.parents) for name in (OWN_NAME, PROJECT_NAME)):
        if path.is_file() and (table := _table_of(path, _read(path))) is not None:
            own = _table_of(path, _read(path, own=True))  # read anew, for by now it may be another
            return Configuration() if own is None else _configuration(path, own)
    return Configuration()


def _read(path: Path, named_by: str = "", own: bool = False) -> str:
    try:
        raw = read_file(path, _MAX_BYTES, own)
    except NotOwn as error:
        raise SpecDebugError(
            f"{path}: {error.strerror}, and may name code; to use it say {VARIABLE}={path}, to use none {VARIABLE}="
        ) from None
    except TooLarge:
        raise SpecDebugError(f"{path}: is larger than {_MAX_BYTES >> 20} MiB") from None
    except OSError as error:
        by = f" ({named_by} names it)" if named_by else ""
        raise SpecDebugError(f"{path}: cannot be read: {error.strerror}{by}") from None
    return raw.decode("utf-8", errors="replace")


def _table_of(path: Path, text: str) -> tuple[str, dict[str, Any]] | None:
    """The file's text and our table of it; None for a project's file that has none, whatever else is in it."""
    is_own = path.name != PROJECT_NAME
    try:
        table: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError itself: a number of more digits than Python converts
        if not is_own and ".".join(_TABLE) not in text:
            return None
        line = re.search(r"at line (\d+)", str(error))
        where = Where(str(path), int(line.group(1)) if line else 0)
        raise SpecDebugError(f"{where}: is not TOML: {error}") from None
    for key in () if is_own else _TABLE:
        table = table.get(key) if isinstance(table, dict) else None
    if table is None:
        return None
    if not isinstance(table, dict):
        raise SpecDebugError(f"{path}: {'.'.join(_TABLE)} must be a table")
    return text, table


def _configuration(path: Path, found: tuple[str, dict[str, Any]]) -> Configuration:
    text, table = found
    settings: dict[str, Setting] = {}
    for key, item in plain_doc(table, str(path)).root.entries().items():
        name, where = key.replace("-", "_"), Where(str(path), _line_of(text, key))
        name = ALIASES.get(name, name)
        if name not in KEYS:
            shown = [option.replace("_", "-") for option in (*KEYS, *ALIASES)]
            raise SpecDebugError(f"{where}: unknown key '{key}'{did_you_mean(key.replace('_', '-'), shown)}")
        if name in settings:
            raise SpecDebugError(f"{where}: '{key}' is set twice, in line {settings[name].where.line} as well")
        try:
            settings[name] = Setting(KEYS[name](item), where)
        except ContentError as error:
            raise SpecDebugError(f"{where}: {error.message}") from None
    return Configuration(path, settings)


def _line_of(text: str, key: str) -> int:
    """The line of a key in our table; of the table where it cannot be told, 0 where that cannot either."""
    ours, table = True, 0
    pattern = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*[.=]""")
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]*?)\s*\]", line):
            ours = re.sub(r"[\s\"']", "", header.group(1)) == ".".join(_TABLE)
            table = number if ours else table
        elif ours and pattern.match(line):
            return number
    return table


def _folders(item: Item) -> list[Path]:
    here = Path(item.doc.path).absolute().parent
    found = [here / each.text() for each in item.items()]
    for each in found:
        if not each.is_dir():
            raise item.error(f"must be a list of folders, and there is no folder {each}")
    return found


def _probability(item: Item) -> str:
    if isinstance(item.value, bool) or not isinstance(item.value, int | float | str):
        raise item.expected("a probability, such as 0.95 or '95%'")
    return str(item.value)


_COUNT = whole(1, 2**31 - 1).read

KEYS: dict[str, Callable[[Item], Any]] = {
    "content": _folders,
    "device": form(r"cpu|cuda(:[0-9]{1,2})?").read,
    "dtype": choice("float32", "bfloat16", "float16").read,
    "backend": name_of(PLANS).read,
    "page_size": _COUNT,
    "jobs": _COUNT,
    "timeout": real(0, 10**9, above=True).read,
    "confidence": _probability,
    "max_trials": _COUNT,
}
"""Every option that can be set, and what reads its value."""

ALIASES = {"attention_backend": "backend"}
