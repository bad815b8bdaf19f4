"""The registry of reverts: the fix that each number names, the edits that take it out, and what notices.

A toggle file (``toggles/README.md`` lists its fields) describes one merged fix as edits that undo it. Of a fix that
releases of another engine lack, the edits put it in there: it *mends* that engine.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from packaging.specifiers import SpecifierSet

from specdebug.base.content import content_files
from specdebug.base.errors import ContentError, SpecDebugError, Where, did_you_mean
from specdebug.base.schema import Item
from specdebug.base.yamlio import Doc, load_yaml, one_line
from specdebug.patching.hook import REVERT_VARIABLE
from specdebug.patching.hook.ours import hook_wants
from specdebug.patching.match import shared_target
from specdebug.patching.source import Edit, Patch, parse_target

_T = TypeVar("_T")

OWN_ENGINE = "specdebug"

_ENGINE_NAME = r"[a-z][a-z0-9_.-]*"
_VERSION_RANGE = re.compile(r"(==|!=|>=|<=|>|<)\s*\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?", re.ASCII)
_MAX_PR = 10_000_000


class SelectionError(SpecDebugError):
    """A number that was asked to be reverted is no number, or no toggle has it."""


@dataclass(frozen=True)
class Detection:
    """A scenario that notices the bug, and signatures of its failure (``fnmatch`` patterns, any of them)."""

    scenario: str
    signatures: tuple[str, ...]

    def recognises(self, signature: str) -> bool:
        """Return True if a failure's signature is one of those stated."""
        return any(fnmatchcase(signature, pattern) for pattern in self.signatures)


NOTHING = Detection("", ())


@dataclass(frozen=True)
class Guard:
    """Lines of an engine that keep a bug from being reached there: ``patch`` matches them, and is never applied."""

    patch: Patch
    why: str


@dataclass(frozen=True)
class Toggle:
    """One fix that can be reverted. A fix that this engine lacks has no ``patches``, and is detected by ``NOTHING``.
    ``foreign``: per other engine, per version range, the edits that revert it there (see ``patching.drift``), in
    ``detected_in`` what shows it there, and in ``latent_in`` what keeps it from showing; ``mends``: the engines that
    lack the fix, where the edits put it in."""

    pr: int
    aliases: tuple[int, ...]
    title: str
    url: str
    family: str
    symptom: str
    description: str
    detected_by: Detection
    patches: tuple[Patch, ...]
    foreign: Mapping[str, Mapping[str, tuple[Patch, ...]]]
    path: Path
    detected_in: Mapping[str, Detection] = field(default_factory=dict)
    latent_in: Mapping[str, Guard] = field(default_factory=dict)
    mends: frozenset[str] = frozenset()
    also_detected_by: tuple[Detection, ...] = ()
    """Further scenarios that show it, such as those of another way of drafting."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Every number that selects it."""
        return (self.pr, *self.aliases)

    @property
    def detections(self) -> tuple[Detection, ...]:
        """Every scenario that shows it, the first first."""
        return (self.detected_by, *self.also_detected_by)

    def shown_by(self, detection: Detection) -> Toggle:
        """The fix with this one of its scenarios as the first."""
        others = tuple(each for each in self.detections if each != detection)
        return replace(self, detected_by=detection, also_detected_by=others)

    def of_release(self, engine: str, version: str) -> Toggle | None:
        """The fix as one of another engine's release: with its edits there, and what shows it there; None where none is
        known for this version, or nothing shows it."""
        ranges = self.foreign.get(engine, {})
        held = (each for wanted, each in ranges.items() if SpecifierSet(wanted, prereleases=True).contains(version))
        patches = next(held, None)
        if patches is None or engine not in self.detected_in:
            return None
        return replace(self, patches=patches, detected_by=self.detected_in[engine], also_detected_by=())

    def is_in(self, engine: str) -> bool:
        """Return True if some edits revert it in an engine, of some version."""
        return bool(self.patches) if engine == OWN_ENGINE else engine in self.foreign

    def clash_with(self, other: Toggle, engine: str = OWN_ENGINE) -> str | None:
        """Where this fix and another edit the same line of an engine, so that only one can be reverted; None if they do
        not. Of another engine than ours, whose source is not at hand: where they may."""
        if engine == OWN_ENGINE:
            return shared_target(self.patches, other.patches, here=True)
        ranges = (each.foreign.get(engine, {}).values() for each in (self, other))
        found = (shared_target(one, its, here=False) for one, its in itertools.product(*ranges))
        return next(filter(None, found), None)


