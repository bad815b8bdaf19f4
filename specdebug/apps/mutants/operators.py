"""The operators: small faults that people make, each made at every place of one function where it could be. Nothing is
changed that only checks, explains or watches: raises, assertions, messages, probes and observers."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from specdebug.patching.source import FunctionNode

COMPARED = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
ARITHMETIC: Mapping[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Add(),
    ast.FloorDiv: ast.Mult(),
    ast.Div: ast.Mult(),
    ast.Mod: ast.FloorDiv(),
    ast.LShift: ast.RShift(),
    ast.RShift: ast.LShift(),
    ast.BitAnd: ast.BitOr(),
    ast.BitOr: ast.BitAnd(),
}
SYNCS = frozenset({"wait", "synchronize", "wait_stream", "wait_event", "record", "record_event", "record_stream"})
COPIES = frozenset({"clone", "copy"})
WATCHING = ("maybe_detect", "probe", "observer", "progress", "logg", "warn", "print")
"""Calls with such a word in what is called tell of the work, and do none of it."""
NOT_SWAPPED = frozenset({"isinstance", "issubclass", "getattr", "hasattr", "setattr", "cast", "min", "max"})
"""Functions whose arguments are of two kinds by what they do, or may as well come in any order."""
_REDUCE = ("sum", "cumsum", "argmax", "argmin", "any", "all", "mean", "amax", "softmax", "log_softmax", "topk", "sort")
_SHAPE = ("view", "reshape", "expand", "permute", "transpose", "flatten", "squeeze", "unsqueeze", "size", "dim")
_PICK = ("select", "index_select", "gather", "stack", "cat")
BY_DIMENSION = frozenset((*_REDUCE, *_SHAPE, *_PICK))
"""Functions whose plain numbers name a dimension: another one ends the run at once, which teaches nothing."""
TYPES = frozenset({"list", "dict", "tuple", "set", "frozenset", "deque", "type"})


@dataclass(frozen=True)
class Change:
    """``text`` is to stand for ``node``; ``statement``: the one around it, without the blocks that it holds."""

    operator: str
    node: ast.stmt | ast.expr
    text: str
    statement: ast.stmt


def changes(function: FunctionNode) -> Iterator[Change]:
    """Every change of a function's own code, in source order; functions in it have their own."""
    arguments = function.args
    known = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    kinds = {each.arg: ast.unparse(each.annotation) for each in arguments.args if each.annotation is not None}
    yield from _Body(function.name, kinds).block(function.body, known)


@dataclass(frozen=True)
class _Body:
    """One function's. ``kinds``: annotations of its parameters."""

    name: str
    kinds: Mapping[str, str]

    def block(self, body: list[ast.stmt], known: set[str]) -> Iterator[Change]:
        """Changes of a block; ``known``: names that have a value by then."""
        known = set(known)
        for statement in body:
            if not _only_watches(statement):
                yield from self._dropped(statement, known)
                yield from _negated(statement)
                for header in _headers(statement):
                    for node in _inside(header):
                        for operator, text in self._swaps(node):
                            yield Change(operator, node, text, statement)
                for inner in _blocks(statement):
                    yield from self.block(inner, known)
            known |= {
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }

    def _dropped(self, statement: ast.stmt, known: set[str]) -> Iterator[Change]:
        """The statement left out, if the code after it still runs."""
        operator = None
        match statement:
            case ast.Expr(value=ast.Call(func=called)):
                name = called.attr if isinstance(called, ast.Attribute) else ""
                operator = "missing_sync" if name in SYNCS else "dropped_statement"
            case ast.AugAssign() | ast.Delete():
                operator = "dropped_statement"
            case ast.Assign(targets=targets):
                stored = [node for target in targets for node in _elements(target)]
                if all(isinstance(node, ast.Name) and node.id in known for node in stored):
                    operator = "stale_read"
                else:
                    # an attribute has a value already, as far as one can tell, but where an object is made or emptied
                    making = self.name in ("__init__", "__post_init__", "reset", "clear")
                    kept = ast.Subscript if making else ast.Subscript | ast.Attribute
                    operator = "dropped_statement" if all(isinstance(node, kept) for node in stored) else None
        if operator is not None:
            yield Change(operator, statement, "pass", statement)

    def _swaps(self, node: ast.expr) -> Iterator[tuple[str, str]]:
        """Operators that fit an expression, and what each makes of it."""
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
                yield "comparison", f"{_part(left)} {COMPARED[type(op)]} {_part(right)}"
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC and not _is_text(left, right):
                text = ast.unparse(ast.BinOp(left, ARITHMETIC[type(op)], right))
                # Binds less than what it replaces: a parenthesis keeps the rest of the expression as it was.
                yield "arithmetic", f"({text})" if isinstance(op, ast.Mult | ast.BitAnd) else text
            case ast.BoolOp(op=op, values=values):
                other: ast.boolop = ast.Or() if isinstance(op, ast.And) else ast.And()
                yield "negated_condition", f"({ast.unparse(ast.BoolOp(other, values))})"
            case ast.IfExp(test=test, body=body, orelse=orelse):
                yield "negated_condition", ast.unparse(ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse))
            case ast.Constant(value=value) if type(value) is int:
                yield "off_by_one", str(value + 1)
            case ast.Subscript(value=value, slice=index) if not (isinstance(value, ast.Name) and value.id in TYPES):
                yield from _shifted(node, index)
            case ast.Call():
                yield from self._call(node)

    def _call(self, node: ast.Call) -> Iterator[tuple[str, str]]:
        name = _called(node)
        if isinstance(node.func, ast.Attribute) and name in COPIES and not node.args:
            yield "missing_sync", ast.unparse(node.func.value)
        if name in NOT_SWAPPED or name.endswith("Error"):
            return
        for at, (one, other) in enumerate(pairwise(node.args)):
            if self._alike(one, other):
                args = [*node.args[:at], other, one, *node.args[at + 2 :]]
                yield "swapped_arguments", ast.unparse(ast.Call(node.func, args, node.keywords))

    def _alike(self, one: ast.expr, other: ast.expr) -> bool:
        """True if two arguments could be taken for each other: written alike, and not known to be of two types."""
        if type(one) is not type(other) or not isinstance(one, ast.Name | ast.Attribute | ast.Subscript):
            return False
        kinds = {self.kinds[each.id] for each in (one, other) if isinstance(each, ast.Name) and each.id in self.kinds}
        return len(kinds) < 2 and ast.unparse(one) != ast.unparse(other)


