"""Apply patches and take them back.

All edits are placed, checked for overlaps and compiled before anything changes. Each module has one record of its
original text and the edits in force, from which every apply and restore rewrites it: patches nest in any order.
"""

from __future__ import annotations

import importlib.abc
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from itertools import count
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

from specdebug.patching.compilers import SCRIPTS, FunctionText, Kernels, forget_script, hand_text
from specdebug.patching.hits import hits_of, new_counter
from specdebug.patching.live import Exchange, LiveFunctions, census_taken, searched_once, undo
from specdebug.patching.match import Placed, check_overlaps, place
from specdebug.patching.rewrite import rewrite
from specdebug.patching.source import ModuleSource, Patch, PatchError, find_source
from specdebug.patching.spawned import SPAWN, InForce, take_along

if TYPE_CHECKING:
    from typing import TypeAlias

Mode: TypeAlias = Literal["import", "inprocess"]

_lock = threading.RLock()
_modules: dict[str, _Module] = {}


class Applied:
    """Patches in force. Use as a context manager, or call ``restore`` when done."""

    def __init__(self, patches: Sequence[Patch], placed: dict[str, list[Placed]]) -> None:
        self.patches = tuple(patches)
        self._placed = placed
        self._counters = _named(placed)
        self._active = True

    def hits(self) -> dict[str, int]:
        """Counts of the passes through each edit, by id, also after ``restore``. An edit whose ``Edit.id`` an earlier
        one of the set has goes by the next free number: two of ``t#1`` are ``t#1`` and ``t#2``.

        A Triton kernel's edits count its launches; under ``torch.compile`` a trace counts once.
        """
        return {name: hits_of(index) for name, index in self._counters.items()}

    @property
    def counters(self) -> tuple[int, ...]:
        """The numbers of the edits' counters, in the order that the edits were given in."""
        return tuple(self._counters.values())

    def restore(self) -> None:
        """Take the patches back; a second call does nothing.

        Functions get the very code objects they had. A module whose own level or class body was imported patched, or
        that had TorchScript compile a patched function meanwhile, cannot be undone in place: it is dropped from
        ``sys.modules``, so that the next import finds the original.
        """
        with _lock:
            if not self._active:
                return
            self._active = False
            for name, placed in self._placed.items():
                _modules[name].deactivate(placed)
            _sync_finder()

    def __enter__(self) -> Applied:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()


def apply(patches: Iterable[Patch], mode: Mode = "inprocess") -> Applied:
    """Put patches in force at once.

    Raises PatchError, with nothing changed, if an edit does not fit, two overlap, or the result would not run.

    ``import`` compiles modules patched when they are imported, and refuses one that already is; everything in them can
    be edited. ``inprocess`` exchanges the code of functions of modules that are imported already; what ran at their
    import (module level, class bodies, defaults, decorators) can no longer be edited.
    """
    patches = tuple(patches)
    with _lock, searched_once():
        modules: dict[str, _Module] = {}
        placed: dict[str, list[Placed]] = {}
        for patch in patches:
            module = modules[patch.module] = modules.get(patch.module) or _Module.of(patch)
            module.check_mode(patch, mode)
            here = placed.setdefault(patch.module, [])
            here.extend(place(module.source, patch, edit, new_counter()) for edit in patch.edits)
        plans = [(module, module.plan(placed[name])) for name, module in modules.items()]
        done: list[_Module] = []
        try:
            for module, exchange in plans:
                module.activate(exchange)
                done.append(module)
        except BaseException:
            for module in reversed(done):
                module.deactivate(placed[module.source.name])
            raise
        _modules.update(modules)
        _sync_finder()
        return Applied(patches, placed)