@dataclass(frozen=True)
class Registry:
    """The known toggles, by number; those ``elsewhere``, of other engines, are listed and checked, not selected."""

    toggles: Mapping[int, Toggle]
    elsewhere: Mapping[int, Toggle] = field(default_factory=dict)

    @property
    def by_number(self) -> dict[int, Toggle]:
        """Toggles by every number that selects them."""
        return _by_number(self.toggles.values())

    @property
    def all(self) -> tuple[Toggle, ...]:
        """Every fix, of whatever engine, by number."""
        return tuple(sorted((*self.toggles.values(), *self.elsewhere.values()), key=lambda toggle: toggle.pr))

    def find(self, number: str) -> Toggle:
        """The one fix of a number, of whatever engine. Raises SelectionError."""
        wanted = parse_numbers(number)
        if len(wanted) != 1:
            raise SelectionError(f"'{one_line(number, 40)}' is not one pull request's number")
        return _known(wanted[0], _by_number(self.all))

    def select(self, wanted: str | int | Iterable[int], engine: str = OWN_ENGINE) -> tuple[Toggle, ...]:
        """The toggles of some numbers, to be reverted together. Raises SelectionError as :meth:`listed`, and where two
        edit one line."""
        chosen = self.listed(wanted, engine)
        for one, other in itertools.combinations(chosen, 2) if engine == OWN_ENGINE else ():
            if (target := one.clash_with(other)) is not None:
                raise SelectionError(f"{one.pr} and {other.pr} edit the same line of {target}; revert one of them")
        return chosen

    def listed(self, wanted: str | int | Iterable[int], engine: str = OWN_ENGINE) -> tuple[Toggle, ...]:
        """The toggles of some numbers, each once, in the order first named.

        ``wanted``: a number, several, or text such as ``27360,27338``; ``#`` before a number is allowed. Raises
        SelectionError: a part is not a number, no toggle has it, or its fix is not in the engine.
        """
        every = _by_number(self.all)
        if isinstance(wanted, str):
            wanted = parse_numbers(wanted)
        chosen = [_known(each, every, engine) for each in ((wanted,) if isinstance(wanted, int) else wanted)]
        for toggle in chosen:
            if not toggle.is_in(engine):
                raise SelectionError(not_in(engine, toggle))
        return tuple({toggle.pr: toggle for toggle in chosen}.values())


def apart(toggles: Iterable[Toggle], engines: Iterable[str]) -> frozenset[frozenset[str]]:
    """The pairs of fixes, by number, that edit the same line of one of the engines: they are not reverted together."""
    pairs = itertools.combinations(toggles, 2)
    return frozenset(
        frozenset((str(one.pr), str(other.pr)))
        for (one, other), engine in itertools.product(pairs, tuple(engines))
        if one.clash_with(other, engine) is not None
    )


def not_in(engine: str, toggle: Toggle) -> str:
    """Say in one line why a fix of other engines cannot be reverted in one."""
    there = [*([OWN_ENGINE] if toggle.patches else []), *(each for each in toggle.foreign if each not in toggle.mends)]
    said = [f"is a fix in {' and '.join(there)}"] if there else []
    said += [f"mends {' and '.join(sorted(toggle.mends))}"] if toggle.mends else []
    name = "this engine" if engine == OWN_ENGINE else engine
    return f"{toggle.pr} {' and '.join(said)}; {name} has no such code to revert"


def parse_numbers(text: str) -> tuple[int, ...]:
    """Numbers of a comma-separated set, such as ``--revert`` gives; blank text is none. Raises SelectionError."""
    if not text.strip():
        return ()
    numbers = []
    for part in text.split(","):
        match = re.fullmatch(r"#?([0-9]{1,9})", part.strip(), re.ASCII)
        if not match:
            shown = one_line(part, 40) or "nothing"
            raise SelectionError(f"'{shown}' is not a pull request's number; write for example 27360,27338")
        numbers.append(int(match.group(1)))
    return tuple(numbers)