def _negated(statement: ast.stmt) -> Iterator[Change]:
    if isinstance(statement, ast.If | ast.While):
        test = statement.test
        opposite = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq | ast.NotEq | ast.Is | ast.IsNot)
        if not opposite:
            yield Change("negated_condition", test, f"not ({ast.unparse(test)})", statement)


def _shifted(node: ast.Subscript, index: ast.expr) -> Iterator[tuple[str, str]]:
    """The subscript one further on. Plain numbers are constants like others."""
    parts = list(index.elts) if isinstance(index, ast.Tuple) else [index]
    for at, part in enumerate(parts):
        more: list[tuple[str, ast.expr]] = []
        if isinstance(part, ast.Slice):
            if part.lower is not None and not _is_number(part.lower):
                more.append(("off_by_one", ast.Slice(_plus_one(part.lower), part.upper, part.step)))
            if part.upper is not None and not _is_number(part.upper):
                more.append(("off_by_one", ast.Slice(part.lower, _plus_one(part.upper), part.step)))
        elif isinstance(part, ast.Name | ast.Attribute | ast.BinOp | ast.Call):
            more.append(("wrong_row", _plus_one(part)))
        for operator, new in more:
            changed = [*parts[:at], new, *parts[at + 1 :]]
            inside: ast.expr = ast.Tuple(changed, ast.Load()) if isinstance(index, ast.Tuple) else new
            yield operator, ast.unparse(ast.Subscript(node.value, inside, ast.Load()))


def _plus_one(node: ast.expr) -> ast.expr:
    return ast.BinOp(node, ast.Add(), ast.Constant(1))


def _is_number(node: ast.expr) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant)


def _part(node: ast.expr) -> str:
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, ast.Compare | ast.BoolOp | ast.IfExp | ast.Lambda | ast.NamedExpr) else text


def _is_text(*nodes: ast.expr) -> bool:
    return any(
        isinstance(each, ast.JoinedStr) or (isinstance(each, ast.Constant) and isinstance(each.value, str | bytes))
        for each in nodes
    )


def _elements(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _elements(each)
    else:
        yield target


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _only_watches(statement: ast.stmt) -> bool:
    """True of what is not the engine's work: see the module."""
    match statement:
        case ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom() | ast.Global() | ast.Nonlocal() | ast.Pass():
            return True
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call() as call):
            return _watches(call)
        case ast.If(body=body, orelse=[]):
            return isinstance(body[-1], ast.Raise) or all(map(_only_watches, body))
        case ast.For(iter=ast.Attribute() | ast.Name() as over):
            return any(word in ast.unparse(over) for word in WATCHING)
    return False


def _watches(call: ast.Call) -> bool:
    text = ast.unparse(call.func)
    return any(word in text for word in WATCHING)


def _headers(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement that are in no block of its own; the places that it stores to are among them."""
    for name, value in ast.iter_fields(statement):
        if name in ("annotation", "target") and isinstance(statement, ast.AnnAssign | ast.For):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.expr):
                yield each
            elif isinstance(each, ast.withitem):
                yield each.context_expr


def _inside(node: ast.expr) -> Iterator[ast.expr]:
    """An expression and those in it that do the engine's work."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and _watches(node)):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword) and child.arg not in ("dim", "dtype", "device"):
            yield from _inside(child.value)
        elif isinstance(child, ast.comprehension):
            for part in (child.iter, *child.ifs):
                yield from _inside(part)
        elif isinstance(child, ast.expr):
            names_dimension = isinstance(node, ast.Call) and _is_number(child) and _called(node) in BY_DIMENSION
            yield from () if names_dimension else _inside(child)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if inner := getattr(statement, name, None):
            yield inner
    for handler in getattr(statement, "handlers", ()):
        yield handler.body
    for case in getattr(statement, "cases", ()):
        yield case.body
