"""Write docs/scenarios.md, the table of every key that a scenario file can have, from the grammar's declaration.

python tools/grammar_page.py            # rewrite the page
python tools/grammar_page.py --check    # say whether it would change, and write nothing; exit code 1 if so
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from specdebug.base.schema import Key, Part, keys_of
from specdebug.scenario import grammar
from specdebug.targets import settings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scenarios.md"
HEAD = """\
# Every key of a scenario

What [scenarios/README.md](../scenarios/README.md) explains, as a reference. This page is written by
`python tools/grammar_page.py` from `specdebug/scenario/grammar.py` and `specdebug/targets/settings.py`, which also make
the reader and the JSON schema that `specdebug scenarios schema` prints.
"""


def page() -> str:
    """The page as it should be."""
    classes = {**vars(grammar), **vars(settings)}.values()
    parts = [each for each in classes if inspect.isclass(each) and issubclass(each, Part)]
    parts.sort(key=lambda part: part is not grammar.Scenario)
    return "\n".join([HEAD, *("\n".join(section(part)) for part in parts if part not in (Part, settings.AnyServer))])


def section(part: type[Part]) -> Iterator[str]:
    """A heading, what the part is, and its keys."""
    yield f"## {heading(part.__name__)}"
    said = " ".join((part.__doc__ or "").split()).replace("``", "`")
    yield f"\n{said.partition('. ')[0].rstrip('.')}.\n"
    yield "| Key | Value | Default | Meaning |"
    yield "|---|---|---|---|"
    for key in keys_of(part):
        cells = (f"`{key.name}`", words(key.kind.schema({})), default(part, key), key.means)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def heading(name: str) -> str:
    """``Workload group`` of ``WorkloadGroup``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()


def default(part: type[Part], key: Key) -> str:
    """What a file that lacks the key gets."""
    if key.required or key.default:
        return key.default or "required"
    (field,) = (each for each in fields(part) if each.name == key.field)
    value = field.default_factory() if callable(field.default_factory) else field.default
    if isinstance(value, Part):
        return "its own defaults"
    plain = key.kind.plain(value)
    return "none" if plain in (None, "") else f"`{plain if isinstance(plain, str) else json.dumps(plain)}`"


def words(schema: dict[str, Any]) -> str:
    """What a JSON schema takes."""
    if "anyOf" in schema:
        first, *others = schema["anyOf"]
        if others[0].get("items") == first:
            return f"{words(first)}; or {'`[low, high]`' if 'maxItems' in others[0] else 'a list of such'}"
        return " or ".join(words(each) for each in schema["anyOf"])
    if "oneOf" in schema:
        return "fault, see `specdebug faults list`"
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("$ref") == "#/$defs/Engine":
        return "mapping of [options](../scenarios/README.md#engine)"
    if "$ref" in schema or "title" in schema:
        name = heading(schema.get("title", schema.get("$ref", "").rpartition("/")[2]))
        return f"[{name.lower()}](#{name.lower().replace(' ', '-')})"
    if schema["type"] == "array":
        return f"list: {words(schema['items'])}"
    if schema["type"] == "object":
        return f"mapping: {words(schema['additionalProperties'])} for each name"
    if "maxLength" in schema:
        return f"text of {schema['minLength']} to {schema['maxLength']} characters"
    if schema["type"] == "string":
        form = schema.get("pattern", r"\S")
        return "text" if form == r"\S" else f"text of the form `{form.strip('^$')}`"
    if schema["type"] in ("integer", "number"):
        kind = "whole number" if schema["type"] == "integer" else "number"
        above = schema.get("exclusiveMinimum")
        low = f"from {number(schema['minimum'])}" if above is None else f"above {above},"
        return f"{kind} {low} to {number(schema['maximum'])}"
    return {"boolean": "true or false", "null": "null"}[schema["type"]]


def number(value: int) -> str:
    """A bound as people read it: ``2^31 - 1``, ``-2^20``."""
    if value < 0:
        return f"-{number(-value)}"
    for exact, rest in ((value, ""), (value + 1, " - 1")):
        if exact > 1 << 16 and exact.bit_count() == 1:
            return f"2^{exact.bit_length() - 1}{rest}"
    return str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the page would change")
    chosen = parser.parse_args(arguments)
    if not chosen.check:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page():
        print(f"{PAGE.name} is not what the grammar says; run python tools/grammar_page.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
