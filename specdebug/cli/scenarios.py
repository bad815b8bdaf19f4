"""``specdebug scenarios``: what there is, whether a file is right, and the schema for editors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from specdebug.cli import complete
from specdebug.cli.options import Content, Debug, Json
from specdebug.cli.output import show, write
from specdebug.cli.replay import open_library
from specdebug.errors import ContentError, SpecDebugError, Where

app = typer.Typer(help="List and check scenarios.", no_args_is_help=False)


@app.command("list")
def list_scenarios(as_json: Json = False, content: Content = None, debug: Debug = False) -> int:
    """Every scenario that can be named, with its arms."""
    found = open_library(content).scenarios()
    if as_json:
        from specdebug.report.document import to_json

        facts = [
            {"name": s.name, "path": str(s.path), "description": s.description, "arms": list(s.arms)} for s in found
        ]
        write(to_json(facts))
        return 0
    from specdebug.report.tables import plain_table

    rows = [(s.path.stem, ", ".join(s.arms), " ".join(s.description.split())) for s in found]
    show(plain_table(("scenario", "arms", "what it shows"), rows))
    return 0


@app.command("validate")
def validate(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Scenario files, or shipped names.", autocompletion=complete.scenarios),
    ],
    as_json: Json = False,
    content: Content = None,
    debug: Debug = False,
) -> int:
    """Check scenario files without running them; exit code 2 when one is wrong.

    The JSON document is a list of the files: each with file, ok, arms and problems, of which each has file, line and
    column (0 where unknown) and message.
    """
    library = open_library(content)
    checked: list[dict[str, object]] = []
    for file in files:
        try:
            scenario = library.scenario(file)
        except SpecDebugError as error:
            checked.append({"file": file, "ok": False, "arms": [], "problems": _problems(file, error)})
            if not as_json:
                print(f"error: {error}", file=sys.stderr)
        else:
            checked.append({"file": str(scenario.path), "ok": True, "arms": list(scenario.arms), "problems": []})
            if not as_json:
                write(f"{scenario.path}: ok, {len(scenario.arms)} arms")
    if as_json:
        from specdebug.report.document import to_json

        write(to_json(checked))
    return 0 if all(each["ok"] for each in checked) else 2


def _problems(file: str, error: SpecDebugError) -> list[dict[str, object]]:
    """What is wrong with a scenario, as plain data."""
    if isinstance(error, ContentError) and error.where is not None:
        where, message = error.where, error.message
    else:
        where, message = Where(file), str(error)
    return [{"file": where.path, "line": where.line, "column": where.column, "message": message}]


@app.command("schema")
def schema(
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE")] = None,
    debug: Debug = False,
) -> int:
    """Print the JSON schema of scenario files, for editors that complete and check YAML."""
    from specdebug.cli.output import check_writable, write_file
    from specdebug.harness.scenario import json_schema
    from specdebug.report.document import to_json

    text = to_json(json_schema())
    if output is None:
        write(text)
    else:
        check_writable(output)
        write_file(output, text + "\n")
    return 0
