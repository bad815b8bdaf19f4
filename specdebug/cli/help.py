"""Help texts as wide as the terminal, whatever the width of the source they are written in."""

from __future__ import annotations

import inspect

import typer


def flow_help(app: typer.Typer) -> None:
    """Take the line breaks of the source out of every command's help, also in groups; paragraphs stay apart."""
    for command in app.registered_commands:
        text = command.help or inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            flow_help(group.typer_instance)