def _named(placed: Mapping[str, Sequence[Placed]]) -> dict[str, int]:
    """The counters of edits, in the order they were given in, by ids that are unique among them."""
    edits = sorted((one for each in placed.values() for one in each), key=lambda one: one.index)
    given, names = {one.edit.id for one in edits}, dict[str, int]()
    for one in edits:
        name = one.edit.id
        if name in names:
            owner = name.rpartition("#")[0] or name
            numbered = (f"{owner}#{n}" for n in count(1))
            name = next(each for each in numbered if each not in given and each not in names)
        names[name] = one.index
    return names


class _Module:
    """One patched module: its original and the version in force."""

    def __init__(self, source: ModuleSource) -> None:
        self.source = source
        self.base = rewrite(source, ())
        self.current = self.base
        self.functions = LiveFunctions(self.base)
        self.kernels = Kernels()
        self._has_run = False  # patched, that is: there is something to put back
        self._scripted: list[FunctionType] = []
        self._holds_scripts = False

    @classmethod
    def of(cls, patch: Patch) -> _Module:
        """The record of a patch's module, the existing one if it still describes the module."""
        known = _modules.get(patch.module)
        if known is not None and (known.current.placed or census_taken()):
            return known
        source = find_source(patch.module, patch.where)
        return known if known is not None and known.source == source else cls(source)

    @property
    def imported(self) -> bool:
        """Whether it has run: imported, or as ``__main__`` (``python -m``)."""
        main = getattr(sys.modules.get("__main__"), "__spec__", None)
        return self.source.name in sys.modules or (main is not None and main.name == self.source.name)

    def check_mode(self, patch: Patch, mode: Mode) -> None:
        if (mode == "inprocess") == self.imported:
            return
        why = "is imported already; patch it before, or in process"
        if not self.imported:
            why = "is not imported yet; import it, or patch by import hook"
        raise PatchError(f"{patch.owner}: {patch.module} {why}", patch.where)

    def plan(self, placed: Sequence[Placed]) -> Exchange:
        """Check everything about adding some edits to those in force."""
        together = [*self.current.placed, *placed]
        check_overlaps(self.source, together)
        target = rewrite(self.source, together)
        return self.functions.plan(self.current, target) if self.imported else Exchange(target, [])

    def activate(self, exchange: Exchange) -> None:
        """Carry out a plan, wholly or not at all."""
        before = self.current
        if not self.imported:
            self.current = exchange.target
            return
        self._has_run = True
        done: list[tuple[FunctionType, CodeType]] = []
        try:
            done = self.functions.commit(exchange)
            self.current = exchange.target
            self.kernels.sync(self._text_of)
        except BaseException:
            self.current = before
            undo(done)
            self.kernels.sync(self._text_of)
            raise

    def deactivate(self, placed: Sequence[Placed]) -> None:
        """Take edits out of force."""
        rest = [one for one in self.current.placed if one not in placed]
        target = rewrite(self.source, rest) if rest else self.base
        if not self._has_run:
            self.current = target
            return
        drop = self._holds_scripts
        try:
            exchange = self.functions.plan(self.current, target, restoring=True)
        except PatchError:
            self.current = target
            drop = True
        else:
            self.functions.commit(exchange)
            self.current = exchange.target
        self.kernels.sync(self._text_of)
        for function in self._scripted:
            forget_script(function)
        self._scripted.clear()
        if drop:
            parent, _, name = self.source.name.rpartition(".")
            module = sys.modules.pop(self.source.name, None)
            if module is not None and parent in sys.modules and getattr(sys.modules[parent], name, None) is module:
                delattr(sys.modules[parent], name)

    def run(self, module: ModuleType) -> None:
        """Execute the patched code as a freshly made module (called by the import hook)."""
        compiled = len(self._scripted)
        exec(self.code(), module.__dict__)
        with _lock:
            self._holds_scripts = len(self._scripted) > compiled
            self.kernels.sync(self._text_of)

    def code(self) -> CodeType:
        """The patched code, for a caller that is about to execute it."""
        with _lock:
            self.functions.learn(self.current)
            self._has_run = True
            return self.current.code

    def scripted(self, function: FunctionType) -> FunctionText | None:
        """The text that TorchScript, which asks, compiles a function from; None for its own."""
        text = self._text_of(function)
        if text is not None:
            self._scripted.append(function)
        return text

    def _text_of(self, function: FunctionType) -> FunctionText | None:
        """The lines of ``function`` in the version in force, None if it is of another module or unedited."""
        code = function.__code__
        key = (getattr(code, "co_qualname", function.__qualname__), code.co_firstlineno)
        if code.co_filename != self.source.path or key not in self.base.spans or key not in self.current.spans:
            return None
        first, last = self.base.spans[key]
        counters = tuple(one.index for one in self.current.placed if first <= one.start and one.stop <= last)
        if not counters:
            return None
        start, stop = self.current.spans[key]
        return FunctionText(self.current.lines[start - 1 : stop], code.co_firstlineno, counters)


