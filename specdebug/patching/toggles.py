"""The registry of reverts: the fix that each number names, the edits that take it out, and what notices.

A toggle file (``toggles/README.md`` lists its fields) describes one merged fix as edits that undo it. Of a fix that
releases of another engine lack, the edits put it in there: it *mends* that engine.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar

from packaging.specifiers import SpecifierSet

from specdebug.base.content import content_files, words_for
from specdebug.base.errors import ContentError, SpecDebugError, Where, did_you_mean
from specdebug.base.schema import (
    ANY_TEXT,
    TEXT,
    Gather,
    Item,
    Key,
    Kind,
    Part,
    Schema,
    form,
    list_of,
    map_of,
    nested,
    one_or_many,
    simple,
    whole,
)
from specdebug.base.yamlio import Doc, load_yaml, one_line
from specdebug.patching.hook import REVERT_VARIABLE
from specdebug.patching.hook.ours import hook_wants
from specdebug.patching.match import shared_target
from specdebug.patching.source import Edit, Patch, parse_target

OWN_ENGINE = "specdebug"

_ENGINE_NAME = r"[a-z][a-z0-9_.-]*"
_VERSION_RANGE = re.compile(r"(==|!=|>=|<=|>|<)\s*\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?", re.ASCII)
_MAX_PR = 10_000_000


class SelectionError(SpecDebugError):
    """A number that was asked to be reverted is no number, or no toggle has it."""


def _read_target(item: Item) -> tuple[str, str]:
    """The module and the qualified name that a text means."""
    try:
        return parse_target(item.text())
    except ValueError as error:
        raise item.error(f"is '{one_line(item.text(), 60)}': {error}") from None


_NUMBER = whole(1, _MAX_PR, unread=0)
_LINE = simple(lambda item: " ".join(item.text().split()), TEXT.schema({}), "")
"""Text as a table shows it: on one line."""
_TARGET = simple(_read_target, {"type": "string", "pattern": r"^[^\s:]+(:[^\s:]+)?$"}, ("", ""))


@dataclass(frozen=True)
class EditText(Part):
    """Lines to replace, as a file has them."""

    match: Annotated[str, TEXT, "complete lines that stand exactly once inside the target"]
    replacement: Annotated[str, ANY_TEXT, "the lines that replace them; empty text deletes them"]


@dataclass(frozen=True)
class PatchText(Part):
    """The edits of one function, class or module, as a file has them."""

    target: Annotated[tuple[str, str], _TARGET, "`package.module:Class.function`; a module alone is all of it"]
    edits: Annotated[tuple[EditText, ...], list_of(nested(EditText), at_least=1), "what is replaced in it"]


_PATCHES = list_of(nested(PatchText), at_least=1)


def _read_patches(item: Item, owner: str) -> tuple[Patch, ...]:
    """``owner``'s last word begins the ids of the edits: ``27338#1`` of ``toggle 27338``."""
    patches, name, numbers, doc = list[Patch](), owner.rpartition(" ")[2], itertools.count(1), item.doc
    for index, text in enumerate(_PATCHES.read(item)):
        at = (*item.path, index)
        edits = tuple(
            Edit(
                f"{name}#{next(numbers)}",
                edit.match,
                edit.replacement,
                doc.where_text(*at, "edits", n, "match", line=1),
                doc.where_text(*at, "edits", n, "replacement", line=1),
            )
            for n, edit in enumerate(text.edits)
        )
        module, qualname = text.target
        patches.append(Patch(owner, module, qualname, edits, doc.where(*at, "target")))
    return tuple(patches)


def read_ranges(item: Item, owner: str) -> dict[str, tuple[Patch, ...]]:
    """Patches of an engine by version range; a list of them is for all versions. ``owner``: who wants them, as errors
    name it. Raises ContentErrors."""
    if isinstance(item.value, list):
        return {"": _read_patches(item, owner)}
    gather, ranges = Gather(), dict[str, tuple[Patch, ...]]()
    if not item.entries():
        raise item.error("needs a version range")
    for wanted, patches in item.entries().items():
        if not all(_VERSION_RANGE.fullmatch(part.strip()) for part in wanted.split(",")):
            message = f"'{one_line(wanted, 60)}' is no version range; write for example '>=0.5.12,<0.5.14'"
            gather.note(ContentError(message, patches.where_key), patches.path)
        ranges[wanted] = gather.one(patches, lambda each: _read_patches(each, owner), ())
    return gather.done(ranges)


