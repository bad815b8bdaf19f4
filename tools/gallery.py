"""Run the commands of docs/examples.md and put what they print today into it.

    python tools/gallery.py            # rewrite the outputs that have changed
    python tools/gallery.py --check    # say which have, and write nothing; exit code 1 if any has

In a block marked ``console`` a line that begins with ``$ `` is a command, and what follows is what it prints on stdout.
A block marked ``sh NAME`` is written to the file NAME first. All commands run in one fresh folder, in order, in bash,
on a terminal of 100 columns. Numbers (times, rates, counts) differ from run to run and machine to machine, so an output
has changed only if its words have; numbers of five digits name fixes and are words.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "examples.md"
COLUMNS = 100
LIMIT_S = 600
FENCE = "```"

_PATHS = re.compile(r"\.specdebug/(\w+)-[0-9a-f]+\.sqlite")
_HASHES = re.compile(r"\b[0-9a-f]{32}\b")
_NUMBERS = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?(?![\w])")


@dataclass(frozen=True)
class Block:
    """A fenced block: what follows its opening fence, and its lines."""

    info: str
    lines: tuple[str, ...]


def parts(text: str) -> Iterator[str | Block]:
    """Lines of prose, and fenced blocks, in order. Raises ValueError for a block that does not end."""
    block: list[str] | None = None
    info = ""
    for line in text.splitlines():
        if block is None and line.startswith(FENCE):
            block, info = [], line.removeprefix(FENCE)
        elif block is None:
            yield line
        elif line == FENCE:
            yield Block(info, tuple(block))
            block = None
        else:
            block.append(line)
    if block is not None:
        raise ValueError(f"a block does not end: {FENCE}{info}")


def commands(block: Block) -> list[tuple[str, list[str]]]:
    """Every command of a console block with the lines it printed."""
    found: list[tuple[str, list[str]]] = []
    for line in block.lines:
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        elif found:
            found[-1][1].append(line)
        else:
            raise ValueError(f"output before any command: {line}")
    return found


def words(lines: Sequence[str]) -> list[str]:
    """The words of the lines with everything that differs from run to run made equal: numbers, hashes, and where a
    line was broken because a number was longer."""
    text = " ".join(lines).replace("│", " ").replace(";", " ").replace("once", "1 times")
    plain = _HASHES.sub("HASH", _PATHS.sub(r".specdebug/\1.sqlite", text))
    return _NUMBERS.sub(_number, plain).split()


def _number(found: re.Match[str]) -> str:
    return found[0] if re.fullmatch(r"\d{5}", found[0]) else "#"


def run(command: str, folder: Path) -> list[str]:
    """What a command prints in ``folder``, as lines, with the checkout's own path left out."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("GITHUB_", "SPECDEBUG_"))}
    environment["PATH"] = f"{sysconfig.get_path('scripts')}{os.pathsep}{environment['PATH']}"
    environment |= {"COLUMNS": str(COLUMNS), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    text = ended.stdout.replace(f"{folder}/", "").replace(f"{ROOT}/", "")
    return text.rstrip("\n").split("\n") if text.strip() else []


def refreshed(text: str, folder: Path) -> tuple[str, list[str]]:
    """The page with today's outputs, and a difference for each that has changed; one whose words are the same stays."""
    lines: list[str] = []
    changes: list[str] = []
    for part in parts(text):
        if isinstance(part, str):
            lines.append(part)
            continue
        lines.append(f"{FENCE}{part.info}")
        kind, _, name = part.info.partition(" ")
        if kind == "sh" and name:
            (folder / name).write_text("\n".join(part.lines) + "\n", encoding="utf-8")
            (folder / name).chmod(0o755)
        if kind == "console":
            for command, before in commands(part):
                print(f"$ {command}", file=sys.stderr, flush=True)
                after = run(command, folder)
                if words(before) != words(after):
                    difference = difflib.unified_diff(before, after, "page", "today", lineterm="", n=1)
                    changes.append("\n".join([f"$ {command}", *difference]))
                lines += [f"$ {command}", *(before if words(before) == words(after) else after)]
        else:
            lines += part.lines
        lines.append(FENCE)
    return "\n".join(lines) + "\n", changes


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description="Put today's outputs into docs/examples.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when an output has changed")
    parser.add_argument("page", nargs="?", type=Path, default=PAGE, help="another page than docs/examples.md")
    wanted = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="specdebug-gallery-") as name:
        folder = Path(name).resolve()
        (folder / "scenarios").symlink_to(ROOT / "scenarios")
        text, changes = refreshed(wanted.page.read_text(encoding="utf-8"), folder)
    for change in changes:
        print(change)
    if not wanted.check and changes:
        wanted.page.write_text(text, encoding="utf-8")
    return 1 if wanted.check and changes else 0


if __name__ == "__main__":
    sys.exit(main())
