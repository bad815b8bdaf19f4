"""The check of one release: a row for every fix of our registry, and of the engine's own.

Our patches are matched by the rules that ``patching.apply`` has, down to compiling the result. An engine's own registry
is a module that knows ``SGLANG_DEBUG_REVERT_PR``, with a dictionary from pull requests to YAML. By SGLang's rules a
target is a dotted name as Python resolves it, indentation does not count, and an edit sees what those before it left.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from specdebug.base.errors import ContentError, SpecDebugError, Where
from specdebug.base.schema import Item
from specdebug.base.yamlio import one_line, parse_yaml
from specdebug.patching.drift.dist import Dist
from specdebug.patching.hook import REVERT_VARIABLE
from specdebug.patching.match import Near, closest, dedent
from specdebug.patching.rewrite import tried
from specdebug.patching.source import ModuleSource, Patch, PatchError
from specdebug.patching.toggles import OWN_ENGINE, Registry, Toggle

# How a message may end that is for the editor of the one file; a Near says more.
_HINT = re.compile("; nearest is |; known: ")


@dataclass(frozen=True)
class EditProblem:
    """An edit that cannot be made, and in one line why: ``what``.

    ``written``: the edit's place in its registry. ``near``: the release's lines that come nearest to those it names.
    """

    written: str
    what: str
    near: Near | None

    def to_dict(self) -> dict[str, Any]:
        place, lines, diff = None, None, None
        if self.near:
            place, lines, diff = str(self.near.where), list(self.near.lines), list(self.near.diff)
        return {"written": self.written, "what": self.what, "where": place, "nearest": lines, "diff": diff}


@dataclass(frozen=True)
class Fit:
    """The result for some patches: where the edits land, or what is wrong."""

    places: tuple[Where, ...]
    problems: tuple[EditProblem, ...]


def fit(dist: Dist, patches: Sequence[Patch]) -> Fit:
    """Match all edits of these patches, to be made together. Raises SpecDebugError if a file cannot be read."""
    placed, wrong = tried(patches, dist.source)
    problems = []
    for patch, edit, error in wrong:
        near = None
        if patch is not None:
            near = nearest(dist, patch.module, patch.plain_name, dedent(edit.match.strip("\n").split("\n"))[0])
        what = _HINT.split(error.message)[0]
        problems.append(EditProblem(str(error.where or edit.match_at), what, near))
    return Fit(tuple(Where(source.path, one.start) for source, one in placed), tuple(problems))


def nearest(dist: Dist, module: str, qualname: str, wanted: Sequence[str]) -> Near | None:
    """The best place for ``wanted`` lines: in their function, or else in their module or any function of the same name.

    They have no common indentation, and at least one of them is not blank. ``qualname``: without ``<locals>``.
    """
    source = _source(dist, module)
    if source is not None and qualname in source.spans:
        return closest(source, source.spans[qualname], wanted)
    elsewhere = [(other, other.spans[name]) for other, name in namesakes(dist, qualname)]
    places = [*([(source, source.spans[""])] if source else []), *elsewhere]
    found = [near for place in places if (near := closest(*place, wanted))]
    return max(found, key=lambda near: near.likeness, default=None)


def namesakes(dist: Dist, qualname: str) -> list[tuple[ModuleSource, str]]:
    """Functions and classes of this qualified name in any module, or else of its last part, each with its module."""
    last = qualname.rpartition(".")[2]
    if not last:
        return []
    modules = dist.modules_that_mention(rf"(def|class)\s+{re.escape(last)}\b".encode())
    named = [(source, name) for module in modules if (source := _source(dist, module)) for name in source.spans]
    found = [each for each in named if each[1] == qualname]
    return found or [each for each in named if each[1].rpartition(".")[2] == last]


def _source(dist: Dist, module: str) -> ModuleSource | None:
    try:
        return dist.source(module)
    except PatchError:
        return None


_MAX_HOPS = 16


class UpstreamFix(NamedTuple):
    """One fix of the engine's own registry: its number, and the YAML that reverts it."""

    pr: int
    text: str
    where: Where


class _Edit(NamedTuple):
    match: tuple[str, ...]
    becomes: tuple[str, ...]
    where: Where


def read_entries(dist: Dist) -> tuple[UpstreamFix, ...]:
    """Every fix that the engine registers, by number; none if it has no such registry."""
    found: dict[int, UpstreamFix] = {}
    for module in dist.modules_that_mention(REVERT_VARIABLE.encode()):
        try:
            source = dist.source(module)
        except PatchError:  # not the file of a registry that anybody could load
            continue
        for entry in _entries_of(source):
            found.setdefault(entry.pr, entry)
    return tuple(found[pr] for pr in sorted(found))


