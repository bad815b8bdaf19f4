"""Functions of different names are compared by what they share: words, names written and called, operands, forms."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from specdebug.patching.source import FunctionNode, ModuleSource

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_PATH = re.compile(r"[a-z]\w*(\.\w+)+\Z")
_SIMPLE = (ast.Assign, ast.AugAssign, ast.Return, ast.Expr)
LEAST_FORM = 12
"""Words that a statement's form must have to say anything."""


@cache
def words(name: str) -> frozenset[str]:
    """The words of a name: of ``kv_indices`` and ``KVIndices``, ``kv`` and ``indices``."""
    return frozenset(word.lower() for word in _WORDS.findall(name) if len(word) > 1)


@dataclass(frozen=True)
class Operands:
    """The names that are multiplied, added or passed together, and the line."""

    names: frozenset[str]
    line: int


@dataclass
class Function:
    """The parts of a function or method. ``name``: qualified, in its ``module``.

    ``names``: how often each stands there. ``written``: those that it gives something to or returns, and its own; in
    both are dotted texts, which name buffers. ``calls``, ``forms``: the first line of each call, by the last name of
    what is called, and of each simple statement's form. ``made_by``: names that a call's value is given to, by
    assignment or keyword, each with what is called.
    """

    module: str
    path: str
    name: str
    line: int
    names: Counter[str] = field(default_factory=Counter)
    written: set[str] = field(default_factory=set)
    calls: dict[str, int] = field(default_factory=dict)
    operands: list[Operands] = field(default_factory=list)
    made_by: list[tuple[str, str]] = field(default_factory=list)
    forms: dict[str, int] = field(default_factory=dict)

    @property
    def bare_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    @property
    def key(self) -> tuple[str, str]:
        return self.module, self.name

    @property
    def words(self) -> frozenset[str]:
        return frozenset().union(*map(words, self.names))

    def read(self, node: ast.AST) -> None:
        """Add what one node says."""
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                self.names[name] += 1
            case ast.AsyncFunctionDef(name=name):
                self.names[name] += 1
            case ast.keyword(arg=str(name), value=value):
                self.names[name] += 1
                self._made([name], value)
            case ast.Constant(value=str(text)) if _PATH.match(text):
                self.names[text] += 1
                self.written.add(text)
            case ast.BinOp(op=ast.Mult() | ast.Add() as how):
                self._together(node, _chain(node, type(how)))
            case ast.Call(func=func, args=args, keywords=keywords):
                self._called(node, func)
                self._together(node, [*args, *(each.value for each in keywords)])
            case ast.Assign(targets=targets, value=value):
                self._made(self._given(targets), value)
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                self._given([target])
            case ast.Return(value=ast.expr() as value):
                self._given([value])

    def _called(self, node: ast.Call, func: ast.expr) -> None:
        if name := last_name(func):
            self.calls.setdefault(name, node.lineno)
        if isinstance(func, ast.Attribute) and func.attr.endswith("_"):  # torch's methods in place
            self._given([func.value])

    def _given(self, targets: Sequence[ast.expr]) -> list[str]:
        flat = [part for each in targets for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
        found = list(filter(None, map(last_name, flat)))
        self.written.update(found)
        return found

    def _made(self, names: Sequence[str], value: ast.expr) -> None:
        if isinstance(value, ast.Call):
            self.made_by += [(name, last_name(value.func)) for name in names]

    def _together(self, node: ast.expr, parts: Sequence[ast.expr]) -> None:
        names = frozenset(filter(None, map(last_name, parts)))
        if len(names) > 1:
            self.operands.append(Operands(names, node.lineno))


def last_name(node: ast.expr) -> str:
    """The last name of an expression: ``topk`` of ``self.topk``; of a call, of what is called."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
            return last_name(inner)
    return ""


def _op(node: ast.expr) -> type[ast.operator] | None:
    return type(node.op) if isinstance(node, ast.BinOp) else None


def _chain(node: ast.expr, how: type[ast.operator]) -> list[ast.expr]:
    """The operands of ``a * b * c``."""
    if isinstance(node, ast.BinOp) and _op(node) is how:
        return [*_chain(node.left, how), *_chain(node.right, how)]
    return [node]


def form(node: ast.stmt) -> str:
    """A statement with each name replaced by its number, by first use; empty if it is too small to say anything."""
    numbers, parts = dict[str, int](), list[str]()

    def told(node: ast.AST) -> None:
        match node:
            case ast.Name(id=name):
                parts.append(f"_{numbers.setdefault(name, len(numbers))}")
            case ast.Constant(value=value):
                parts.append("text" if isinstance(value, str) else repr(value))
            case ast.Load() | ast.Store() | ast.Del():
                return
            case _:
                parts.append(type(node).__name__)
                if isinstance(node, ast.Attribute):
                    parts.append(f"_{numbers.setdefault(node.attr, len(numbers))}")
                for inner in ast.iter_child_nodes(node):
                    told(inner)
                parts.append(")")

    told(node)
    return " ".join(parts) if len(parts) >= LEAST_FORM else ""


def functions(source: ModuleSource, with_forms: bool = True) -> Iterator[Function]:
    """The functions and methods of a module; one inside another belongs to it."""
    for name, node in outer_functions(source.tree):
        found = Function(source.name, source.path, name, node.lineno)
        found.names.update(name.split(".")[:-1])
        found.written.update(name.split("."))
        inner = set[int]()  # products in products, and sums in sums
        for each in ast.walk(node):
            if isinstance(each, ast.BinOp):
                inner |= {id(side) for side in (each.left, each.right) if _op(side) is type(each.op)}
            if id(each) not in inner:
                found.read(each)
            if with_forms and isinstance(each, _SIMPLE) and (shape := form(each)):
                found.forms.setdefault(shape, each.lineno)
        yield found


def outer_functions(tree: ast.Module) -> Iterator[tuple[str, FunctionNode]]:
    """The functions that lie in no other, by qualified name."""
    work: list[tuple[str, ast.AST]] = [("", tree)]
    while work:
        prefix, node = work.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name, node
        else:
            inside = f"{prefix}{node.name}." if isinstance(node, ast.ClassDef) else prefix
            work.extend((inside, child) for child in reversed(list(ast.iter_child_nodes(node))))
