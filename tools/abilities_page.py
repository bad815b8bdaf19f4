"""Write the table of abilities in docs/engines.md from what `specdebug engines measure` found.

specdebug engines list --abilities --json | python tools/abilities_page.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "engines.md"
BEGIN, END = "<!-- abilities -->", "<!-- /abilities -->"
MARKS = {"pass": "yes", "fail": "**no**", "not compared": "-", "not run": "-"}


def section(targets: list[dict[str, Any]]) -> Iterator[str]:
    """A table for each target: a row for each scenario, a column for each relation, and what is broken beneath."""
    for target in targets:
        rows = [row for row in target["rows"] if any(cell["verdict"] != "not run" for cell in row["cells"])]
        if not rows:
            continue
        days = sorted({row["day"] for row in rows})
        relations = [cell["relation"] for cell in rows[0]["cells"]]
        yield f"\n`{target['target']}`, {' to '.join(dict.fromkeys((days[0], days[-1])))}:\n"
        yield f"| scenario | drafts by | model | {' | '.join(relations)} |"
        yield f"|---|---|---|{'---|' * len(relations)}"
        for row in rows:
            verdicts = {cell["relation"]: MARKS[cell["verdict"]] for cell in row["cells"]}
            cells = (f"`{row['scenario']}`", row["algorithm"], row["architecture"], *map(verdicts.get, relations))
            yield f"| {' | '.join(map(str, cells))} |"
        yield ""
        for row in rows:
            for cell in (each for each in row["cells"] if each["verdict"] == "fail"):
                known = "" if cell["expected"] else " Not known to the scenario."
                yield f"- `{row['scenario']}`, `{cell['signature']}`: {cell['why']}.{known}"
        not_run = [row for row in target["rows"] if row not in rows]
        for row in not_run:
            yield f"- `{row['scenario']}` is not run: {row['cells'][0]['why']}."
    yield ""


def written(page: str, targets: list[dict[str, Any]]) -> str:
    """The page with its section in the place of the one that is there. Raises ValueError where it has no marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no {BEGIN} and {END}")
    return "\n".join([before + begin, *section(targets), end + after])


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), json.load(sys.stdin)), encoding="utf-8")
