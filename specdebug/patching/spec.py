"""Patches: named edits of one function's source text. These are values; nothing here touches a module."""

from __future__ import annotations

import re
from dataclasses import dataclass

from specdebug.base.errors import ContentError, Where

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
_QUALNAME = re.compile(r"[^\W\d]\w*(\.(<locals>\.)?[^\W\d]\w*)*\Z")
_NOWHERE = Where("<patch>")


class PatchError(ContentError):
    """A patch does not fit: its module, function or text is missing, ambiguous, taken, or would not run.

    Raised before anything has been changed. ``where`` is the edit's place in the toggle file.
    """


@dataclass(frozen=True)
class Edit:
    """Replace the lines ``match`` by the lines ``replacement``, whatever their common indentation. None deletes them.

    ``id``: as in ``27338#1``; keys ``Applied.hits()``, which numbers on where two of a set are equal. ``match_at`` and
    ``replacement_at``: places of the two texts' first lines in the toggle file. A place without a column is a block's,
    so line ``n`` of the text is ``n - 1`` lines further down.
    """

    id: str
    match: str
    replacement: str
    match_at: Where = _NOWHERE
    replacement_at: Where = _NOWHERE

    def replacement_line(self, number: int) -> Where:
        """Place of line ``number`` (from 1) of the replacement in the toggle file."""
        first = self.replacement_at
        return first if first.column or not first.line else Where(first.path, first.line + number - 1)


@dataclass(frozen=True)
class Patch:
    """Edits of one target. ``owner``: who wants it, as errors name it ("toggle 27338"). ``where``: in the toggle file.

    ``qualname``: function, method, nested function or class of the module, ``<locals>`` optional; empty for all of it.
    """

    owner: str
    module: str
    qualname: str
    edits: tuple[Edit, ...]
    where: Where = _NOWHERE

    @property
    def target(self) -> str:
        """``module:qualname``, as written in a toggle."""
        return f"{self.module}:{self.qualname}" if self.qualname else self.module

    @classmethod
    def of(cls, owner: str, target: str, *edits: tuple[str, str]) -> Patch:
        """A patch from (match, replacement) pairs, without a toggle file. Raises as :func:`parse_target`."""
        module, qualname = parse_target(target)
        numbered = (Edit(f"{owner}#{n}", match, new) for n, (match, new) in enumerate(edits, start=1))
        return cls(owner, module, qualname, tuple(numbered))


def parse_target(text: str) -> tuple[str, str]:
    """``pkg.mod:Class.method`` in two halves, the second empty for a module's own level. Raises ValueError."""
    module, _, qualname = text.partition(":")
    if not _MODULE.match(module) or (qualname and not _QUALNAME.match(qualname)):
        raise ValueError("a target is written 'package.module:Class.function'")
    return module, qualname
