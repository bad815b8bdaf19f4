"""Tell of kernels as they are compiled: the first run on a machine spends a minute on it. Load what compiles them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any


def watch_triton(begun: Callable[[str], None], done: Callable[[], None]) -> None:
    """Call ``begun`` with a kernel's name when Triton takes it up, and ``done`` when it has it, compiled or cached.

    Triton's own hook (``knobs.runtime.jit_cache_hook``) is not used: with one set, Triton first writes every launch's
    constants as JSON, so a hook can make kernels fail that run without it. Must be called before the first kernel
    runs, because a kernel keeps the compiler it found then. Without Triton this does nothing.
    """
    try:
        from triton import compiler
    except ImportError:
        return
    original = compiler.compile

    @functools.wraps(original)
    def compile(source: Any, *args: Any, **options: Any) -> Any:
        begun(str(getattr(source, "name", "a kernel")))
        try:
            return original(source, *args, **options)
        finally:
            done()

    compiler.compile = compile


def load_triton(_: None) -> None:
    """Import Triton, and have it hash itself: its key to kernels compiled earlier holds its own files, half a gigabyte
    that every process reads before its first kernel. Forks of this one need not. No device is touched."""
    with contextlib.suppress(Exception):  # whatever is wrong with it, the worker that needs it tells
        from triton.runtime.cache import triton_key

        triton_key()
