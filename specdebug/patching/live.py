"""Exchange the code of functions that already exist, wherever a program keeps them.

Function objects are found through the garbage collector, so every holder sees them change when their ``__code__`` is
set. Running frames and generators keep the code they started with.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from specdebug.patching.rewrite import CodeTree, FunctionKey, Rewritten, rewrite
from specdebug.patching.source import PatchError

_LruCache: type[Any] = type(functools.lru_cache(lambda: None))
_HOLDERS = (_LruCache, property, staticmethod, classmethod)
_census: list[Any] | None = None
_searched: list[Any] | None = None


@dataclass(frozen=True)
class Exchange:
    """The step from one state of a module to another: the new code of each function."""

    target: Rewritten
    swaps: list[tuple[FunctionType, CodeType]]


class LiveFunctions:
    """The live functions of one module, whose original text is ``base``."""

    def __init__(self, base: Rewritten) -> None:
        self.base = base
        self._base_codes = base.functions.functions
        self._keys: dict[CodeType, FunctionKey] = {}
        self._originals: WeakKeyDictionary[FunctionType, CodeType] = WeakKeyDictionary()
        self._canonical: dict[FunctionKey, CodeType] = {}
        self.learn(base)

    def learn(self, version: Rewritten) -> None:
        """Recognise functions that run the code of this version of the module."""
        for key, code in self._aligned(version).items():
            self._keys.setdefault(code, key)

    def plan(self, current: Rewritten, target: Rewritten, *, restoring: bool = False) -> Exchange:
        """Work out how to turn the functions of ``current`` into those of ``target``; changes nothing.

        ``restoring``: put back what can be put back, and leave a closure made while the patch was on that lacks a
        variable of the original. Otherwise any misfit raises PatchError: an edit touches code that ran at import, needs
        a variable that live closures do not hold, or reaches no live function; or the file is not what was imported.
        """
        before, after = self._aligned(current), self._aligned(target)
        changed = {key for key in self._base_codes if before.get(key) != after.get(key)}
        functions = [thing for thing in gc_objects() if type(thing) is FunctionType]
        mine = [function for function in functions if function.__code__.co_filename == self.base.source.path]
        live = [function for function in mine if function.__code__ in self._keys]
        for key, code in [(FunctionKey.of(each.__code__), each.__code__) for each in mine if not restoring]:
            if code not in self._keys and key in changed:
                message = f"{key.qualname} does not run what {self.base.source.path}:{key.line} says; was the file"
                raise self._blame(target, key, f"{message} or the function changed after the import?")
        target = self._keep_closures(live, target, restoring)
        if not current.functions.same_import(target.functions):
            raise self._import_time(target)
        if not restoring:
            self._refuse_without_effect(live, changed, target)
        after = self._aligned(target)
        codes = [(function, self._fitting(function, after, target, restoring)) for function in live]
        return Exchange(target, [(f, code) for f, code in codes if code is not None and code is not f.__code__])

    def commit(self, exchange: Exchange) -> list[tuple[FunctionType, CodeType]]:
        """Carry out a plan, wholly or not at all (PatchError); returns what ``undo`` needs to take it back."""
        self.learn(exchange.target)
        done: list[tuple[FunctionType, CodeType]] = []
        try:
            for function, code in exchange.swaps:
                old = function.__code__
                self._remember(function, old)
                self._keys.setdefault(code, self._keys[old])
                function.__code__ = code
                done.append((function, old))
        except (ValueError, TypeError) as error:
            undo(done)
            raise PatchError(f"{self.base.source.name}: {error}") from None
        _follow(done)
        return done

    def _aligned(self, version: Rewritten) -> dict[FunctionKey, CodeType]:
        return version.functions.aligned(self.base.functions)

    def _refuse_without_effect(
        self, live: Sequence[FunctionType], changed: set[FunctionKey], target: Rewritten
    ) -> None:
        reached = {self._keys[function.__code__] for function in live}
        for key in self.base.functions.outermost:
            if key in changed and key not in reached:
                message = f"no live function runs {key.qualname} as {self.base.source.path}:{key.line} has it"
                raise self._blame(target, key, f"{message}, so nothing would change")
        for function in live:
            key = self._keys[function.__code__]
            if key in changed and _is_scripted(function):
                message = f"{key.qualname} is compiled by torch.jit.script already, so nothing would change"
                raise self._blame(target, key, f"{message}; patch before the module is imported")

    def _keep_closures(self, live: Sequence[FunctionType], target: Rewritten, restoring: bool) -> Rewritten:
        """``target`` with every variable kept that the closures of live functions hold."""
        after = self._aligned(target)
        kept: dict[FunctionKey, Sequence[str]] = {}
        for function in live:
            key = self._keys[function.__code__]
            code, held = after.get(key), function.__code__.co_freevars
            if code is None or code.co_freevars == held or code == self._base_codes[key]:
                continue
            missing = sorted(set(code.co_freevars) - set(held))
            if not missing:
                kept[FunctionKey.of(code)] = held
            elif not restoring:
                message = f"{key.qualname} would need '{missing[0]}' of an enclosing scope"
                message += ", which a live closure lacks; patch before the module is imported"
                raise self._blame(target, key, message)
        return rewrite(target.source, target.placed, kept) if kept else target

    def _fitting(
        self, function: FunctionType, after: Mapping[FunctionKey, CodeType], target: Rewritten, restoring: bool
    ) -> CodeType | None:
        """The code of ``target`` in a form that fits the function's closure; None to leave it alone."""
        now = function.__code__
        key = self._keys[now]
        code = after.get(key)
        if code is None or code == now == self._base_codes[key]:
            return None
        if code == self._base_codes[key]:
            code = self._originals.get(function) or self._canonical.get(key, code)
        if code.co_freevars == now.co_freevars:
            return code
        held = {FunctionKey.of(code): now.co_freevars}
        padded = self._aligned(rewrite(target.source, target.placed, held)).get(key)
        if padded is not None and padded.co_freevars == now.co_freevars:
            return padded
        if restoring:
            return None
        raise self._blame(target, key, f"{key.qualname} would hold other variables of its enclosing scope")

    def _remember(self, function: FunctionType, code: CodeType) -> None:
        """Keep the very code object a function had before it was first patched, and those inside it."""
        if function in self._originals or code != self._base_codes[self._keys[code]]:
            return
        self._originals[function] = code
        for inner in CodeTree(code).functions.values():
            if inner in self._keys:
                self._canonical.setdefault(self._keys[inner], inner)

    def _blame(self, target: Rewritten, key: FunctionKey, message: str) -> PatchError:
        """The error of the first edit inside a function."""
        first, last = self.base.spans.get((key.qualname, key.line), (key.line, key.line))
        placed = next((one for one in target.placed if first <= one.start <= last), None)
        if placed is None:
            return PatchError(f"{target.source.name}: {message}")
        return PatchError(f"{placed.name}: {message}", placed.edit.match_at)

    def _import_time(self, target: Rewritten) -> PatchError:
        """The error of an edit that changes what ran when the module was imported."""
        what = f"code that ran when {target.source.name} was imported (module level, class body, default, decorator)"
        for one in target.placed:
            if not rewrite(target.source, [one]).functions.same_import(self.base.functions):
                return PatchError(f"{one.name} changes {what}; patch before the module is imported", one.edit.match_at)
        return PatchError(f"the edits together change {what}")


