"""Read a YAML file into plain Python data and remember where every key and value stood (:class:`Doc`).

Refused, as ContentErrors of one line: tags, second documents, duplicate keys, keys that are no text, what is no
UTF-8, and what is nested, long or expanded by aliases beyond the limits below. Scalars follow YAML 1.2: ``no``,
``on`` and ``1:30`` are text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from specdebug.base.errors import ContentError, Where, raise_all
from specdebug.base.errors import one_line as one_line  # for readers of YAML, who say what they found
from specdebug.base.files import open_file

if TYPE_CHECKING:
    from specdebug.base.schema import Item

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_NODES = 100_000
_TOO_DEEP = f"is nested more than {MAX_DEPTH} deep"

KeyPath: TypeAlias = tuple[str | int, ...]

# libyaml's parser when PyYAML was built with it: the same events some twenty times sooner.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NOT_TEXT = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INT = re.compile(r"[-+]?[0-9]+\Z")
_BASED_INT = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_SPECIAL_FLOAT = re.compile(r"[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z")
_WORDS: dict[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_MAX_DIGITS = 40


@dataclass(slots=True)
class _Node:
    """One value and its place (from 1): a scalar, a list of nodes, or ``{key: (line, column, node)}``."""

    line: int
    column: int
    value: Any
    is_block: bool = False
    size: int = 1  # values beneath, this one included, every alias counted in full


@dataclass(frozen=True)
class Doc:
    """A loaded file: its plain ``data`` and the place of everything in it."""

    path: str
    data: Any
    _tree: _Node

    @cached_property
    def root(self) -> Item:
        """The whole document as a cursor for validation by type."""
        from specdebug.base.schema import Item

        return Item(self, (), self.data)

    def where(self, *path: str | int) -> Where:
        """Place of the value at ``path``, or of its nearest existing ancestor."""
        node = self._nearest(path)[0]
        return Where(self.path, node.line, node.column)

    def where_key(self, *path: str | int) -> Where:
        """Place of the key that ends ``path``; for a list item or a missing key the same as ``where``."""
        _, parent, rest = self._nearest(path)
        if path and not rest and parent is not None and isinstance(parent.value, dict):
            line, column, _ = parent.value[path[-1]]
            return Where(self.path, line, column)
        return self.where(*path)

    def where_text(self, *path: str | int, line: int) -> Where:
        """Place of line ``line`` (from 1) of the text at ``path``; only a ``|`` block has lines of its own.

        The column is left unknown, because a block's indentation is no longer part of its text.
        """
        node = self._nearest(path)[0]
        return Where(self.path, node.line + line) if node.is_block else self.where(*path)

    def _nearest(self, path: KeyPath) -> tuple[_Node, _Node | None, KeyPath]:
        node, parent = self._tree, None
        for depth, step in enumerate(path):
            below: _Node | None = None
            if isinstance(node.value, dict) and step in node.value:
                below = node.value[step][2]
            elif isinstance(node.value, list) and isinstance(step, int) and 0 <= step < len(node.value):
                below = node.value[step]
            if below is None:
                return node, parent, path[depth:]
            node, parent = below, node
        return node, parent, ()


def load_yaml(path: str | Path) -> Doc:
    """Read one YAML document from a file.

    Raises ContentError: the file is missing, unreadable, too large, not UTF-8, not YAML, empty, or has what is refused.
    """
    where = Where(str(path))
    try:
        file = Path(path)
        if file.is_dir():
            raise ContentError("is a folder, not a YAML file", where)
        if not file.exists():
            raise ContentError("no such file", where)
        if not file.is_file():
            raise ContentError("is not a regular file", where)
        with open_file(file) as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ContentError(f"cannot be read: {one_line(reason)}", where) from None
    if len(raw) > MAX_BYTES:
        raise ContentError(f"is larger than {MAX_BYTES >> 20} MiB; no content file needs that", where)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = _line_column(raw[: error.start].decode("utf-8", errors="replace"))
        raise ContentError(f"byte 0x{raw[error.start]:02x} is not UTF-8 text", Where(str(path), *place)) from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, path: str = "<text>") -> Doc:
    """Parse one YAML document from text; ``path`` names it in errors. Raises like ``load_yaml``."""
    if odd := _NOT_TEXT.search(text):
        message = f"character U+{ord(odd.group()):04X} is not allowed in a text file"
        raise ContentError(message, Where(path, *_line_column(text[: odd.start()])))
    builder = _Builder(path)
    tree = builder.build(text)
    doc = Doc(path, _plain(tree), tree)
    raise_all(builder.duplicates, doc)
    return doc


def parse_json(raw: bytes, path: str, line: int = 0) -> Doc:
    """Parse JSON that a program wrote, a file or, with its number, a line of one: all of it has that place. Raises
    ContentError."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        at = line or (error.lineno if isinstance(error, json.JSONDecodeError) else 0)
        raise ContentError(f"it is not JSON: {one_line(str(error), 80)}", Where(path, at)) from None
    return Doc(path, data, _Node(line, 0, None))


def plain_doc(data: Any, path: str) -> Doc:
    """Data that no text is known of, as a document: all of it has one place, ``path``."""
    return Doc(path, data, _Node(0, 0, None))


