"""``specdebug probes``: the sites where something can be looked at, and the packs that choose among them."""

from __future__ import annotations

import typer

from specdebug.cli.options import Content, Debug, Json
from specdebug.cli.output import show, write
from specdebug.cli.replay import open_library

app = typer.Typer(help="List probe sites and packs.", no_args_is_help=False)


@app.command("list")
def list_probes(as_json: Json = False, content: Content = None, debug: Debug = False) -> int:
    """Every site with its kinds, and which packs switch it on."""
    from specdebug.scenario.library import engine_sites, live_in

    packs = open_library(content).all_packs()
    found = engine_sites()
    sites: dict[str, list[str]] = {}
    for site in found:
        kinds = sites.setdefault(site.name, [])
        if site.kind not in kinds:
            kinds.append(site.kind)
    lit = {pack.name: live_in(pack, found) for pack in packs}
    live = {name: [pack for pack, names in lit.items() if name in names] for name in sites}
    if as_json:
        from specdebug.report.document import to_json

        document = {
            "packs": [{"name": p.name, "description": p.description, "mode": p.mode} for p in packs],
            "sites": [{"site": n, "kinds": kinds, "packs": live[n]} for n, kinds in sites.items()],
        }
        write(to_json(document))
        return 0
    from specdebug.report.listings import probe_tables

    show(probe_tables(packs, sites, live))
    return 0
