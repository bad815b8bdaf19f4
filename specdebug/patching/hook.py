"""Import hook: a module with pending patches is compiled from its patched text when it is first imported.

Any edit can be made this way, because the module has not run yet. Its own loader does all but execute it: its file,
resources and original source text stay what they were.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

from specdebug.patching.spec import PatchError


class Pending(NamedTuple):
    """A module to import patched: the ``path`` that its patches were matched against, and ``run`` to execute it."""

    path: str
    run: Callable[[ModuleType], None]


class PatchFinder(importlib.abc.MetaPathFinder):
    """Asks the other finders, and wraps the loader of a module if ``pending`` says that it is to be patched."""

    def __init__(self, pending: Callable[[str], Pending | None]) -> None:
        self._pending = pending

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Spec of a pending module with its loader wrapped, None for any other.

        Raises PatchError if the import found another file than the patches were matched against.
        """
        module = self._pending(fullname)
        if module is None:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec: ModuleSpec | None = find_spec(fullname, path, target)
            if spec is None:
                continue
            if spec.origin != module.path:
                raise PatchError(f"{fullname} was to be patched in {module.path} but imports from {spec.origin}")
            spec.loader = _PatchingLoader(spec.loader, module)
            return spec
        return None


class _PatchingLoader(importlib.abc.Loader):
    def __init__(self, inner: Any, pending: Pending) -> None:
        self._inner = inner
        self._pending = pending

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._pending.run(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