def as_json(data: Any) -> str:
    """One line of JSON that is YAML as well. Some non-ASCII characters YAML takes for line breaks or refuses, so they
    are escaped; not those beyond U+FFFF, which JSON escapes as two, and YAML refuses that."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return re.sub(r"[^\x20-\x7e\U00010000-\U0010ffff]", lambda odd: f"\\u{ord(odd[0]):04x}", text)


def _line_column(before: str) -> tuple[int, int]:
    """Place (from 1) of the character that follows ``before``."""
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


@dataclass(slots=True)
class _Open:
    node: _Node
    anchor: str | None
    key: tuple[str, int, int] | None = None


class _Builder:
    """Turns the parser's events into a tree of ``_Node``, refusing what the module's docstring says."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.stack: list[_Open] = []
        self.anchors: dict[str, _Node | None] = {}  # None while the anchored value is still open
        self.root: _Node | None = None
        self.duplicates: list[ContentError] = []

    def build(self, text: str) -> _Node:
        try:
            for event in yaml.parse(text, _Loader):
                self._take(event)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = Where(self.path, mark.line + 1, mark.column + 1) if mark else Where(self.path)
            if "nesting depth" in (error.problem or ""):  # PyYAML 6.0.4's own limit, for which it looks ahead of us
                raise ContentError(_TOO_DEEP, where) from None
            detail = " ".join(part for part in (error.problem, error.context) if part)
            raise ContentError(f"not valid YAML: {one_line(detail)}", where) from None
        except yaml.YAMLError as error:
            raise ContentError(f"not valid YAML: {one_line(str(error))}", Where(self.path)) from None
        if self.root is None:
            raise ContentError("is empty", Where(self.path, 1, 1))
        return self.root

    def _fail(self, message: str, event: Any) -> ContentError:
        return ContentError(message, Where(self.path, event.start_mark.line + 1, event.start_mark.column + 1))

    def _take(self, event: Any) -> None:
        if isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            raise self._fail("holds a second document; one file is one document", event)
        if getattr(event, "tag", None) is not None:
            raise self._fail(f"tags are not allowed: {one_line(event.tag)}", event)
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        if isinstance(event, yaml.AliasEvent):
            self._attach(self._resolve_alias(event), event)
        elif isinstance(event, yaml.ScalarEvent):
            value = event.value if event.style else self._resolve(event)
            node = _Node(line, column, value, event.style == "|")
            if event.anchor:
                self.anchors[event.anchor] = node
            self._attach(node, event)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(self.stack) >= MAX_DEPTH:
                raise self._fail(_TOO_DEEP, event)
            if event.anchor:
                self.anchors[event.anchor] = None
            if self.stack and isinstance(self.stack[-1].node.value, dict) and self.stack[-1].key is None:
                raise self._fail("a list or mapping cannot be a key", event)
            node = _Node(line, column, {} if isinstance(event, yaml.MappingStartEvent) else [])
            self.stack.append(_Open(node, event.anchor))
        elif isinstance(event, yaml.CollectionEndEvent):
            done = self.stack.pop()
            if done.anchor:
                self.anchors[done.anchor] = done.node
            self._attach(done.node, event)

    def _resolve_alias(self, event: Any) -> _Node:
        name = event.anchor
        if name not in self.anchors:
            raise self._fail(f"alias *{one_line(name)} has no anchor &{one_line(name)} before it", event)
        node = self.anchors[name]
        if node is None:
            raise self._fail(f"alias *{one_line(name)} would contain itself", event)
        return node

    def _resolve(self, event: Any) -> Any:
        """Value of a plain (unquoted) scalar under the YAML 1.2 core schema."""
        text: str = event.value
        if text in _WORDS:
            return _WORDS[text]
        decimal = _INT.match(text)
        if decimal or _BASED_INT.match(text):
            if len(text) > _MAX_DIGITS:
                raise self._fail(f"a number of {len(text)} digits is too long; quote it if it is text", event)
            return int(text, 10 if decimal else 0)
        if _FLOAT.match(text):
            return float(text)
        if _SPECIAL_FLOAT.match(text):
            return float(text.replace(".", ""))
        return text

    def _attach(self, node: _Node, event: Any) -> None:
        """Put a finished value into the root, the open list, or the open mapping."""
        if not self.stack:
            self.root = node
            return
        holder = self.stack[-1]
        if isinstance(holder.node.value, list):
            holder.node.value.append(node)
        elif holder.key is None:
            holder.key = (self._key(node, event), event.start_mark.line + 1, event.start_mark.column + 1)
            return
        else:
            name, line, column = holder.key
            holder.node.value[name] = (line, column, node)
            holder.key = None
        holder.node.size += node.size
        if holder.node.size > MAX_NODES:
            raise self._fail(f"its aliases expand to more than {MAX_NODES} values", event)

    def _key(self, node: _Node, event: Any) -> str:
        if isinstance(node.value, list | dict):
            raise self._fail("a list or mapping cannot be a key", event)
        if not isinstance(node.value, str):
            shown = "null" if node.value is None else one_line(str(node.value))
            raise self._fail(f"a key must be text: quote it, as in '{shown}':", event)
        seen = self.stack[-1].node.value
        if node.value in seen:
            first = seen[node.value][0]
            self.duplicates.append(self._fail(f"duplicate key '{one_line(node.value)}', first on line {first}", event))
        return node.value


def _plain(tree: _Node) -> Any:
    """The tree as plain Python data; every alias becomes a copy of its own, so nothing is shared."""
    holder: list[Any] = [None]
    work: list[tuple[Any, Any, _Node]] = [(holder, 0, tree)]
    while work:
        into, at, node = work.pop()
        if isinstance(node.value, list):
            into[at] = [None] * len(node.value)
            work.extend((into[at], index, item) for index, item in enumerate(node.value))
        elif isinstance(node.value, dict):
            into[at] = dict.fromkeys(node.value)
            work.extend((into[at], key, item) for key, (_, _, item) in node.value.items())
        else:
            into[at] = node.value
    return holder[0]
