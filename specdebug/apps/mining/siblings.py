"""Other places of an engine that look like the code before a fix.

A bug that was mended in one place often stands in another: a second worker, a second attention backend, another
engine. A function is likened to the code before the fix by its syntax tree, and every likeness is a reason that is
told. Names count by how rare their words are, calls by how few functions make them.
"""

import ast
import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import log, sqrt

from specdebug.apps.mining.functions import Function, functions, outer_functions, words
from specdebug.apps.mining.missing import inside
from specdebug.apps.mining.sought import Sought
from specdebug.apps.mining.written import dimensions
from specdebug.base.errors import Where
from specdebug.patching.drift.dist import Dist
from specdebug.patching.reversal import is_test
from specdebug.patching.source import ModuleSource

MOST = 10
PARSED = 400
"""Modules that are looked at: those with most of the words that the fix is about."""
RARE = 60
"""A name that more functions have does not tell those that have the fix from others."""
FEW = 5
"""A form that more functions have says nothing."""
LEAST = 0.25
"""Of a sibling's score, at least this part of the best one's."""
_FORM, _MAKES, _CONDITION, _PART = 0.5, 0.5, 0.6, 0.15
_CHANCE = 8.0
"""Added to the rarity of all calls of a function: those with few calls share them by chance."""


@dataclass(frozen=True)
class Sibling:
    """A place that looks like the code before a fix: ``where``, as ``file:line`` by the path from where the package
    lies. ``why``: by the name of each reason, what is alike."""

    where: str
    function: str
    score: float
    why: Mapping[str, str]


@dataclass(frozen=True)
class _Reason:
    """One likeness: its weight, its reason in words, and the line that shows it."""

    score: float = 0.0
    what: str = ""
    line: int = 0


_NONE = _Reason()


@dataclass
class _Rarity:
    """The rarity of words, names and calls among the functions of a release."""

    count: int = 1
    words: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    def add(self, each: Function) -> None:
        self.count += 1
        self.words.update(each.words)
        self.names.update(each.names.keys())
        self.calls.update(each.calls.keys())

    def of(self, kept: Counter[str], several: Collection[str]) -> float:
        return sum(log(self.count / (1 + kept[each])) for each in several)


class _Search:
    """The functions of a release that may be siblings of what is sought."""

    def __init__(self, dist: Dist, wanted: Sought, found: Sequence[Function]) -> None:
        self.dist, self.wanted, self.found, self.rarity = dist, wanted, found, _Rarity()
        for each in found:
            self.rarity.add(each)
        once = Counter(each.bare_name for each in found)
        named = {each.bare_name for each in wanted.before if once[each.bare_name] == 1}
        self.marks = {
            name for name in wanted.lost | named if len(words(name)) > 1 and 0 < self.rarity.names[name] <= RARE
        }
        """Names that only what has or uses the fix has."""
        self.users = [
            *((each, "the code before the fix") for each in wanted.before),
            *(
                (each, f"{each.name}, which has {min(has)}")
                for each in found
                if (has := self.marks & each.names.keys() - {each.bare_name})
            ),
        ]
        self.makers = {maker: name for each in found for name, maker in each.made_by if name in self.marks}
        self.weights = {name: weight * self._words(words(name)) for name, weight in wanted.terms.items()}
        self.whole = sum(self.weights.values()) or 1.0
        self.likeness = cache(self._likeness)
        holders = Counter(form for each in found for form in each.forms.keys() & wanted.forms)
        self.forms = {form for form, count in holders.items() if count <= FEW}

    def siblings(self) -> Iterator[Sibling]:
        wanted = self.wanted
        for each in self.found:
            if each.key in wanted.own or self.marks & wanted.lost & each.names.keys():
                continue
            reasons = {"form": self._by_form(each), "factor": self._by_factor(each), "calls": self._by_calls(each)}
            reasons |= {"names": self._by_names(each), "makes": self._by_making(each)}
            if told := {name: reason for name, reason in reasons.items() if reason.score}:
                if parts := dimensions(each.module) & wanted.parts:
                    told["part"] = _Reason(_PART, ", ".join(sorted(parts)))
                yield _sibling(self.dist, each.path, each.line, f"{each.module}:{each.name}", told)

    def _words(self, several: frozenset[str]) -> float:
        return self.rarity.of(self.rarity.words, several)

    def _likeness(self, one: str, other: str) -> float:
        """The part of the words of two names that is the same, rare ones for more."""
        if one == other:
            return 1.0
        return self._words(words(one) & words(other)) / (self._words(words(one) | words(other)) or 1.0)

    def _by_names(self, each: Function) -> _Reason:
        """It has names like those that the fix is about; one that is only read counts half."""
        score, pairs, own_words = 0.0, list[tuple[float, str, str]](), each.words
        for name, weight in self.weights.items():
            if words(name) & own_words:
                alike, own = max(
                    (self.likeness(name, own) * (1.0 if own in each.written else 0.5), own)
                    for own in each.names
                    if words(name) & words(own)
                )
                if alike > LEAST:
                    score += weight * alike
                    pairs.append((weight * alike, name, own))
        told = dict[str, str]()
        for _, name, own in sorted(pairs, reverse=True):
            told.setdefault(own, own if own == name else f"{own} like {name}")
        return _Reason(score / self.whole, ", ".join(list(told.values())[:3])) if told else _NONE

    def _by_calls(self, each: Function) -> _Reason:
        """It calls what a function calls that has or uses the fix."""
        best, rarity = _NONE, self.rarity
        for user, who in self.users:
            shared = each.calls.keys() & user.calls.keys()
            if user.key == each.key or not shared:
                continue
            whole = (rarity.of(rarity.calls, one.calls) + _CHANCE for one in (each, user))
            alike = rarity.of(rarity.calls, shared) / sqrt(next(whole) * next(whole))
            if alike > best.score:
                few = sorted(shared, key=lambda name: (rarity.calls[name], name))
                best = _Reason(alike, f"{', '.join(few[:2])} as {who}", each.calls[few[0]])
        return best

    def _by_factor(self, each: Function) -> _Reason:
        """It multiplies, adds or passes together what the fix does, without what the fix put there."""
        best, rarity = _NONE, self.rarity
        for factor in self.wanted.factors:
            for one in each.operands:
                shared = one.names & factor.kept
                if one.names & factor.missing or len(shared) < 2:
                    continue
                alike = rarity.of(rarity.names, shared) / (rarity.of(rarity.names, one.names | factor.kept) or 1.0)
                if alike > best.score:
                    what = f"{' and '.join(sorted(shared))} without {' and '.join(sorted(factor.missing))}"
                    best = _Reason(alike, what, one.line)
        return best

    def _by_form(self, each: Function) -> _Reason:
        """A statement is, after renaming, one that the fix changed."""
        lines = [each.forms[form] for form in self.forms & each.forms.keys()]
        return _Reason(_FORM, "after renaming as before the fix", min(lines)) if lines else _NONE

    def _by_making(self, each: Function) -> _Reason:
        """Its value becomes what the fix reads, so where it has none all is as before."""
        name = self.makers.get(each.bare_name)
        return _Reason(_MAKES, f"{name}, which the fix reads") if name else _NONE