def fit_entry(dist: Dist, entry: UpstreamFix) -> Fit:
    """Return whether the engine could still apply an entry to its own source."""
    places: list[Where] = []
    problems: list[EditProblem] = []
    try:
        # blank lines in front give everything in the YAML the line it has in the module
        document = parse_yaml("\n" * (entry.where.line - 1) + entry.text, entry.where.path).root
        for item in document.table(required=("patches",))["patches"].items(at_least=1):
            table = item.table(required=("target", "edits"), optional=("preamble",))
            edits = [_read_edit(one) for one in table["edits"].items(at_least=1)]
            target = table["target"]
            landed, wrong = _fit_target(dist, target.text().strip(), target.where, edits)
            places += landed
            problems += wrong
    except ContentError as error:
        problems.append(EditProblem(str(error.where or entry.where), error.message, None))
    return Fit(tuple(places), tuple(problems))


def _entries_of(source: ModuleSource) -> Iterator[UpstreamFix]:
    texts: dict[str, ast.Constant] = {}
    for statement in source.tree.body:
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            texts |= {target.id: value for target in targets if isinstance(target, ast.Name)}
        for key, item in zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ():
            text = texts.get(item.id) if isinstance(item, ast.Name) else item
            if not isinstance(key, ast.Constant) or not isinstance(key.value, int):
                continue
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield UpstreamFix(key.value, text.value, Where(source.path, text.lineno))


def _read_edit(item: Item) -> _Edit:
    table = item.table(required=("match",), optional=("replacement", "prepend", "append"))
    texts = {name: tuple(one.text(empty=name != "match").strip().splitlines()) for name, one in table.items()}
    match = texts["match"]
    before, after = texts.get("prepend", ()), texts.get("append", ())
    becomes = (*before, *match, *(() if before else after)) if before or after else texts.get("replacement", ())
    found = table["match"]
    return _Edit(match, becomes, found.doc.where_text(*found.path, line=1))


def _fit_target(dist: Dist, target: str, where: Where, edits: Sequence[_Edit]) -> tuple[list[Where], list[EditProblem]]:
    resolved = _resolve(dist, target)
    if resolved is None:
        module, qualname = _split(dist, target)
        near = nearest(dist, module, qualname, edits[0].match)
        return [], [EditProblem(str(where), f"{dist} has no '{one_line(target, 120)}'", near)]
    source, qualname = resolved
    outcomes = [_edit(source, span, edits) for span in source.spans[qualname]]
    places, missed, error = min(outcomes, key=lambda outcome: len(outcome[1]))
    problems = []
    for edit, count in missed:
        what = f"the text to match stands in {count} places of {target}"
        problems.append(EditProblem(str(edit.where), what, nearest(dist, source.name, qualname, edit.match)))
    if error and not missed:
        problems.append(EditProblem(str(where), f"{target} does not compile when patched: {error}", None))
    return places, problems


