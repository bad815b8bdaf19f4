"""Fit the edits of a fix to a release whose code has moved since, by its words and not by its lines.

The words of an edit's match, without comments and breaks of lines, are looked for where the fix has them; else in the
rest of their module, and in functions of the same name in any other. Names that were renamed count as the same where
each stands for one other throughout, and most of the names there are the same. The replacement is renamed with them.
"""

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specdebug.apps.mining.fix import Fix
from specdebug.base.errors import SpecDebugError
from specdebug.patching.drift.check import fit, namesakes
from specdebug.patching.drift.dist import Dist
from specdebug.patching.match import dedent, place
from specdebug.patching.source import ModuleSource, Patch, PatchError

_WORD = re.compile(
    r"#[^\n]*"
    r"|[rbfuRBFU]{0,2}(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')"
    r"|\w+|[^\w\s]",
    re.DOTALL,
)
_CLOSING = frozenset(")]}")
MOST = 0.6
"""Where names were renamed, this share of the names of an edit is the same."""
FEW = 8  # words that a match must have so that names in it may have been renamed


class Unfit(SpecDebugError):
    """A fix does not fit a release; the message says why."""


@dataclass(frozen=True)
class Word:
    """A word of code, and its line, from 1."""

    text: str
    line: int


@dataclass(frozen=True)
class Fitted:
    """The edits by target, as a release takes them. ``moved``: what is not as the fix has it, in words."""

    edits: Mapping[str, Sequence[tuple[str, str]]]
    moved: tuple[str, ...]


def words_of(text: str) -> list[Word]:
    """The words of Python code, without comments, and without a comma that a bracket follows."""
    found, at, line = list[Word](), 0, 1
    for each in _WORD.finditer(text):
        line += text.count("\n", at, each.start())
        at = each.start()
        word = each[0]
        if word.startswith("#") or word == "\\":
            continue
        if word in _CLOSING and found and found[-1].text == ",":
            found.pop()
        quoted = len(word) > 1 and word[-1] == "'" and not word.endswith("'''") and '"' not in word and "\\" not in word
        found.append(Word(word.replace("'", '"') if quoted else word, line))
    return found


def renamed(wanted: Sequence[Word], found: Sequence[Word]) -> dict[str, str] | None:
    """By name the one that stands in its place in words as many; None if they are not the same code."""
    names, same, all_names = dict[str, str](), 0, 0
    for one, other in zip(wanted, found, strict=True):
        both = _is_name(one.text) and _is_name(other.text)
        if one.text != other.text and not both:
            return None
        if both and names.setdefault(one.text, other.text) != other.text:
            return None
        same, all_names = same + (both and one.text == other.text), all_names + both
    others = {name: new for name, new in names.items() if name != new}
    if len(set(names.values())) < len(names):
        return None
    return others if not others or (len(wanted) >= FEW and same >= MOST * all_names) else None


def _is_name(word: str) -> bool:
    return word.isidentifier() and not keyword.iskeyword(word)


def fitted(dist: Dist, fix: Fix) -> Fitted:
    """The edits of a fix as a release takes them. Raises Unfit."""
    edits, moved = dict[str, list[tuple[str, str]]](), list[str]()
    for each in fix.made:
        for name, pairs in each.edits.items():
            target = f"{each.source.name}:{name}" if name else each.source.name
            for number, pair in enumerate(pairs, start=1):
                where, fits, change = _fit(dist, target, pair, f"edit {number} of {target}")
                edits.setdefault(where, []).append(fits)
                moved += [change] if change else []
    patches = [Patch.of(f"fix {fix.number}", target, *pairs) for target, pairs in edits.items()]
    if problems := fit(dist, patches).problems:
        raise Unfit(f"its edits do not fit together in {dist}: {problems[0].what}")
    return Fitted(edits, tuple(moved))


def _fit(dist: Dist, target: str, pair: tuple[str, str], who: str) -> tuple[str, tuple[str, str], str]:
    """The target and the edit as the release has them, and what is another than in the fix."""
    if _fits(dist, target, pair):
        return target, pair, ""
    if pair[1].strip() and pair[0].strip() not in pair[1] and _fits(dist, target, (pair[1], pair[0])):
        raise Unfit(f"{dist} lacks the fix: {target} is as it was before")
    module, _, name = target.partition(":")
    wanted = words_of(pair[0])
    places = [
        (source, name, *run)
        for source, name in _candidates(dist, module, name)
        for run in _runs(source, source.spans[name], wanted)
    ]
    exact = [each for each in places if not each[4]]
    near = [each for each in exact or places if each[0].name == module] or exact or places
    inner = _innermost(near)
    if len(inner) != 1:
        what = f"matches {len(inner)} places" if inner else "has no lines like it"
        raise Unfit(f"{who} {what} in {dist}")
    source, found, start, stop, names = inner[0]
    lines = "\n".join(dedent(source.lines[start - 1 : stop])[0])
    replacement = re.sub(r"\b[^\W\d]\w*\b", lambda word: names.get(word[0], word[0]), pair[1])
    there = f"{source.name}:{found}" if found else source.name
    changes = [f"{target} is {there}"] if there != target else []
    changes += [f"{old} is named {new}" for old, new in names.items()] or ([] if changes else ["its lines break anew"])
    return there, (lines, replacement), f"{who}: {', '.join(changes)} in {dist}"


def _fits(dist: Dist, target: str, pair: tuple[str, str]) -> bool:
    patch = Patch.of("fix", target, pair)
    try:
        place(dist.source(patch.module), patch, patch.edits[0], 0)
    except PatchError:
        return False
    return True


def _candidates(dist: Dist, module: str, name: str) -> Iterator[tuple[ModuleSource, str]]:
    """The function, then what is named like it in its module, the module, and its namesakes elsewhere."""
    last, seen = name.rpartition(".")[2], set[tuple[str, str]]()
    source = dist.source(module) if dist.has_module(module) else None
    own = [] if source is None else [each for each in source.spans if each == name or each.endswith(f".{last}")]
    found = [(source, each) for each in [*own, *([] if own else [""])]] if source is not None else []
    for place_, each in [*found, *namesakes(dist, name)]:
        if place_ is not None and (place_.name, each) not in seen:
            seen.add((place_.name, each))
            yield place_, each


def _runs(
    source: ModuleSource, spans: Sequence[tuple[int, int]], wanted: Sequence[Word]
) -> Iterator[tuple[int, int, dict[str, str]]]:
    """First and last line of what says the same, in whole lines, and what is renamed there."""
    for first, last in spans:
        words = words_of("\n".join(source.lines[first - 1 : last]))
        for at in range(len(words) - len(wanted) + 1):
            run = words[at : at + len(wanted)]
            begins = at == 0 or words[at - 1].line < run[0].line
            ends = at + len(run) == len(words) or words[at + len(run)].line > run[-1].line
            if begins and ends and (names := renamed(wanted, run)) is not None:
                yield first - 1 + run[0].line, first - 1 + run[-1].line, names


def _innermost(
    places: Sequence[tuple[ModuleSource, str, int, int, dict[str, str]]],
) -> list[tuple[ModuleSource, str, int, int, dict[str, str]]]:
    """Each place once, by the longest name of what it is in."""
    by_place = {(each[0].name, each[2]): each for each in sorted(places, key=lambda each: len(each[1]))}
    return list(by_place.values())
