"""What to look for where a fix is lacking: the names, operands and statements of the code before it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from specdebug.apps.mining.fitting import words_of
from specdebug.apps.mining.functions import Function, functions, words
from specdebug.apps.mining.written import dimensions
from specdebug.base.errors import Where
from specdebug.patching.drift.check import fit
from specdebug.patching.drift.dist import Dist
from specdebug.patching.reversal import Reversal
from specdebug.patching.rewrite import rewrite, tried
from specdebug.patching.source import ModuleSource, Patch, find_source
from specdebug.patching.toggles import Toggle

_DULL = frozenset(
    {"self", "cls", "torch", "np", "batch", "dtype", "device", "shape", "size", "max", "min", "len", "int", "range"}
    | {"append", "get", "tensor", "zeros", "item", "value", "where"}
)
"""Names that say nothing of what a function is about."""


@dataclass(frozen=True)
class Factor:
    """Names that stand together before the fix, and those that the fix puts among them."""

    kept: frozenset[str]
    missing: frozenset[str]


@dataclass(frozen=True)
class Sought:
    """``terms``: names that the code before the fix is about, by how much each counts. ``own``: the fix's functions, by
    module and name. ``forms``: of the statements that the fix changes. ``parts``: of the engine, that its modules
    belong to. In the engine that is looked at, ``lost`` has the names that only the code with the fix has, and
    ``before`` are the functions without it."""

    terms: Mapping[str, float]
    own: frozenset[tuple[str, str]]
    factors: tuple[Factor, ...]
    forms: frozenset[str]
    parts: frozenset[str]
    lost: frozenset[str]
    before: tuple[Function, ...]


def sought(views: Sequence[Reversal], engine: str) -> Sought:
    """What the views of a fix say: how our engine has it, a release of another, a commit."""
    pairs = [pair for view in views for pair in _changed(view)]
    terms = dict[str, float]()
    for fixed, before in pairs:
        terms |= dict.fromkeys([*_lost(fixed, before), before.bare_name], 1.0)
        for name in before.written:
            terms.setdefault(name, 0.5)
    edited = {name for view in views for name in _names_in_edits(view)}
    terms |= dict.fromkeys(edited & {name for pair in pairs for each in pair for name in each.names}, 1.0)
    here = [(fixed, before) for fixed, before in pairs if fixed.package == engine]
    terms |= dict.fromkeys((part for _, before in here for part in before.name.split(".")), 1.0)
    kept = {name for _, before in here for name in before.names}
    return Sought(
        {name: weight for name, weight in terms.items() if words(name) and name not in _DULL},
        frozenset(fixed.key for fixed, _ in pairs),
        tuple(dict.fromkeys(factor for fixed, before in pairs for factor in _factors(fixed, before))),
        frozenset(form for fixed, before in pairs for form in before.forms.keys() - fixed.forms.keys()),
        frozenset().union(*(dimensions(fixed.module) for fixed, _ in pairs)),
        frozenset(name for fixed, before in here for name in _lost(fixed, before) - kept - _DULL),
        tuple(before for _, before in here),
    )


def _lost(fixed: Function, before: Function) -> set[str]:
    return {name for name, count in fixed.names.items() if count > before.names[name]}


def _changed(view: Reversal) -> Iterator[tuple[Function, Function]]:
    """Each function that a fix changes, with it and before."""
    before = {each.name: each for each in functions(ModuleSource(view.source.name, view.source.path, view.before))}
    for each in functions(view.source):
        was = before.get(each.name)
        if was is not None and any(name == each.name or name.startswith(f"{each.name}.") for name in view.edits):
            yield each, was


def _factors(fixed: Function, before: Function) -> Iterator[Factor]:
    """Operands that only the code before has, with what the fix puts among them."""
    with_it, without = ({each.names for each in one.operands} for one in (fixed, before))
    for names in with_it - without:
        near = max(without - with_it, key=lambda other: (len(other & names), sorted(other)), default=frozenset())
        if len(names & near) > 1 and names - near:
            yield Factor(names & near, names - near)


def _names_in_edits(view: Reversal) -> Iterator[str]:
    for pairs in view.edits.values():
        for text in (text for pair in pairs for text in pair):
            yield from (word.text for word in words_of(text) if re.fullmatch(r"[^\W\d]\w+", word.text))


def views_of(toggle: Toggle, dists: Sequence[Dist]) -> list[Reversal]:
    """A registered fix as our engine and these releases have it; those that its patches do not fit are left out."""
    views = _views(toggle.patches, find_source, False)
    for dist in dists:
        patches = fitting(dist, toggle)
        views += _views(patches, dist.source, dist.name in toggle.mends)
    return views


def places(dist: Dist, patches: Sequence[Patch]) -> list[tuple[ModuleSource, int]]:
    """The first line of each edit of patches that fit a release."""
    return [(source, one.start) for source, one in tried(patches, dist.source)[0]]


def fitting(dist: Dist, toggle: Toggle) -> tuple[Patch, ...]:
    """The patches of a fix that fit a release, of whatever version range they are; none if no range's do."""
    ranges = toggle.foreign.get(dist.name, {}).values()
    return next((patches for patches in ranges if not fit(dist, patches).problems), ())


def _views(patches: Sequence[Patch], source_of: Callable[[str, Where], ModuleSource], mends: bool) -> list[Reversal]:
    """The modules of some patches, with the fix and before. ``mends``: the patches lead to the fix."""
    placed, wrong = tried(patches, source_of)
    if wrong:
        return []
    views = list[Reversal]()
    for source in dict.fromkeys(source for source, _ in placed):
        here = [one for each, one in placed if each is source]
        edits = dict[str, list[tuple[str, str]]]()
        for one in here:
            edits.setdefault(one.patch.plain_name, []).append((one.edit.match, one.edit.replacement))
        other = "\n".join(rewrite(source, here).lines)
        fixed, before = (replace(source, text=other), source.text) if mends else (source, other)
        views.append(Reversal(fixed, before, edits))
    return views
