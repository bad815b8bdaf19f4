"""Hooks of ``mkdocs.yml``: pages from files outside ``docs/``, pages made from the code, and the glossary's link."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.structure.files import File, Files

from specdebug.cli.main import app
from specdebug.faults.catalogue import CLASSES
from specdebug.scenario.library import Library

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = "reference/glossary.md"
OUTSIDE = {
    "index.md": "README.md",
    "reference/scenario-files.md": "scenarios/README.md",
    "reference/toggle-files.md": "toggles/README.md",
    "reference/probe-packs.md": "probes/README.md",
    "reference/textbook.md": "specdebug/engine/textbook/README.md",
    "reference/contributing.md": "CONTRIBUTING.md",
    "reference/changelog.md": "CHANGELOG.md",
}
"""Pages of the site, by the files of the repository that they are."""
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)((?:#[^)\s]*)?)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that do not lie in ``docs/``."""
    made = {page: (ROOT / file).read_text(encoding="utf-8") for page, file in OUTSIDE.items()}
    made |= {page: "\n".join(write()) for page, write in WRITTEN.items()}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links of a page to where their files are on the site, name those that are not, and add the glossary's."""
    own = page.file.src_uri
    source = OUTSIDE.get(own, f"docs/{own}")

    def led(link: re.Match[str]) -> str:
        words, target, anchor = link.groups()
        if ":" in target:
            return link[0]
        file = os.path.normpath(os.path.join(os.path.dirname(source), target))
        there = next((name for name, outside in OUTSIDE.items() if outside == file), None)
        if there is None and file.startswith("docs/"):
            there = file.removeprefix("docs/")
        if there is None:
            return words if words.strip("`") == file else f"{words} (`{file}`)"
        return f"[{words}]({os.path.relpath(there, os.path.dirname(own) or '.')}{anchor})"

    text = LINK.sub(led, markdown) if own not in WRITTEN else markdown
    if own == GLOSSARY:
        return text
    there = os.path.relpath(GLOSSARY, os.path.dirname(own) or ".")
    return f"{text}\n\n---\n\n[Words that have one meaning: the glossary]({there})\n"


def commands() -> Iterator[str]:
    """Every command with its options."""
    yield "# Commands\n"

    def told(command: Any, name: str) -> Iterator[str]:
        below = getattr(command, "commands", {})
        if name and not getattr(command, "hidden", False) and not below:
            yield f"## specdebug {name}\n\n{escaped(command.help or '')}\n"
            yield "| option | |\n|---|---|"
            for param in command.params:
                if getattr(param, "hidden", False) or param.name == "help":
                    continue
                words = ", ".join(f"`{word}`" for word in (*param.opts, *param.secondary_opts))
                value = f" `{param.metavar}`" if param.metavar else ""
                name_of = words if param.param_type_name == "option" else ""
                yield f"| {name_of}{value} | {cell(getattr(param, 'help', '') or '')} |"
            yield ""
        for word, each in sorted(below.items()):
            yield from told(each, f"{name} {word}".strip())

    yield from told(typer.main.get_command(app), "")


def toggles() -> Iterator[str]:
    """Every fix of the registry."""
    yield "# Every toggle\n\n| | title | family | symptom | shown by |\n|---|---|---|---|---|"
    for each in Library().registry.all:
        number = f"[{each.pr}]({each.url})" if each.url else str(each.pr)
        shown = ", ".join(one.scenario for one in each.detections if one.scenario)
        yield f"| {number} | {cell(each.title)} | {cell(each.family)} | {cell(each.symptom)} | {shown} |"


def sites() -> Iterator[str]:
    """Every probe site of the engine."""
    from specdebug.async_probe.sites import find_sites

    yield "# Probe sites\n\n| site | probe |\n|---|---|"
    for each in find_sites(ROOT / "specdebug" / "engine"):
        yield f"| `{each.name}` | {each.kind} |"


def faults() -> Iterator[str]:
    """Every class of damage."""
    yield "# Fault classes\n\n| | | effect |\n|---|---|---|"
    for name, each in CLASSES.items():
        yield f"| `{name}` | {cell(each.summary)} | {each.effect} |"


def glossary() -> Iterator[str]:
    """The glossary of docs/architecture.md as a page."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    yield "# Glossary\n" + text.partition("## Glossary")[2].partition("\n## ")[0]


def cell(text: str) -> str:
    """Text as a cell of a table."""
    return escaped(" ".join(text.split())).replace("|", "\\|")


def escaped(text: str) -> str:
    """Text in which nothing is taken for a tag."""
    return text.replace("<", "&lt;")


WRITTEN: dict[str, Callable[[], Iterator[str]]] = {
    "reference/commands.md": commands,
    "reference/toggles.md": toggles,
    "reference/sites.md": sites,
    "reference/faults.md": faults,
    GLOSSARY: glossary,
}
"""Pages that are written from the code, and not kept."""
