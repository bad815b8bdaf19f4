"""``specdebug probes``: the sites of probes, and the packs that choose among them."""

from __future__ import annotations

import typer

from specdebug.cli.options import Content, Debug, Json, open_library
from specdebug.cli.output import answer

app = typer.Typer(help="List probe sites and packs.", no_args_is_help=False)


@app.command("list")
def list_probes(as_json: Json = False, content: Content = None, debug: Debug = False) -> int:
    """Every site with its kinds, which packs switch it on, and which workers of the engine pass it."""
    from specdebug.engine.workers.registry import workers_at
    from specdebug.report.listings import probe_list
    from specdebug.scenario.library import engine_sites, live_in

    packs = open_library(content).all_packs()
    found = engine_sites()
    names = dict.fromkeys(site.name for site in found)
    sites = {name: list(dict.fromkeys(site.kind for site in found if site.name == name)) for name in names}
    lit = {pack.name: live_in(pack, found) for pack in packs}
    live = {name: [pack for pack, names in lit.items() if name in names] for name in sites}
    return answer(as_json, probe_list(packs, sites, live, {name: workers_at(name) for name in sites}))