def _edit(
    source: ModuleSource, span: tuple[int, int], edits: Sequence[_Edit]
) -> tuple[list[Where], list[tuple[_Edit, int]], str]:
    """Make the edits, one upon the other: where they land, which do not (and how often they match), and what the
    compiler says of the result."""
    first, last = span
    lines = list(enumerate(source.lines[first - 1 : last], first))  # with the number that each has in the file
    places: list[Where] = []
    missed: list[tuple[_Edit, int]] = []
    for edit in edits:
        goal, size = [line.strip() for line in edit.match], len(edit.match)
        texts = [line.strip() for _, line in lines]
        found = [at for at in range(len(texts) - size + 1) if texts[at : at + size] == goal]
        if len(found) != 1:
            missed.append((edit, len(found)))
            continue
        at = found[0]
        number, here = lines[at]
        indent = here[: len(here) - len(here.lstrip())]
        lines[at : at + size] = [(number, indent + line if line.strip() else "") for line in edit.becomes]
        places.append(Where(source.path, number))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(textwrap.dedent("\n".join(line for _, line in lines)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return places, missed, one_line(error.msg if isinstance(error, SyntaxError) else str(error))
    return places, missed, ""


def _split(dist: Dist, target: str) -> tuple[str, str]:
    """A dotted name as its longest prefix that is a module, and the rest; without any, its last part is the rest."""
    parts = target.split(".")
    for at in range(len(parts), 0, -1):
        if dist.has_module(".".join(parts[:at])):
            return ".".join(parts[:at]), ".".join(parts[at:])
    return ".".join(parts[:-1]), parts[-1]


def _resolve(dist: Dist, target: str) -> tuple[ModuleSource, str] | None:
    """Return where the function or class of a dotted name is defined, followed through imports and base classes."""
    work = [target]
    for _ in range(_MAX_HOPS):
        if not work:
            return None
        module, qualname = _split(dist, work.pop(0))
        try:
            source = dist.source(module)
        except PatchError:
            continue
        if qualname and qualname in source.spans:
            return source, qualname
        work += _elsewhere(source, module, qualname)
    return None


def _elsewhere(source: ModuleSource, module: str, qualname: str) -> list[str]:
    """Dotted names under which something that a module does not define itself may be found."""
    head, _, rest = qualname.partition(".")
    package = module.split(".") if source.path.endswith("/__init__.py") else module.split(".")[:-1]
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            names = [alias.name for alias in node.names if (alias.asname or alias.name) == head]
            found += [f"{origin}.{name}{'.' if rest else ''}{rest}" for name in names]
        elif isinstance(node, ast.ClassDef) and node.name == head and rest:
            found += [f"{module}.{ast.unparse(base)}.{rest}" for base in node.bases]
    return found


Status: TypeAlias = Literal["fits", "stale", "not-for-version"]
Owner: TypeAlias = Literal["ours", "upstream"]

UNDECIDED = 125


@dataclass(frozen=True)
class FixRow:
    """One fix, checked. ``registry``: our toggles, or the engine's own. ``why``: the reason for ``not-for-version``.

    ``places``: in the release, of the edits that can be made; ``problems``: the edits that cannot.
    """

    pr: int
    registry: Owner
    status: Status
    why: str = ""
    versions: str = ""
    places: tuple[Where, ...] = ()
    problems: tuple[EditProblem, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data. ``where`` and ``nearest`` are those of the first problem, or where the first edit lands."""
        near = next((problem.near for problem in self.problems if problem.near), None)
        landed = str(self.places[0]) if self.places and not self.problems else None
        return {name: getattr(self, name) for name in ("pr", "registry", "status", "versions", "why")} | {
            "where": str(near.where) if near else landed,
            "nearest": "\n".join(near.lines) if near else None,
            "places": [str(place) for place in self.places],
            "problems": [problem.to_dict() for problem in self.problems],
        }


@dataclass(frozen=True)
class DriftReport:
    """A release, checked."""

    dist: Dist
    rows: tuple[FixRow, ...]

    def count(self, registry: Owner, status: Status) -> int:
        """Return how many fixes of a registry ended so."""
        return sum(row.registry == registry and row.status == status for row in self.rows)

    @property
    def exit_code(self) -> int:
        """1 when a patch of ours is stale, 0 when all that are meant for this release fit, 125 when none is.

        What is stale in the engine's own registry is its keepers' to mend.
        """
        if self.count("ours", "stale"):
            return 1
        return 0 if self.count("ours", "fits") else UNDECIDED


def engines(registry: Registry) -> set[str]:
    """Engines that some toggle has patches for, this one among them."""
    return {OWN_ENGINE, *(engine for toggle in registry.all for engine in toggle.foreign)}


def check(dist: Dist, registry: Registry) -> DriftReport:
    """Match every patch of both registries against a release.

    Raises SpecDebugError if no toggle knows the engine and it has no registry of its own, a file of it is damaged, or
    two version ranges of one toggle hold the same release.
    """
    entries = read_entries(dist)
    if not entries and all(canonicalize_name(engine) != dist.name for engine in engines(registry)):
        known = ", ".join(sorted(engines(registry)))
        raise SpecDebugError(f"{dist.path} is {dist}: no toggle has patches for '{dist.name}'; known: {known}")
    rows = []
    for toggle in registry.all:
        if (found := patches_for(dist, toggle)) is None:
            rows.append(FixRow(toggle.pr, "ours", "not-for-version", why_none(dist, toggle)))
        else:
            rows.append(_judged(toggle.pr, "ours", fit(dist, found[1]), found[0]))
    rows += [_judged(entry.pr, "upstream", fit_entry(dist, entry)) for entry in entries]
    return DriftReport(dist, tuple(rows))


def patches_for(dist: Dist, toggle: Toggle) -> tuple[str, tuple[Patch, ...]] | None:
    """The version range of a toggle that holds a release, and its patches; None if none does.

    Raises ContentError if two do.
    """
    ranges = _ranges(dist, toggle)
    holding = [wanted for wanted in ranges if SpecifierSet(wanted, prereleases=True).contains(dist.version)]
    if len(holding) > 1:
        message = f"{dist} is in two version ranges, '{holding[0]}' and '{holding[1]}'; make them disjoint"
        raise ContentError(message, ranges[holding[1]][0].where)
    return (holding[0], ranges[holding[0]]) if holding else None


def why_none(dist: Dist, toggle: Toggle) -> str:
    """Why a toggle has no patches for a release."""
    ranges = _ranges(dist, toggle)
    return f"patches are for {' or '.join(ranges)}" if ranges else f"no patches for {dist.name}"


def _ranges(dist: Dist, toggle: Toggle) -> Mapping[str, tuple[Patch, ...]]:
    """Patches by version range, of whatever spelling of the engine's name; those of our own engine are for any."""
    if dist.name == OWN_ENGINE:
        return {"": toggle.patches} if toggle.patches else {}
    spelled = [ranges for engine, ranges in toggle.foreign.items() if canonicalize_name(engine) == dist.name]
    return {wanted: patches for ranges in spelled for wanted, patches in ranges.items()}


def _judged(pr: int, registry: Owner, found: Fit, versions: str = "") -> FixRow:
    status: Status = "stale" if found.problems else "fits"
    return FixRow(pr, registry, status, "", versions, found.places, found.problems)
