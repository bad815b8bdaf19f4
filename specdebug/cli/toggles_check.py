"""``specdebug toggles check``: do the patches for another engine still fit one of its releases?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specdebug.cli.options import Content, Debug, Json
from specdebug.cli.output import show, write
from specdebug.cli.replay import open_library

Against = Annotated[
    Path,
    typer.Option("--against", metavar="DIST", help="A wheel (.whl), an sdist (.tar.gz) or a source tree."),
]


def check(
    against: Against,
    version: Annotated[
        str | None, typer.Option("--version", help="Of a source tree that does not state its own.")
    ] = None,
    as_json: Json = False,
    content: Content = None,
    debug: Debug = False,
) -> int:
    """Match every fix's patches against a release of another engine, and that engine's own reverts with them.

    Nothing of the release is imported. Exit code 1 when a patch of ours is stale, 125 when none is for this release;
    what is stale in the engine's own registry is reported only.
    """
    from specdebug.drift import check as check_release
    from specdebug.drift import open_dist
    from specdebug.drift.check import engines

    registry = open_library(content).registry
    report = check_release(open_dist(against, engines(registry), version), registry)
    if as_json:
        from specdebug.report.document import to_json

        write(to_json([row.to_dict() for row in report.rows]))
    else:
        from specdebug.report.drift import render_drift

        show(render_drift(report))
    return report.exit_code
