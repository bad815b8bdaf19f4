"""The registry of reverts that an engine ships itself, read from its source.

SGLang's is a module that knows ``SGLANG_DEBUG_REVERT_PR``, with a dictionary from pull requests to YAML. By its rules a
target is a dotted name as Python resolves it, indentation does not count, and an edit sees what those before it left.
"""

from __future__ import annotations

import ast
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specdebug.base.errors import ContentError, Where
from specdebug.base.schema import Item
from specdebug.base.yamlio import one_line, parse_yaml
from specdebug.patching.drift.dist import Dist
from specdebug.patching.drift.fit import EditProblem, Fit, nearest
from specdebug.patching.source import ModuleSource, PatchError
from specdebug.patching.toggles import REVERT_VARIABLE

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
