"""Compilers that read a function's source text instead of its code: Triton's and TorchScript's.

A counter cannot run in what they make: a kernel's edits count its launches, a scripted function's its compilations.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from specdebug.patching.hits import hit
from specdebug.patching.live import gc_objects

if TYPE_CHECKING:
    from typing import TypeAlias

    TextOf: TypeAlias = "Callable[[FunctionType], FunctionText | None]"
    """What a compiler is to read for a function; None: what is in its file."""

SCRIPTS = "torch.jit.frontend"
"""The module by which TorchScript reads functions."""


@dataclass(frozen=True)
class FunctionText:
    """The text of a function after the edits: ``lines`` from line ``start`` on, and its ``counters``."""

    lines: Sequence[str]
    start: int
    counters: tuple[int, ...]


@contextmanager
def _reading(function: FunctionType, text: FunctionText) -> Iterator[None]:
    """Let ``inspect`` find the patched text of one function, which is how both read it."""
    real = inspect.getsourcelines

    def patched(thing: Any) -> tuple[list[str], int]:
        return ([line + "\n" for line in text.lines], text.start) if thing is function else real(thing)

    inspect.getsourcelines = patched  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.getsourcelines = real


class Kernels:
    """The Triton kernels of one module and what has been done to them.

    ``JITFunction`` keeps the text it read at decoration; ``InterpretedFunction`` (``TRITON_INTERPRET=1``) reads the
    file at its first launch. What they and the kernels that call them have compiled is forgotten.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def sync(self, text_of: TextOf) -> None:
        """Give every live kernel the text that ``text_of`` has for its function."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        places = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.interpreter", "InterpretedFunction"))
        found = [getattr(sys.modules.get(module), name, None) for module, name in places]
        kinds = tuple(kind for kind in found if isinstance(kind, type))  # none before triton is imported
        kernels: list[Any] = [thing for thing in gc_objects() if issubclass(type(thing), kinds)] if kinds else []
        edited: dict[int, FunctionText] = {}
        for kernel in kernels:
            text = text_of(kernel.fn) if isinstance(kernel.fn, FunctionType) else None
            if text is not None:
                edited[id(kernel)] = text
                self._replace_text(kernel, text)
        for kernel in kernels if edited else ():
            texts = filter(None, (edited.get(id(used)) for used in _called_by(kernel)))
            counters = [index for text in texts for index in text.counters]
            if counters:
                self._count_launches(kernel, counters)

    def _replace_text(self, kernel: Any, text: FunctionText) -> None:
        if hasattr(kernel, "rewriter"):
            kernel.rewritten_fn.pop(kernel.fn, None)
            self._undo.append(lambda: kernel.rewritten_fn.pop(kernel.fn, None))
            with _reading(kernel.fn, text):
                kernel.rewrite()
            return
        raw, own = kernel.raw_src, kernel.src
        kernel.raw_src = [line + "\n" for line in text.lines]
        source = textwrap.dedent("".join(kernel.raw_src))
        begin = re.search(r"^def\s+\w+\s*\(", source, re.MULTILINE)
        kernel._unsafe_update_src(source[begin.start() :] if begin else source)

        def restore() -> None:
            kernel.raw_src = raw
            kernel._unsafe_update_src(own)

        self._undo.append(restore)

    def _count_launches(self, kernel: Any, counters: Sequence[int]) -> None:
        def count(*_args: Any, **_kwargs: Any) -> None:
            for index in counters:
                hit(index)

        def restore() -> None:
            kernel.pre_run_hooks.remove(count)
            _forget_compiled(kernel)

        _forget_compiled(kernel)
        kernel.pre_run_hooks.append(count)
        self._undo.append(restore)


def _forget_compiled(kernel: Any) -> None:
    """Drop a compiled kernel's hash and binaries, so that the next launch looks at the text again."""
    if not hasattr(kernel, "rewriter"):
        kernel.hash = None
        kernel.used_global_vals.clear()
        kernel.device_caches.clear()


def _called_by(kernel: Any) -> list[Any]:
    """The kernel and every kernel it calls, directly or not."""
    found: dict[int, Any] = {}
    work = [kernel]
    while work:
        one = work.pop()
        if id(one) not in found:
            found[id(one)] = one
            names, free = one.fn.__code__.co_names, one.fn.__code__.co_freevars
            cells = zip(free, one.fn.__closure__ or ())
            scope = one.fn.__globals__ | {name: cell.cell_contents for name, cell in cells}
            for name in (*names, *free):
                value = scope.get(name)
                inner = [getattr(value, each, None) for each in names] if isinstance(value, ModuleType) else [value]
                work += [each for each in inner if type(each) is type(kernel)]
    return list(found.values())


def hand_text(frontend: ModuleType, text_of: TextOf) -> None:
    """Let TorchScript read functions as ``text_of`` has them."""
    real = frontend.parse_def

    def parse_def(thing: Any) -> Any:
        function = getattr(thing, "__func__", thing)
        text = text_of(function) if isinstance(function, FunctionType) else None
        if text is None:
            return real(thing)
        with _reading(function, text):
            parsed = real(function)
        for index in text.counters:
            hit(index)
        return parsed

    frontend.parse_def = parse_def  # type: ignore[attr-defined]


def forget_script(function: FunctionType) -> None:
    """Let TorchScript compile a function anew when it is next asked for."""
    if state := sys.modules.get("torch.jit._state"):
        state._jit_caching_layer.pop(function, None)
