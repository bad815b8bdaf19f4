"""Import hook: a module with pending patches is compiled from its patched text when it is first imported.

Any edit can be made this way, because the module has not run yet. Its own loader does all but execute it: its file,
resources and original source text stay what they were. ``runpy`` (``python -m``) executes what the loader says is the
module's code, and gets the patched code, too.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from specdebug.patching.spec import PatchError


class Pending(NamedTuple):
    """A module to import patched: the ``path`` that its patches were matched against, ``run`` to execute it, and
    ``code`` for another loader to."""

    path: str
    run: Callable[[ModuleType], None]
    code: Callable[[], CodeType]


class PatchFinder(importlib.abc.MetaPathFinder):
    """Asks the other finders, and wraps the loader of a module if ``pending`` says that it is to be patched.

    ``after``: what to do with modules, by name, once they have been imported.
    """

    def __init__(
        self, pending: Callable[[str], Pending | None], after: Mapping[str, Callable[[ModuleType], None]]
    ) -> None:
        self._pending = pending
        self._after = after

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Spec of a pending module with its loader wrapped, None for any other.

        Raises PatchError if the import found another file than the patches were matched against.
        """
        module, after = self._pending(fullname), self._after.get(fullname)
        if module is None and after is None:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec: ModuleSpec | None = find_spec(fullname, path, target)
            if spec is None:
                continue
            if module is not None and spec.origin != module.path:
                raise PatchError(f"{fullname} was to be patched in {module.path} but imports from {spec.origin}")
            if module is not None:
                spec.loader = _PatchingLoader(spec.loader, module)
            if after is not None:
                spec.loader = _FollowedLoader(spec.loader, after)
            return spec
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._inner.create_module(spec)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _PatchingLoader(_Loader):
    def __init__(self, inner: Any, pending: Pending) -> None:
        super().__init__(inner)
        self._pending = pending

    def exec_module(self, module: ModuleType) -> None:
        self._pending.run(module)

    def get_code(self, _name: str) -> CodeType:
        return self._pending.code()


class _FollowedLoader(_Loader):
    def __init__(self, inner: Any, after: Callable[[ModuleType], None]) -> None:
        super().__init__(inner)
        self._after = after

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._after(module)