def _read_engines(item: Item) -> dict[str, dict[str, tuple[Patch, ...]]]:
    """Patches by engine and version range; those of this engine are for its only one."""
    gather, owner = Gather(), f"toggle {item.doc.data.get('pr')}"
    found = dict[str, dict[str, tuple[Patch, ...]]]()
    for engine, patches in item.entries().items():
        if not re.fullmatch(_ENGINE_NAME, engine):
            message = f"'{one_line(engine, 60)}' is no name of an engine"
            gather.note(ContentError(message, patches.where_key), patches.path)
        elif engine == OWN_ENGINE:
            found[engine] = {"": gather.one(patches, lambda each: _read_patches(each, owner), ())}
        else:
            found[engine] = gather.one(patches, lambda each: read_ranges(each, owner), {})
    return gather.done(found)


def _engines_schema(defs: Schema) -> Schema:
    many = _PATCHES.schema(defs)
    ranges = {"type": "object", "minProperties": 1, "additionalProperties": many}
    return {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": f"^{_ENGINE_NAME}$"},
        "properties": {OWN_ENGINE: many},
        "additionalProperties": {"anyOf": [many, ranges]},
    }


_ENGINES = Kind(_read_engines, _engines_schema, lambda item: {})


@dataclass(frozen=True)
class Detection(Part):
    """A scenario that notices the bug, and signatures of its failure (``fnmatch`` patterns, any of them)."""

    scenario: Annotated[str, _LINE, "name of the scenario that shows it"]
    signatures: Annotated[
        tuple[str, ...], one_or_many(_LINE, at_least=1), "of its failure, with wildcards", Key(name="signature")
    ]

    def recognises(self, signature: str) -> bool:
        """Return True if a failure's signature is one of those stated."""
        return any(fnmatchcase(signature, pattern) for pattern in self.signatures)


NOTHING = Detection("", ())
_DETECTION = nested(Detection)


@dataclass(frozen=True)
class GuardText(Part):
    """Lines that keep a bug from being reached, as a file has them."""

    target: Annotated[tuple[str, str], _TARGET, "`package.module:Class.function` that has the lines"]
    guard: Annotated[str, TEXT, "complete lines that stand exactly once inside the target"]
    why: Annotated[str, _LINE, "how they keep the bug from being reached"]


@dataclass(frozen=True)
class Guard:
    """Lines of an engine that keep a bug from being reached there: ``patch`` matches them, and is never applied."""

    patch: Patch
    why: str


def _read_guard(item: Item) -> Guard:
    text, owner, at = GuardText.read(item), f"guard {item.doc.data.get('pr')}", item.path
    first = item.doc.where_text(*at, "guard", line=1)
    edit = Edit(f"{owner}#1", text.guard, "pass", first, first)
    return Guard(Patch(owner, *text.target, (edit,), item.doc.where(*at, "target")), text.why)


