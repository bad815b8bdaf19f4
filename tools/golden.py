"""Write what every command says: into tests/golden/, a file a command, to be read as a diff, and into the documents.

    python tools/golden.py            # rewrite the files that have changed, and remove those without a command
    python tools/golden.py --docs     # and the transcripts in docs/*.md of commands that run an engine: minutes
    python tools/golden.py --check    # say which have changed, and write nothing; exit code 1 if any has

In a document's block marked ``console`` a line that begins with ``$ `` is a command, and what follows is what it prints
on stdout. A block marked ``sh NAME`` is written to the file NAME first. All commands of a document run in one fresh
folder, in order, in bash, on a terminal of 100 columns. Numbers (times, rates, counts) differ from run to run and from
machine to machine, so an output has changed only if its words have; numbers of five digits name fixes and are words.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.report.golden import FOLDER, golden_texts

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 100
LIMIT_S = 600
FENCE = "```"
CHEAP = re.compile(r"specdebug (?:toggles|faults|probes|scenarios) (?:list|show)\b[^|;>]*")
"""Commands that run no engine; a quick test holds their transcripts."""

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
    ours = folder / ".bin" / "specdebug"  # whatever is installed, this checkout's
    ours.parent.mkdir(exist_ok=True)
    ours.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m specdebug "$@"\n', encoding="utf-8")
    ours.chmod(0o755)
    environment["PATH"] = f"{ours.parent}{os.pathsep}{environment['PATH']}"
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


def documents() -> list[Path]:
    """The documents with transcripts."""
    return [path for path in sorted((ROOT / "docs").rglob("*.md")) if f"{FENCE}console\n$ " in path.read_text("utf-8")]


def refreshed(text: str, wanted: Callable[[str], object] = bool) -> tuple[str, list[str]]:
    """The document with today's outputs of the commands that are ``wanted``, and a difference for each that has
    changed; one whose words are the same stays."""
    with tempfile.TemporaryDirectory(prefix="specdebug-transcripts-") as name:
        folder = Path(name).resolve()
        (folder / "scenarios").symlink_to(ROOT / "scenarios")
        return _refreshed(text, folder, wanted)


def _refreshed(text: str, folder: Path, wanted: Callable[[str], object]) -> tuple[str, list[str]]:
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
                after = run(command, folder) if wanted(command) else before
                if words(before) != words(after):
                    difference = difflib.unified_diff(before, after, "document", "today", lineterm="", n=1)
                    changes.append("\n".join([f"$ {command}", *difference]))
                lines += [f"$ {command}", *(before if words(before) == words(after) else after)]
        else:
            lines += part.lines
        lines.append(FENCE)
    return "\n".join(lines) + "\n", changes


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the wording of every command.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when anything has changed")
    parser.add_argument("--docs", action="store_true", help="transcripts of commands that run an engine, too")
    asked = parser.parse_args(argv)
    texts: dict[Path, str | None] = {FOLDER / name: text for name, text in golden_texts().items()}
    texts |= {path: None for path in FOLDER.glob("*.txt") if path not in texts}
    for page in documents():
        texts[page], changes = refreshed(page.read_text("utf-8"), bool if asked.docs else CHEAP.fullmatch)
        print(*changes, sep="\n")
    changed = [path for path, text in texts.items() if text != (path.read_text("utf-8") if path.exists() else None)]
    for path in sorted(changed):
        print(path.relative_to(ROOT))
        text = texts[path]
        if not asked.check and text is None:
            path.unlink()
        elif not asked.check and text is not None:
            path.write_text(text, encoding="utf-8")
    return int(bool(changed) and asked.check)


if __name__ == "__main__":
    sys.exit(main())
