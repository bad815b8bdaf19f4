"""A release that no recipe names: what the registry has of it, and a recipe for it made of the nearest one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from specdebug.base.errors import one_line
from specdebug.base.interpreters import other_python
from specdebug.targets.installs.release import Recipe, Release, ReleaseError, find_recipe, order, python_for, recipes
from specdebug.targets.installs.steps import ask

_ASK_S = 300.0
"""Seconds that the registry may take; without metadata beside a wheel pip fetches the wheel."""


@dataclass(frozen=True)
class Offered:
    """A release as the registry has it. ``requires``: what it asks for, as its metadata say."""

    version: str
    requires: tuple[str, ...] = ()


def offered_by_pip(package: str, version: str | None, python: str) -> Offered:
    """Ask, by pip and from where pip looks, for a version of a package, else the newest that this Python and system can
    have. ``python``: whose pip. Raises ReleaseError, KeyboardInterrupt for a signal."""
    wanted = package if version is None else f"{package}=={version}"
    words = other_python(python, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", "install")
    words += ["--dry-run", "--ignore-installed", "--no-deps", "--report", "-", wanted]
    said, trouble = ask(words, _ASK_S)
    try:
        (taken,) = json.loads(said)["install"]
        metadata = taken["metadata"]
        return Offered(str(metadata["version"]), tuple(map(str, metadata.get("requires_dist", ()))))
    except (ValueError, KeyError, TypeError):
        last = next((line for line in reversed(trouble.splitlines()) if line.strip()), "it said nothing")
        raise ReleaseError(f"pip finds no {wanted}: {one_line(last, 160)}") from None


Ask = Callable[[str, str | None, str], Offered]


def recipe_for(release: Release, device: str, ask_for: Ask = offered_by_pip) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe for a release, and what a user is to know of it, a line each. Without a version it is the newest that
    the registry has; one that is newer than every recipe is installed by the newest of those. Raises SpecDebugError,
    KeyboardInterrupt for a signal."""
    mine = [each for each in recipes() if (each.engine, each.device) == (release.engine, device)]
    known = [each for each in mine if release.version is not None and release.admits(each.version)]
    newer = bool(mine) and (release.version is None or order(release.version) > order(mine[0].version))
    if known or not newer:
        return find_recipe(release, device), ()
    try:
        offered = ask_for(package_of(mine[0]), release.version, python_for(mine[0]))
    except ReleaseError as error:
        if release.version is not None:
            raise
        return mine[0], (f"the registry cannot be asked for the newest ({error}); this is the newest with a recipe",)
    if order(offered.version) <= order(mine[0].version):
        newest = f"{package_of(mine[0])}=={offered.version}"
        return mine[0], (f"the newest that pip finds is {newest}; the newest recipe is that of {mine[0].release}",)
    return derived(mine[0], offered)


def package_of(recipe: Recipe) -> str:
    """The package that a recipe installs its engine by."""
    names = (each.partition("==")[0] for each in recipe.requirements)
    return next(each for each in names if canonicalize_name(each) in (recipe.engine, f"{recipe.engine}-cpu"))


def derived(nearest: Recipe, offered: Offered) -> tuple[Recipe, tuple[str, ...]]:
    """A recipe for a release made of another's, and what is not known of it, a line each. Versions are those that were
    tried, but where the release asks for others; what it asks for besides is taken, without what that asks for."""
    engine = package_of(nearest)
    kept = {canonicalize_name(each.partition("==")[0]): each for each in nearest.requirements}
    kept[canonicalize_name(engine)] = f"{engine}=={offered.version}"
    alone = {canonicalize_name(each.partition("==")[0]) for each in nearest.first}
    left_out = {canonicalize_name(each) for each in nearest.left_out}
    told = [f"no recipe has {nearest.engine}=={offered.version}: it is installed as {nearest.release} is, but that"]
    for wanted in filter(None, map(_requirement, offered.requires)):
        name = canonicalize_name(wanted.name)
        asked = f"{wanted.name}{wanted.specifier}"
        if name not in kept and name not in left_out:
            kept[name] = asked
            told.append(f"it asks for {asked}, which no recipe has: taken, without what that asks for")
        elif name in kept and (pinned := kept[name].partition("==")[2]) and not wanted.specifier.contains(pinned, True):
            if name in alone:
                told.append(f"it asks for {asked}, and gets {pinned}, with which the others were tried")
            else:
                kept[name] = asked
                told.append(f"it asks for {asked}, and gets that in place of {pinned}")
    made = replace(nearest, version=offered.version, requirements=tuple(kept.values()), over="")
    return made, (*told, "its looks and stand-ins are chosen by its files; what does not fit is named below")


def _requirement(text: str) -> Requirement | None:
    """What a release asks for on this system without extras; None for what it does not."""
    try:
        found = Requirement(text)
    except InvalidRequirement:
        return None
    return found if found.marker is None or found.marker.evaluate({"extra": ""}) else None
