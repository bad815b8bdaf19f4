"""Write the table of docs/mined.md: what came of each fix of docs/mined.tsv.

python tools/mined_page.py

The file has a fix a line: the engine, the number, the releases between which it came, those that the mined edits fit,
and, where no scenario shows it, why. What shows the others is said by the registry's toggles.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from specdebug.patching.toggles import Toggle, load_registry

TABLE = Path(__file__).resolve().parents[1] / "docs" / "mined.tsv"
PAGE = TABLE.with_suffix(".md")
BEGIN, END = "<!-- mined -->", "<!-- /mined -->"


def rows() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def section(fixes: list[dict[str, str]], toggles: dict[int, Toggle]) -> Iterator[str]:
    """The table, and what it comes to."""
    yield "| fix | came with | fits | shown by | signature, or why not |"
    yield "|---|---|---|---|---|"
    live = fit = 0
    for each in fixes:
        toggle = toggles.get(int(each["pr"]))
        shown = None if toggle is None else toggle.detected_in.get(each["engine"])
        scenario = "" if shown is None else f"`{shown.scenario}`"
        said = each["why"] if shown is None else ", then ".join(f"`{one}`" for one in shown.signatures)
        live, fit = live + (shown is not None), fit + bool(each["fits"])
        yield f"| {each['engine']} {each['pr']} | {each['came']} | {each['fits'] or 'none'} | {scenario} | {said} |"
    yield f"\n{len(fixes)} fixes: the edits of {fit} fit an installed release, and {live} are shown by a scenario."


def written(page: str, lines: Iterator[str]) -> str:
    """The page with these lines between its marks."""
    before, _, rest = page.partition(BEGIN)
    return "\n".join([before + BEGIN, *lines, END + rest.partition(END)[2]])


def main() -> None:
    toggles = {each.pr: each for each in load_registry().all}
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), section(rows(), toggles)), encoding="utf-8")


if __name__ == "__main__":
    main()