class _Loader(importlib.abc.Loader):
    """A module's own loader, but that it executes the patched code of ``pending``, or calls ``after`` when it is done.

    ``runpy`` (``python -m``) executes what a loader says is the module's code, and gets the patched code, too.
    """

    def __init__(self, inner: Any, pending: _Module | None, after: Callable[[ModuleType], None] | None) -> None:
        self._inner = inner
        self._after = after
        self._run = inner.exec_module if pending is None else pending.run
        if pending is not None:
            self.get_code = lambda _name: pending.code()

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._run(module)
        if self._after is not None:
            self._after(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Asks the other finders, and wraps the loader of a module that is to be patched or must know of patches."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raises PatchError if the import found another file than the patches were matched against."""
        module = _modules.get(fullname)
        pending = module if module is not None and module.current.placed else None
        after = partial(_tell, fullname) if fullname in _COMPANIONS else None
        if pending is None and after is None:
            return None
        for find_spec in [getattr(each, "find_spec", None) for each in sys.meta_path if each is not self]:
            spec: ModuleSpec | None = find_spec(fullname, path, target) if find_spec else None
            if spec is None:
                continue
            if pending is not None and spec.origin != pending.source.path:
                expected = pending.source.path
                raise PatchError(f"{fullname} was to be patched in {expected} but imports from {spec.origin}")
            spec.loader = _Loader(spec.loader, pending, after)
            return spec
        return None


def _in_force() -> list[InForce]:
    every = [(name, sorted(module.current.placed, key=lambda one: one.index)) for name, module in _modules.items()]
    patches = ((name, tuple(dict.fromkeys(one.patch for one in placed)), placed) for name, placed in every if placed)
    return [InForce(name, unlike, tuple(one.index for one in placed)) for name, unlike, placed in patches]


def _scripted(function: FunctionType) -> FunctionText | None:
    file = function.__code__.co_filename
    return next((module.scripted(function) for module in _modules.values() if module.source.path == file), None)


_COMPANIONS: dict[str, Callable[[ModuleType], None]] = {
    SPAWN: partial(take_along, in_force=_in_force),
    SCRIPTS: partial(hand_text, text_of=_scripted),
}
"""Callbacks of modules that must know of patches. Each is called once, when a patch is in force and it is imported."""
_told: set[str] = set()


def leave_spawned_alone() -> None:
    """Processes that are spawned find the patches by themselves."""
    _COMPANIONS.pop(SPAWN, None)


def _tell(name: str, module: ModuleType) -> None:
    if name not in _told:
        _told.add(name)
        _COMPANIONS[name](module)


_finder = _Finder()


def _sync_finder() -> None:
    """Hang the import hook in front of the others while any patch is in force, and take it away after."""
    wanted = any(module.current.placed for module in _modules.values())
    if wanted and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    elif not wanted and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    for name in _COMPANIONS:
        if wanted and name in sys.modules:
            _tell(name, sys.modules[name])
