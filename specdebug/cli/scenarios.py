"""``specdebug scenarios``: list and check scenarios, and print their schema for editors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specdebug.cli import complete
from specdebug.cli.options import Content, Debug, Json, open_library
from specdebug.cli.output import answer, check_writable, complain, write, write_file
from specdebug.report.foreign import shown

app = typer.Typer(help="List and check scenarios.", no_args_is_help=False)


@app.command("list")
def list_scenarios(as_json: Json = False, content: Content = None, debug: Debug = False) -> int:
    """Every scenario that can be named, with its arms."""
    from specdebug.report.listings import scenario_list

    return answer(as_json, scenario_list(open_library(content).scenarios()))


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
    """Check scenario files without running them, and say all that is wrong; exit code 2 when anything is.

    The JSON document is a list of the files: each with file, ok, arms and problems, of which each has file, line and
    column (0 where unknown) and message.
    """
    from specdebug.scenario.library import validate

    library = open_library(content)
    checked = [validate(library, file) for file in files]
    if as_json:
        from specdebug.report.formats import to_json

        write(to_json([each.to_dict() for each in checked]))
    for each in () if as_json else checked:
        if each.scenario is not None:
            write(shown(f"{each.file}: ok, {len(each.scenario.arms)} arms"))
        for problem in each.problems:
            complain(str(problem))
    return 2 if any(each.problems for each in checked) else 0


@app.command("schema")
def schema(
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE")] = None,
    debug: Debug = False,
) -> int:
    """Print the JSON schema of scenario files, for editors that complete and check YAML."""
    from specdebug.report.formats import to_json
    from specdebug.scenario.checks import json_schema

    text = to_json(json_schema())
    if output is None:
        write(text)
    else:
        check_writable(output)
        write_file(output, text + "\n")
    return 0