def reverts_from_environment() -> tuple[int, ...]:
    """Numbers in ``SGLANG_DEBUG_REVERT_PR``, or those that a ``specdebug run`` around us wants of our own engine, which
    its hook leaves to us. Raises SelectionError."""
    asked = hook_wants()
    if asked:
        return tuple(asked)
    try:
        return parse_numbers(os.environ.get(REVERT_VARIABLE, ""))
    except SelectionError as error:
        raise SelectionError(f"{REVERT_VARIABLE}: {error}") from None


def load_registry(extra: Sequence[str | Path] = ()) -> Registry:
    """Every toggle of the content folders. Raises ContentError: a file is malformed, or two claim the same number."""
    found: dict[int, Toggle] = {}
    taken: dict[int, Path] = {}
    for file in content_files("toggles", extra).values():
        toggle = load_toggle(file)
        for number in toggle.numbers:
            if number in taken:
                raise ContentError(f"{number} is taken by {taken[number]} already", Where(str(file)))
            taken[number] = file
        found[toggle.pr] = toggle
    by_pr = sorted(found.items())
    return Registry(
        {pr: each for pr, each in by_pr if each.patches}, {pr: each for pr, each in by_pr if not each.patches}
    )


def load_toggle(path: str | Path) -> Toggle:
    """Read and check one toggle file. Raises ContentError."""
    return read_toggle(load_yaml(path))


def read_toggle(doc: Doc) -> Toggle:
    """The toggle a document holds. Raises ContentError."""
    root = doc.root
    top = root.table(
        required=("pr", "title", "family", "symptom", "patches"),
        optional=("aliases", "url", "description", "detected_by", "detected_in", "latent_in", "mends"),
    )
    pr = top["pr"].integer(low=1, high=_MAX_PR)
    aliases = [pr]
    for item in top["aliases"].items() if "aliases" in top else ():
        if (number := item.integer(low=1, high=_MAX_PR)) in aliases:
            raise item.error(f"repeats {number}")
        aliases.append(number)
    detection, *more = _read_detections(top["detected_by"]) if "detected_by" in top else (NOTHING,)
    own, foreign = _read_engines(top["patches"], pr, here="detected_by" in top)
    if own and detection is NOTHING:
        raise root.error("lacks the key 'detected_by'")
    return Toggle(
        pr=pr,
        aliases=tuple(aliases[1:]),
        title=_line(top["title"]),
        url=top["url"].text(pattern=r"https?://\S+") if "url" in top else "",
        family=_line(top["family"]),
        symptom=_line(top["symptom"]),
        description=top["description"].text() if "description" in top else "",
        detected_by=detection,
        patches=own,
        foreign=foreign,
        path=Path(doc.path),
        detected_in=_read_elsewhere(top, "detected_in", foreign, _read_detection),
        latent_in=_read_elsewhere(top, "latent_in", foreign, lambda item: _read_guard(item, f"guard {pr}")),
        mends=_read_mends(top, foreign),
        also_detected_by=tuple(more),
    )


def _by_number(toggles: Iterable[Toggle]) -> dict[int, Toggle]:
    return {number: toggle for toggle in toggles for number in toggle.numbers}


def _known(number: int, every: Mapping[int, Toggle], engine: str = "") -> Toggle:
    """The toggle of a number. Raises SelectionError, with the nearest (of those that are in ``engine``)."""
    if number not in every:
        near = (str(each) for each, toggle in every.items() if not engine or toggle.is_in(engine))
        hint = did_you_mean(str(number), near) or "; no toggle is registered"
        raise SelectionError(f"no toggle reverts {number}{hint}")
    return every[number]


def _line(item: Item) -> str:
    """The text on one line, as a table shows it."""
    return " ".join(item.text().split())


def _read_detections(item: Item) -> list[Detection]:
    """One, or a list of them: each of another scenario."""
    found: list[Detection] = []
    for one in item.one_or_many(at_least=1):
        detection = _read_detection(one)
        if any(each.scenario == detection.scenario for each in found):
            raise one.error(f"repeats the scenario '{one_line(detection.scenario, 60)}'")
        found.append(detection)
    return found


def _read_detection(item: Item) -> Detection:
    found = item.table(required=("scenario", "signature"))
    signatures = tuple(_line(one) for one in found["signature"].one_or_many(at_least=1))
    return Detection(_line(found["scenario"]), signatures)


