"""Make docs/interruptions.md of what tests/outside/matrix.py declares.

    python tools/outside.py            # rewrite the page
    python tools/outside.py --check    # write nothing; exit code 1 if the page is another

What is declared is what tests/outside/test_outside.py plays for real.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.outside.matrix import CONDITIONS, ROWS, Condition, Row  # noqa: E402 - found by the line above

PAGE = ROOT / "docs" / "interruptions.md"

_HEAD = """\
# When something comes between

What a command does when it is told to end, when its output is not read, when there is no room to write, and when
the system gives it too little. `python tools/outside.py` makes this page of `tests/outside/matrix.py`, and
`tests/outside/test_outside.py` plays every cell of the table for real.

Whatever happens, a command ends with a code of the README's table and at most one line that says what is wrong, or one
for each file that had no room; it leaves no result file half written and no process behind. 128 and a signal's number
is the exit code also where all was known by then.

After a `kill -9` run the same command again: every finished trial is in the journal once and is not run again, and the
answer is that of an undisturbed run. What the killed process had started is ended by its reaper, usually within
milliseconds and within 11 s at most; the second run may be started at once, for it waits. A worker or fork server that
is killed says nothing of the code: searches run its trial again and say so, in `replay` the arm is `unknown` (125). A
command after `--` that is killed has failed as `crash:SIGKILL`: its end is its verdict. `python tools/kills.py`
kills 200 of them at random moments, resumes and compares.

## What may happen
"""

_TABLE = """\
## How each command ends

A command's own exit code (`0` where all is well) stands where nothing is lost. `0 or 125`: its own where the
descriptors suffice. Each was run with arguments with which it ends as the column *alone* says, and, where it writes
files, with `--json-file` and every other file that it takes.
"""

_KNOWN = """\
## What is told after a signal

Everything is told on stdout and in every file that was asked for, in the forms of the whole report: the JSON document
says `interrupted`, JUnit XML and pages show what was not made.
"""


def page() -> str:
    """The whole page."""
    meanings = [f"- **{each.name}.** {each.meaning} {each.after}" for each in CONDITIONS]
    codes = table(
        ["command", "alone", *(each.name for each in CONDITIONS)],
        [[f"`{row.name}`", str(row.plain), *(cell(row, each) for each in CONDITIONS)] for row in ROWS],
    )
    known = table(
        ["command", "what is told"], [[f"`{row.name}`", row.known] for row in ROWS if row.workers is not None]
    )
    short = ", ".join(f"`{row.name}`" for row in ROWS if row.workers is None)
    rest = f"The others ({short}) end at once, with nothing told: run them again."
    return "\n".join([_HEAD, *map(folded, meanings), "", _TABLE, codes, "", _KNOWN, known, "", folded(rest), ""])


def cell(row: Row, condition: Condition) -> str:
    """How a row ends, in a cell."""
    return " or ".join(map(str, row.exit_codes(condition)))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown has it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines).replace("| --- |", "|---|").replace(" --- ", "---")


def folded(text: str) -> str:
    """One paragraph, or one item of a list, in lines of 120 columns."""
    import textwrap

    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description="Make docs/interruptions.md of tests/outside/matrix.py.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when the page is another")
    parser.add_argument("page", nargs="?", type=Path, default=PAGE, help="another page than docs/interruptions.md")
    wanted = parser.parse_args(argv)
    text = page()
    changed = not wanted.page.exists() or wanted.page.read_text(encoding="utf-8") != text
    if changed and wanted.check:
        print(f"{wanted.page} is not what tests/outside/matrix.py declares; run python tools/outside.py")
    elif changed:
        wanted.page.write_text(text, encoding="utf-8")
    return 1 if wanted.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
