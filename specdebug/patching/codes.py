"""The functions inside a compiled module, and which of them is which after an edit.

A module's code object holds those of its functions and classes as constants, and theirs hold their own. Code that runs
when the module is imported (its own, class bodies, their comprehensions) is told apart from code that runs when
calls go through: only the latter can be exchanged under a running program.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import NamedTuple

_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


class FunctionKey(NamedTuple):
    """Identity of a function in a module's original text; ``line`` is its first, decorators included."""

    qualname: str
    line: int
    twin: int = 0  # counts functions of the same name on the same line, as lambdas may be


def is_function(code: CodeType) -> bool:
    """Return True if the code is called, rather than run once as part of an import."""
    if code.co_name in _COMPREHENSIONS or code.co_name.startswith("<generic parameters of "):
        return False
    return bool(code.co_flags & inspect.CO_OPTIMIZED)


@dataclass
class CodeTree:
    """Index of a module's code object. ``outermost``: keys of the functions that the import itself creates.

    ``import_time``: the module's own code, its class bodies and their comprehensions, in a fixed order.
    """

    module: CodeType
    functions: dict[FunctionKey, CodeType] = field(default_factory=dict)
    outermost: list[FunctionKey] = field(default_factory=list)
    import_time: list[CodeType] = field(default_factory=list)

    def __post_init__(self) -> None:
        for code, at_import in _walk(self.module):
            if is_function(code):
                key = FunctionKey(code.co_qualname, code.co_firstlineno)
                while key in self.functions:
                    key = key._replace(twin=key.twin + 1)
                self.functions[key] = code
                if at_import:
                    self.outermost.append(key)
            elif at_import:
                self.import_time.append(code)

    def same_import(self, other: CodeTree) -> bool:
        """Return True if importing either module runs the same code, function bodies aside."""
        return list(map(_shell, self.import_time)) == list(map(_shell, other.import_time))

    def aligned(self, original: CodeTree) -> dict[FunctionKey, CodeType]:
        """This tree's functions under the keys of the original one; those without a counterpart are left out.

        Functions of one qualified name are paired in order when there are as many of them on both sides, else
        by their line, which only an edit of that very line can change.
        """
        mine, theirs = _by_name(self), _by_name(original)
        pairs: dict[FunctionKey, CodeType] = {}
        for name, keys in theirs.items():
            candidates = mine.get(name, [])
            if len(candidates) == len(keys):
                pairs.update((key, self.functions[other]) for key, other in zip(keys, candidates, strict=True))
            else:
                pairs.update((key, self.functions[key]) for key in keys if key in self.functions)
        return pairs


def _walk(module: CodeType) -> Iterator[tuple[CodeType, bool]]:
    """Every code object, outer before inner, in order; and True if the import itself makes or runs it."""
    work = [(module, True)]
    while work:
        code, at_import = work.pop()
        yield code, at_import
        inner_at_import = at_import and not is_function(code)
        inner = [const for const in code.co_consts if isinstance(const, CodeType)]
        work.extend((const, inner_at_import) for const in reversed(inner))


def _by_name(tree: CodeTree) -> dict[str, list[FunctionKey]]:
    names: dict[str, list[FunctionKey]] = {}
    for key in tree.functions:
        names.setdefault(key.qualname, []).append(key)
    return names


def _shell(code: CodeType) -> CodeType:
    """The code with the names of the functions in it instead of the functions, and without their places."""
    consts = tuple(const.co_name if isinstance(const, CodeType) else const for const in code.co_consts)
    return code.replace(co_consts=consts, co_linetable=b"")