def _read_elsewhere(
    top: Mapping[str, Item], key: str, foreign: Iterable[str], read: Callable[[Item], _T]
) -> dict[str, _T]:
    """What is said of other engines under a key; each must have patches."""
    found = {}
    for engine, item in top[key].entries().items() if key in top else ():
        if engine not in foreign:
            raise ContentError(f"'{one_line(engine, 60)}' has no patches here", item.where_key)
        found[engine] = read(item)
    return found


def _read_mends(top: Mapping[str, Item], foreign: Iterable[str]) -> frozenset[str]:
    """The engines in which the patches put the fix in; each must have some."""
    found = set()
    for item in top["mends"].items(at_least=1) if "mends" in top else ():
        engine = item.text()
        if engine not in foreign:
            raise item.error(f"'{one_line(engine, 60)}' has no patches of its own here")
        if any(key in top and engine in top[key].entries() for key in ("detected_in", "latent_in")):
            raise item.error(f"'{engine}' lacks this fix: nothing shows it or keeps it from showing there")
        found.add(engine)
    return frozenset(found)


def _read_guard(item: Item, owner: str) -> Guard:
    table = item.table(required=("target", "guard", "why"))
    at = _first_line(table["guard"])
    edit = Edit(f"{owner}#1", table["guard"].text(), "pass", at, at)
    return Guard(Patch(owner, *_read_target(table["target"]), (edit,), table["target"].where), _line(table["why"]))


def _read_engines(item: Item, pr: int, here: bool) -> tuple[tuple[Patch, ...], dict[str, dict[str, tuple[Patch, ...]]]]:
    """Patches of this engine and of others. ``here``: the file says how the bug is detected, so this engine has it."""
    engines = item.entries()
    for engine, versions in engines.items():
        if not re.fullmatch(_ENGINE_NAME, engine):
            raise ContentError(f"'{one_line(engine, 60)}' is no name of an engine", versions.where_key)
    if OWN_ENGINE not in engines and (here or not engines):
        hint = did_you_mean(OWN_ENGINE, engines) if engines else ""
        raise item.error(f"lacks the key '{OWN_ENGINE}'{hint}")
    owner = f"toggle {pr}"
    foreign = {engine: read_ranges(item, owner) for engine, item in engines.items() if engine != OWN_ENGINE}
    return _read_patches(engines[OWN_ENGINE], owner) if OWN_ENGINE in engines else (), foreign


def read_ranges(item: Item, owner: str) -> dict[str, tuple[Patch, ...]]:
    """Patches of an engine by version range; a list of them is for all versions. ``owner``: who wants them, as errors
    name it. Raises ContentError."""
    if isinstance(item.value, list):
        return {"": _read_patches(item, owner)}
    ranges: dict[str, tuple[Patch, ...]] = {}
    if not item.entries():
        raise item.error("needs a version range")
    for wanted, patches in item.entries().items():
        if not all(_VERSION_RANGE.fullmatch(part.strip()) for part in wanted.split(",")):
            message = f"'{one_line(wanted, 60)}' is no version range; write for example '>=0.5.12,<0.5.14'"
            raise ContentError(message, patches.where_key)
        ranges[wanted] = _read_patches(patches, owner)
    return ranges


def _read_patches(item: Item, owner: str) -> tuple[Patch, ...]:
    """``owner``'s last word begins the ids of the edits: ``27338#1`` of ``toggle 27338``."""
    patches, name, numbers = list[Patch](), owner.rpartition(" ")[2], itertools.count(1)
    for entry in item.items(at_least=1):
        table = entry.table(required=("target", "edits"))
        edits = []
        for one in table["edits"].items(at_least=1):
            texts = one.table(required=("match", "replacement"))
            match, replacement = texts["match"], texts["replacement"]
            written = match.text(), replacement.text(empty=True)
            edits.append(Edit(f"{name}#{next(numbers)}", *written, _first_line(match), _first_line(replacement)))
        patches.append(Patch(owner, *_read_target(table["target"]), tuple(edits), table["target"].where))
    return tuple(patches)


def _first_line(item: Item) -> Where:
    return item.doc.where_text(*item.path, line=1)


def _read_target(item: Item) -> tuple[str, str]:
    """The module and the qualified name that a text means."""
    try:
        return parse_target(item.text())
    except ValueError as error:
        raise item.error(f"is '{one_line(item.text(), 60)}': {error}") from None