def undo(done: Sequence[tuple[FunctionType, CodeType]]) -> None:
    """Give functions back the codes they had."""
    taken = [(function, function.__code__) for function, _ in done]
    for function, code in done:
        function.__code__ = code
    _follow(taken)


def _follow(done: Sequence[tuple[FunctionType, CodeType]]) -> None:
    """Bring up to date what was made from the codes that functions had: caches, compiled graphs, docstrings."""
    if not done:
        return
    for holder in _caches_of([function for function, _ in done]):
        holder.cache_clear()
    # A graph that inlined a method may hold no guard on that method's code, so every graph goes.
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()
    for function, old in done:
        before, after = _docstring(old), _docstring(function.__code__)
        if before != after and function.__doc__ == before:
            for holder in [thing for thing in gc_objects() if _shows(thing, function)]:
                holder.__doc__ = after


def _docstring(code: CodeType) -> str | None:
    first = code.co_consts[0] if code.co_consts else None
    return first if isinstance(first, str) else None


def _shows(thing: Any, function: FunctionType) -> bool:
    """Return True if a thing is the function, or wraps it, and has the docstring that it has."""
    inner: Any = thing.fget if type(thing) is property else thing
    kinds = (FunctionType, staticmethod, classmethod, _LruCache)
    return issubclass(type(inner), kinds) and inspect.unwrap(inner) is function and thing.__doc__ == function.__doc__


def _is_scripted(function: FunctionType) -> bool:
    """Return True if TorchScript has compiled a function, by itself or as a method."""
    state, recursive = sys.modules.get("torch.jit._state"), sys.modules.get("torch.jit._recursive")
    if state is None or recursive is None:
        return False
    name = function.__name__
    types = recursive.concrete_type_store.type_store.items()
    modules = [kind for kind, made in types if any(name in each.jit_type.method_names() for each in made)]
    holders = (*modules, *state._script_classes)
    return function in state._jit_caching_layer or any(getattr(kind, name, None) is function for kind in holders)


def take_census(folder: str) -> None:
    """Look up, once, all that patching may have to reach: functions whose source lies in ``folder``, caches, kernels.

    Until :func:`end_census` no other functions may be made or patched, and files of patched modules are not read again.
    For a process that many are forked from: a search in each fork would copy the memory that all objects lie in. In a
    fork of one that has taken a census before it froze its objects, those that were made since are added.
    """
    global _census
    known = _census or []
    objects = gc.get_objects() if known and gc.get_freeze_count() else gc_objects()
    _census = [*known, *(thing for thing in objects if _matters(thing, folder))]


def census_taken() -> bool:
    """Return True if a census stands in for searches now."""
    return _census is not None


def end_census() -> None:
    """Let patching search again, whenever something is patched or restored."""
    global _census
    _census = None


@contextmanager
def searched_once() -> Iterator[None]:
    """Search once for all that is patched within. No functions may be made there."""
    global _searched
    try:
        _searched = [thing for thing in gc_objects() if _matters(thing, "")]
        yield
    finally:
        _searched = None


def gc_objects() -> list[Any]:
    """Every container object of the process; of the census, or within :func:`searched_once`, those that matter.

    ``gc.freeze()``, as of a fork server, hides objects, so they are thawed, and frozen again in such a process: each
    collection would walk through all of them.
    """
    if (found := _searched if _census is None else _census) is not None:
        return found
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    objects = gc.get_objects()
    if frozen:
        gc.freeze()
    return objects


def _matters(thing: Any, folder: str) -> bool:
    kind = type(thing)
    if kind is FunctionType:
        return bool(thing.__code__.co_filename.startswith(folder))
    return issubclass(kind, _HOLDERS) or str(kind.__module__).startswith("triton.")


def _caches_of(functions: Sequence[FunctionType]) -> list[Any]:
    wanted = set(map(id, functions))
    caches = [thing for thing in gc_objects() if issubclass(type(thing), _LruCache)]
    return [cache for cache in caches if any(id(held) in wanted for held in gc.get_referents(cache))]