def siblings(dist: Dist, wanted: Sought, fixed: Sequence[tuple[ModuleSource, int]] = ()) -> list[Sibling]:
    """At most ten places, the likest first. ``fixed``: the lines where the release has the fix, if it does."""
    found = [each for source in _modules(dist, wanted) for each in functions(source, bool(wanted.forms))]
    all_of_them = [*_Search(dist, wanted, found).siblings(), *_conditions(dist, fixed)]
    best = heapq.nsmallest(MOST, all_of_them, key=lambda each: (-each.score, each.where))
    return [each for each in best if each.score >= LEAST * best[0].score]


def _modules(dist: Dist, wanted: Sought) -> Iterator[ModuleSource]:
    """The modules with most of the words that are sought, rare ones for more."""
    terms = frozenset().union(*map(words, wanted.terms))
    has, counts = dict[str, frozenset[str]](), Counter[str]()
    for module, names in dist.names_of_modules():
        if not is_test(module):
            has[module] = terms & frozenset().union(*map(words, names))
            counts.update(has[module])
    score = {module: sum(log(len(has) / counts[word]) for word in shared) for module, shared in has.items()}
    yield from dist.own_sources(heapq.nlargest(PARSED, score, key=lambda name: score[name]))


def _conditions(dist: Dist, fixed: Sequence[tuple[ModuleSource, int]]) -> Iterator[Sibling]:
    """Functions that have the fix under a condition: where that does not hold, all is as before."""
    for source, line in fixed:
        for name, node in outer_functions(source.tree):
            ifs = [one for one in ast.walk(node) if isinstance(one, ast.If) and _inside(one, line)]
            if ifs:
                why = _Reason(_CONDITION, f"the fix holds only where {ast.unparse(ifs[-1].test)}", ifs[-1].lineno)
                yield _sibling(dist, source.path, line, f"{source.name}:{name}", {"condition": why})


def _inside(node: ast.If, line: int) -> bool:
    return node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)


def _sibling(dist: Dist, path: str, line: int, function: str, reasons: Mapping[str, _Reason]) -> Sibling:
    where = Where(path, next((reason.line for reason in reasons.values() if reason.line), line))
    score = sum(reason.score for reason in reasons.values())
    return Sibling(inside(dist, where), function, round(score, 2), {name: one.what for name, one in reasons.items()})
