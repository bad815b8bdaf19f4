"""Triton kernels: they compile from their own copy of the source text, not from the function's code.

``JITFunction`` keeps the text it read at decoration; ``InterpretedFunction`` (``TRITON_INTERPRET=1``) reads the file at
its first launch. Both are handed the patched text, and what they and the kernels that call them have compiled is
forgotten. Launches are counted, since a counter cannot run inside a kernel. Triton's line numbers inside a patched
kernel are those of the patched text.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

from specdebug.patching.hits import hit
from specdebug.patching.live import gc_objects
from specdebug.patching.texts import FunctionText, reading


class Kernels:
    """The kernels of one module and what has been done to them."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def sync(self, text_of: Callable[[FunctionType], FunctionText | None]) -> None:
        """Give every live kernel the text that ``text_of`` has for its function; None means its own."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        kernels = live_kernels()
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
            with reading(kernel.fn, text):
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

        forget_compiled(kernel)
        kernel.pre_run_hooks.append(count)

        def restore() -> None:
            kernel.pre_run_hooks.remove(count)
            forget_compiled(kernel)

        self._undo.append(restore)


def live_kernels() -> list[Any]:
    """Every kernel object of the process, compiled or interpreted; none before triton is imported."""
    places = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.interpreter", "InterpretedFunction"))
    found = [getattr(sys.modules.get(module), name, None) for module, name in places]
    kinds = tuple(kind for kind in found if isinstance(kind, type))
    return [thing for thing in gc_objects() if issubclass(type(thing), kinds)] if kinds else []


def forget_compiled(kernel: Any) -> None:
    """Drop a compiled kernel's hash and binaries, so that the next launch looks at the text again."""
    if hasattr(kernel, "rewriter"):
        return
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
            work.extend(_mentioned_by(one))
    return list(found.values())


def _mentioned_by(kernel: Any) -> Iterator[Any]:
    names, free = kernel.fn.__code__.co_names, kernel.fn.__code__.co_freevars
    cells = zip(free, kernel.fn.__closure__ or (), strict=True)
    scope = kernel.fn.__globals__ | {name: cell.cell_contents for name, cell in cells}
    for name in (*names, *free):
        value = scope.get(name)
        values = [getattr(value, inner, None) for inner in names] if isinstance(value, ModuleType) else [value]
        yield from (one for one in values if type(one) is type(kernel) and one is not kernel)
