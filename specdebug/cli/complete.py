"""Values that a shell completes. A user waits at a prompt meanwhile: nothing here imports torch, and every error (a
file half written, a folder that is not there) completes to nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from specdebug.base.attention_plans import PLANS

if TYPE_CHECKING:
    from specdebug.base.content import Kind

Found: TypeAlias = Iterable[str | tuple[str, str]]
"""Values, or pairs of a value and its description."""
Completer: TypeAlias = Callable[[typer.Context, str], Found]

_YAML = (".yaml", ".yml")
_SUBJECT = ("files", "file", "scenario")
"""The names of commands' parameters that take a scenario."""


def _quietly(complete: Completer) -> Completer:
    """Keep the values that begin with the incomplete word; after an error there are none."""

    @wraps(complete)
    def completed(ctx: typer.Context, incomplete: str) -> list[str | tuple[str, str]]:
        try:
            found = list(complete(ctx, incomplete))
        except Exception:
            return []
        return [each for each in found if (each if isinstance(each, str) else each[0]).startswith(incomplete)]

    return completed


def _content(ctx: typer.Context) -> list[Path]:
    return list(ctx.params.get("content") or ())


def _names_and_files(ctx: typer.Context, incomplete: str, endings: tuple[str, ...], kind: Kind = "scenarios") -> Found:
    """Names of content, then folders, and files of these endings, that begin as the word does."""
    from specdebug.base.content import content_files

    yield from content_files(kind, _content(ctx))
    folder, begun = os.path.split(incomplete)
    for entry in sorted(os.scandir(folder or "."), key=lambda each: each.name):
        if entry.name.startswith(".") and not begun.startswith("."):
            continue
        path = os.path.join(folder, entry.name)
        if entry.is_dir():
            yield path + os.sep
        elif entry.name.endswith(endings):
            yield path


@_quietly
def scenarios(ctx: typer.Context, incomplete: str) -> Found:
    """Names of scenarios, scenario files, and folders on the way to them."""
    return _names_and_files(ctx, incomplete, _YAML)


@_quietly
def content_named(ctx: typer.Context, incomplete: str) -> Found:
    """The same of the kind of content that the group of commands is about."""
    from specdebug.base.content import KINDS

    about = next(kind for kind in KINDS if ctx.parent is not None and kind == ctx.parent.info_name)
    return _names_and_files(ctx, incomplete, _YAML, about)


@_quietly
def replayed(ctx: typer.Context, incomplete: str) -> Found:
    """The same, and bundles."""
    from specdebug.bundle import ENDING

    return _names_and_files(ctx, incomplete, (*_YAML, ENDING))


@_quietly
def arms(ctx: typer.Context, incomplete: str) -> Found:
    """Arms of the scenarios that are on the line already."""
    from specdebug.base.content import find
    from specdebug.base.yamlio import load_yaml

    # Where the option that is being completed, still without its value, ended the parsing, they are in ctx.args.
    given = next((value for name in _SUBJECT if (value := ctx.params.get(name))), ctx.args)
    subjects = [given] if isinstance(given, str) else given
    found = [load_yaml(find("scenarios", subject, _content(ctx))).data for subject in subjects]
    return dict.fromkeys(str(arm) for data in found for arm in data.get("arms", ()))


def _registry(ctx: typer.Context) -> Any:
    from specdebug.patching.toggles import load_registry

    return load_registry(_content(ctx))


@_quietly
def fixes(ctx: typer.Context, incomplete: str) -> Found:
    """The last of a list of numbers of fixes that can be reverted."""
    before, comma, _ = incomplete.rpartition(",")
    return [(f"{before}{comma}{toggle.pr}", toggle.title) for toggle in _registry(ctx).toggles.values()]


@_quietly
def all_fixes(ctx: typer.Context, incomplete: str) -> Found:
    """Numbers of all registered fixes, those of other engines included."""
    return [(str(toggle.pr), toggle.title) for toggle in _registry(ctx).all]


@_quietly
def worker_names(ctx: typer.Context, incomplete: str) -> Found:
    from specdebug.engine.workers.registry import LINEUP

    return [(name, f"{entry.algorithm} for {entry.model}") for name, entry in LINEUP.items()]


@_quietly
def targets(ctx: typer.Context, incomplete: str) -> Found:
    from specdebug.targets.registry import target_names

    return target_names()


@_quietly
def faults(ctx: typer.Context, incomplete: str) -> Found:
    """A fault's class, then ``:`` and the keys of its address, then the sites it can act at."""
    from specdebug.faults.catalogue import CLASSES

    name, colon, address = incomplete.partition(":")
    if not colon:
        return [(kind.name, kind.summary) for kind in CLASSES.values()]
    kind, (before, comma, last) = CLASSES[name], address.rpartition(",")
    ends = [f"site={site}" for site in kind.sites] if last.startswith("site=") else [f"{key}=" for key in kind.keys]
    return [f"{name}:{before}{comma}{end}" for end in ends]


@_quietly
def packs(ctx: typer.Context, incomplete: str) -> Found:
    from specdebug.base.content import content_files

    return content_files("probes", _content(ctx))


@_quietly
def signatures(ctx: typer.Context, incomplete: str) -> Found:
    """Signatures of findings of probes: a kind and a site."""
    from specdebug.scenario.library import engine_sites

    return dict.fromkeys(f"{site.kind}@{site.name}" for site in engine_sites())


@_quietly
def relations(ctx: typer.Context, incomplete: str) -> Found:
    from specdebug.targets.relations import RELATIONS

    return [(each.name, each.changes) for each in RELATIONS.values()]


devices = _quietly(lambda ctx, incomplete: ("cpu", "cuda"))  # only torch, which is not asked, knows which there are
plans = _quietly(lambda ctx, incomplete: PLANS)
