"""Check files of content without running anything: all that is wrong with each, at its place."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdebug.base.content import Kind, same_name, shipped_root
from specdebug.base.errors import ContentError, SpecDebugError, Where, did_you_mean, raise_all
from specdebug.base.schema import Part
from specdebug.base.yamlio import load_yaml, one_line
from specdebug.patching.rewrite import tried
from specdebug.patching.source import find_source
from specdebug.patching.toggles import Toggle, load_toggle, read_toggle
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.library import Library
from specdebug.scenario.packs import ProbePack, added_by, check_globs, load_pack
from specdebug.targets.installs.fit import read_sites

GRAMMARS: Mapping[Kind, type[Part]] = {"scenarios": Scenario, "toggles": Toggle, "probes": ProbePack}


@dataclass(frozen=True)
class Validated:
    """A file that was checked: its ``parts``, none where it is wrong, and what is wrong with it or with the packs of a
    scenario, each at its place; line 0 means that it is about the file as a whole. ``noun``: of one part."""

    file: str
    noun: str
    parts: tuple[str, ...]
    problems: tuple[ContentError, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        places = [(problem.where or Where(self.file), problem.message) for problem in self.problems]
        problems = [{"file": at.path, "line": at.line, "column": at.column, "message": told} for at, told in places]
        return {"file": self.file, "ok": not problems, f"{self.noun}s": list(self.parts), "problems": problems}


def validate(library: Library, kind: Kind, names: Sequence[str] = ()) -> Iterator[Validated]:
    """Check files, by path or name, or all of a kind if none is named. Never raises for what one of them says."""
    named = _each(names)
    taken = _taken(library, named) if kind == "toggles" else {}
    every = [] if named else [*library.files(kind), *(map(str, library.site_files) if kind == "probes" else ())]
    for name in named or every:
        file = name
        noun, check = _CHECKS["sites" if kind == "probes" and Path(name).absolute().parent.name == "sites" else kind]
        try:
            path = library.file(kind, name)
            file = str(path)
            yield Validated(file, noun, tuple(check(library, path, taken)), ())
        except SpecDebugError as error:
            found = error.problems if isinstance(error, ContentError) else (ContentError(str(error)),)
            told = tuple(ContentError(each.message, each.where or Where(file)) for each in found)
            yield Validated(file, noun, (), told)


def _each(names: Sequence[str]) -> list[str]:
    """The names, a folder's files in its place, of packs also those of its ``sites/``."""
    found = list[str]()
    for name in names:
        files = [*Path(name).glob("*.y*ml"), *Path(name).glob("sites/*.yaml")] if os.path.isdir(name) else []
        found += map(str, sorted(files)) if files else [name]
    return found


def _check_scenario(library: Library, path: Path, taken: Mapping[int, Path]) -> Iterator[str]:
    """The arms. Raises ContentErrors for the scenario, or for packs that it names."""
    scenario, wrong = library.scenario(path), list[ContentError]()
    for pack in dict.fromkeys(pack for arm in scenario.arms for pack in scenario.probes_of(arm)):
        try:
            library.checked_pack(pack)
        except ContentError as error:
            wrong += error.problems
    raise_all(wrong)
    yield from scenario.arms


def _check_toggle(library: Library, path: Path, taken: Mapping[int, Path]) -> Iterator[str]:
    """The targets. Raises ContentErrors, also where an edit of our own engine does not fit, no scenario has the name
    that should show it, or another file has its number."""
    doc = load_yaml(path)
    toggle, scenarios = read_toggle(doc), library.files("scenarios")
    misfits = tried(toggle.patches, find_source)[1]
    wrong = [ContentError(error.message, error.where or edit.match_at) for _, edit, error in misfits]
    for n, number in enumerate(toggle.numbers):
        if (owner := taken.get(number, path)).resolve() != path.resolve():
            wrong.append(
                ContentError(
                    f"{number} is taken by {owner} already", doc.where(*(("aliases", n - 1) if n else ("pr",)))
                )
            )
    for n, shown in enumerate(toggle.detections if toggle.patches else ()):
        if not any(same_name(shown.scenario, name) for name in scenarios):
            at = (n,) if isinstance(doc.data["detected_by"], list) else ()
            said = f"no scenario is named '{one_line(shown.scenario, 60)}'{did_you_mean(shown.scenario, scenarios)}"
            wrong.append(ContentError(said, doc.where("detected_by", *at, "scenario")))
    raise_all(wrong)
    every = (patches for ranges in toggle.foreign.values() for patches in ranges.values())
    yield from dict.fromkeys(patch.target for patches in (toggle.patches, *every) for patch in patches)


def _taken(library: Library, names: Sequence[str]) -> dict[int, Path]:
    """The file that has each number, of the content and of those that are named; one that is wrong has none."""
    taken = dict[int, Path]()
    for file in (*library.files("toggles").values(), *map(Path, names)):
        with contextlib.suppress(SpecDebugError):
            taken = {**dict.fromkeys(load_toggle(file).numbers, file), **taken}
    return taken


def _check_pack(library: Library, path: Path, taken: Mapping[int, Path]) -> Iterator[str]:
    """The globs. Raises ContentErrors, also for one that covers nothing."""
    pack = load_pack(path)
    check_globs(pack, library.sites)
    yield from (entry.rule.glob for entry in pack.entries)
    yield from (rule.glob for rule in pack.kernels)


def _check_sites(library: Library, path: Path, taken: Mapping[int, Path]) -> Iterator[str]:
    """The sites that a file adds; the shipped ones call probes that only their target knows. Raises ContentErrors."""
    ranges = read_sites(path)
    if not path.resolve().is_relative_to(shipped_root().resolve() / "probes"):
        yield from dict.fromkeys(site.name for site in added_by(ranges))


_CHECKS: Mapping[str, tuple[str, Callable[[Library, Path, Mapping[int, Path]], Iterator[str]]]] = {
    "scenarios": ("arm", _check_scenario),
    "toggles": ("target", _check_toggle),
    "probes": ("glob", _check_pack),
    "sites": ("site", _check_sites),
}