@dataclass(frozen=True)
class Toggle(Part):
    """One fix that can be reverted. A fix that this engine lacks has no ``patches``, and is detected by ``NOTHING``.
    ``foreign``: per other engine, per version range, the edits that revert it there (see ``patching.drift``), in
    ``detected_in`` what shows it there, and in ``latent_in`` what keeps it from showing; ``mends``: the engines that
    lack the fix, where the edits put it in."""

    schema_beside: ClassVar[Schema] = {
        "if": {"properties": {"patches": {"required": [OWN_ENGINE]}}},
        "then": {"required": ["detected_by"]},
        "else": {"not": {"required": ["detected_by"]}},
    }

    pr: Annotated[int, _NUMBER, "the number that selects it, such as the pull request's"]
    aliases: Annotated[tuple[int, ...], list_of(_NUMBER), "further numbers that select it", Key(default="none")]
    title: Annotated[str, _LINE, "what the fix does, on one line"]
    url: Annotated[str, form(r"https?://\S+"), "the pull request", Key(default="none")]
    family: Annotated[str, _LINE, "the family of bugs it belongs to"]
    symptom: Annotated[str, _LINE, "what a user sees where the fix is missing"]
    description: Annotated[str, TEXT, "mechanism, trigger, evidence", Key(default="none")]
    detected_by: Annotated[
        Detection,
        one_or_many(_DETECTION, at_least=1),
        "what shows it in the engine of this package, or a list of such",
        Key(default="nothing"),
    ]
    patches: Annotated[
        tuple[Patch, ...],
        _ENGINES,
        "by engine (the name of its package) the edits that take the fix out: a list, or lists by version range",
    ]
    foreign: Mapping[str, Mapping[str, tuple[Patch, ...]]]
    path: Path
    detected_in: Annotated[Mapping[str, Detection], map_of(_DETECTION), "by engine, what shows it there"] = field(
        default_factory=dict
    )
    latent_in: Annotated[
        Mapping[str, Guard],
        map_of(Kind(_read_guard, nested(GuardText).schema)),
        "by engine where nothing can reach the bug, the lines that see to it",
    ] = field(default_factory=dict)
    mends: Annotated[
        frozenset[str], list_of(TEXT, at_least=1), "engines that lack the fix, where the edits put it in"
    ] = frozenset()
    also_detected_by: tuple[Detection, ...] = ()
    """Further scenarios that show it, such as those of another way of drafting."""

    @classmethod
    def given(cls, item: Item) -> dict[str, Any]:
        return {"path": Path(item.doc.path)}

    @classmethod
    def settle(cls, item: Item, table: Mapping[str, Item], values: dict[str, Any], gather: Gather) -> None:
        engines: Mapping[str, Any] = values.get("patches", {})
        values["patches"] = engines.get(OWN_ENGINE, {}).get("", ())
        values["foreign"] = {engine: ranges for engine, ranges in engines.items() if engine != OWN_ENGINE}
        detections: Sequence[Detection] = values.get("detected_by", ())
        values["detected_by"], *more = detections or (NOTHING,)
        values["also_detected_by"] = tuple(more)
        values["mends"] = frozenset(values.get("mends", ()))

        def wrong(at: Item, message: str) -> None:
            gather.note(at.error(message), at.path)

        numbers = (values.get("pr", 0), *values.get("aliases", ()))
        for n, number in enumerate(numbers[1:], start=1):
            if number and number in numbers[:n]:
                wrong(table["aliases"].items()[n - 1], f"repeats {number}")
        scenarios = [each.scenario for each in detections]
        for n, name in enumerate(scenarios):
            if name and name in scenarios[:n]:
                wrong(table["detected_by"].items()[n], f"repeats the scenario '{one_line(name, 60)}'")
        if "patches" in table and isinstance(table["patches"].value, dict):
            cls._settle_engines(item, table, table["patches"].value, gather)

    @classmethod
    def _settle_engines(cls, item: Item, table: Mapping[str, Item], written: Mapping[str, Any], gather: Gather) -> None:
        """Note what is said of engines that does not go with their patches, as they are ``written``."""
        foreign = [engine for engine in written if engine != OWN_ENGINE]
        if OWN_ENGINE in written:
            if "detected_by" not in item.entries():
                gather.note(item.error("lacks the key 'detected_by'"), (*item.path, "detected_by"))
        elif "detected_by" in table or not written:
            hint = did_you_mean(OWN_ENGINE, written) if written else ""
            gather.note(table["patches"].error(f"lacks the key '{OWN_ENGINE}'{hint}"), table["patches"].path)
        said = {key: table[key].value for key in ("detected_in", "latent_in") if key in table}
        for key, by_engine in said.items():
            for engine in by_engine if isinstance(by_engine, dict) else ():
                if engine not in foreign:
                    one = table[key].entries()[engine]
                    gather.note(ContentError(f"'{one_line(engine, 60)}' has no patches here", one.where_key), one.path)
        mends = table["mends"] if "mends" in table and isinstance(table["mends"].value, list) else None
        for one in () if mends is None else mends.items():
            if one.value not in foreign:
                gather.note(one.error(f"'{one_line(str(one.value), 60)}' has no patches of its own here"), one.path)
            elif any(isinstance(each, dict) and one.value in each for each in said.values()):
                message = f"'{one.value}' lacks this fix: nothing shows it or keeps it from showing there"
                gather.note(one.error(message), one.path)

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
        patches = self.edits_in(engine, version)
        if patches is None or engine not in self.detected_in:
            return None
        return replace(self, patches=patches, detected_by=self.detected_in[engine], also_detected_by=())

    def edits_in(self, engine: str, version: str) -> tuple[Patch, ...] | None:
        """The edits that revert it in another engine's release; None where none are for this version."""
        ranges = self.foreign.get(engine, {}).items()
        return next((each for wanted, each in ranges if SpecifierSet(wanted, prereleases=True).contains(version)), None)

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
    name = "the embedded engine" if engine == OWN_ENGINE else engine
    lacks = f"{toggle.pr} {' and '.join(said)}; {name} has no such code to revert"
    run = shlex.join(["specdebug", "run", "--revert", str(toggle.pr), *words_for([toggle]), "--", "COMMAND"])
    return f"{lacks}, `{run}` reverts it under any command" if engine == OWN_ENGINE and there else lacks


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
    """The toggle a document holds. Raises ContentErrors with all that is wrong."""
    return Toggle.read(doc.root)


def _by_number(toggles: Iterable[Toggle]) -> dict[int, Toggle]:
    return {number: toggle for toggle in toggles for number in toggle.numbers}


def _known(number: int, every: Mapping[int, Toggle], engine: str = "") -> Toggle:
    """The toggle of a number. Raises SelectionError, with the nearest (of those that are in ``engine``)."""
    if number not in every:
        near = (str(each) for each, toggle in every.items() if not engine or toggle.is_in(engine))
        hint = did_you_mean(str(number), near) or "; no toggle is registered"
        raise SelectionError(f"no toggle reverts {number}{hint}")
    return every[number]
