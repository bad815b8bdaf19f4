"""The hooks in Triton's interpreter: arguments get their tags, and every load, store and atomic is looked at.

``TRITON_INTERPRET=1`` must be set before Triton is imported, or there is no interpreter to hook.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

from specdebug.kernel_memory.finding import Access
from specdebug.kernel_memory.launch import Habits, KernelLaunch, Mask, Report, ShadowOf, look
from specdebug.kernel_memory.regions import Owners, base_of, plain

_HERE = str(Path(__file__).parent)
HOOKED = (
    ("GridExecutor", "__call__"), ("", "_implicit_cvt"), *(("InterpreterBuilder", name) for name in (
        "create_addptr", "create_int_to_ptr", "create_ptr_to_int", "create_masked_load", "create_masked_store",
        "create_atomic_cas", "create_atomic_rmw",
    )),
)  # fmt: skip
"""The parts of Triton's interpreter that are hooked: the class or, of the module itself, nothing, and the function."""
Reporter = Callable[[str], Report | None]
"""By kernel, who takes its findings; None: the kernel is not looked at."""


class Hooks:
    """The hooks, from :meth:`put` until :meth:`take_out`. Raises ImportError where Triton is not installed."""

    def __init__(self, reporter: Reporter, shadow_of: ShadowOf) -> None:
        from triton.runtime import interpreter

        self._module: Any = interpreter
        self._triton = str(Path(interpreter.__file__).parents[1])
        self._reporter = reporter
        self._shadow_of = shadow_of
        self._owners = Owners()
        self._habits = Habits()
        self._launch: KernelLaunch | None = None
        self._names: Iterator[str] = iter(())
        self._name = ""
        self._depth = 0
        self._undo: list[Callable[[], None]] = []

    def busy(self) -> bool:
        """Return True while a launch is looked at."""
        return self._launch is not None

    def put(self) -> None:
        """Hook in."""
        for holder, name in HOOKED:
            owner = getattr(self._module, holder) if holder else self._module
            original = getattr(owner, name)
            hook = getattr(self, f"_{name.strip('_')}")
            setattr(owner, name, _hooked(original, hook))
            self._undo.append(functools.partial(setattr, owner, name, original))

    def take_out(self) -> None:
        """Leave Triton as it was."""
        while self._undo:
            self._undo.pop()()

    # What Triton calls, by the names of its functions. ``original`` is what stood there.

    def _call(self, original: Any, executor: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = executor.fn.__name__
        report = self._reporter(kernel)
        if report is None or self._launch is not None:
            return original(executor, *args, **kwargs)
        known = inspect.getfullargspec(executor.fn).args
        given = {name: value for name, value in kwargs.items() if name in known}
        try:
            arguments = inspect.getcallargs(executor.fn, *args, **given)
        except TypeError:  # which the launch itself says next
            return original(executor, *args, **kwargs)
        launch = KernelLaunch(kernel, arguments, self._owners, self._shadow_of, self._position, report)
        with self._launched(launch, executor, arguments):
            return original(executor, *args, **kwargs)

    @contextmanager
    def _launched(self, launch: KernelLaunch, executor: Any, arguments: Mapping[str, Any]) -> Iterator[None]:
        """A launch runs: Triton converts its arguments in order, but for constants, and those of it are tagged."""
        self._launch, self._depth = launch, 0
        self._names = iter([name for name in arguments if name not in executor.constexprs])
        try:
            yield
        finally:
            self._launch = None

    def _implicit_cvt(self, original: Any, arg: Any) -> Any:
        """Tuples and descriptors are converted part by part, under the argument's name."""
        if self._launch is None:
            return original(arg)
        if not self._depth:
            self._name = next(self._names, "")
        self._depth += 1
        try:
            converted = original(arg)
        finally:
            self._depth -= 1
        if hasattr(arg, "data_ptr") and arg.data_ptr():
            tag = self._launch.enter(self._name, arg)
            converted.handle.data = converted.handle.data + np.uint64(base_of(tag))
        return converted

    def _create_addptr(self, original: Any, builder: Any, ptr: Any, offset: Any) -> Any:
        moved = original(builder, ptr, offset)
        if self._launch is not None and moved.data.size == 1:
            before, after = int(ptr.data.item()), int(moved.data.item())
            placed = self._launch.placed(before, after, self._habits, self._place)
            if placed != after:
                moved.data = np.full_like(moved.data, placed)
        return moved

    def _create_int_to_ptr(self, original: Any, builder: Any, value: Any, kind: Any) -> Any:
        return self._adopted(original(builder, value, kind))

    def _create_ptr_to_int(self, original: Any, builder: Any, ptr: Any, kind: Any) -> Any:
        return original(builder, self._bare(ptr), kind)

    def _create_masked_load(
        self, original: Any, builder: Any, ptrs: Any, mask: Any, other: Any, *hints: Any, **more: Any
    ) -> Any:
        if self._launch is None:
            return original(builder, ptrs, mask, other, *hints, **more)
        bare, meant, done = self._looked(ptrs, mask, "load")
        loaded = original(builder, bare, self._handle(done, mask), other, *hints, **more)
        if done is not meant:
            _poison(loaded, meant & ~done)
        return self._adopted(loaded) if _is_pointer(loaded) else loaded

    def _create_masked_store(self, original: Any, builder: Any, ptrs: Any, value: Any, mask: Any, *hints: Any) -> Any:
        if self._launch is None:
            return original(builder, ptrs, value, mask, *hints)
        bare, _, done = self._looked(ptrs, mask, "store")
        value = self._bare(value) if _is_pointer(value) else value
        return original(builder, bare, value, self._handle(done, mask), *hints)

    def _create_atomic_rmw(
        self, original: Any, builder: Any, op: Any, ptr: Any, value: Any, mask: Any, *more: Any
    ) -> Any:
        if self._launch is None:
            return original(builder, op, ptr, value, mask, *more)
        bare, meant, done = self._looked(ptr, mask, "atomic")
        before = original(builder, op, bare, value, self._handle(done, mask), *more)
        if done is not meant:
            _poison(before, meant & ~done)
        return before

    def _create_atomic_cas(self, original: Any, builder: Any, ptr: Any, compared: Any, value: Any, *more: Any) -> Any:
        """There is no mask: where a lane hits memory without an owner the whole block is left out."""
        if self._launch is None:
            return original(builder, ptr, compared, value, *more)
        bare, meant, done = self._looked(ptr, None, "atomic")
        if done.all():
            return original(builder, bare, compared, value, *more)
        kept = self._module.TensorHandle(np.array(compared.data), compared.dtype)
        _poison(kept, meant & ~done)
        return kept

    def _looked(self, ptrs: Any, mask: Any, what: str) -> tuple[Any, Mask, Mask]:
        """The plain pointers, the lanes that are meant, and those that may be carried out: the same object if all."""
        assert self._launch is not None
        shape = ptrs.data.shape
        # masks that came of arithmetic may be integers, of which the interpreter takes what is not zero
        meant = np.ones(shape, dtype=bool) if mask is None else np.asarray(mask.data).astype(bool, copy=False)
        if meant.shape != shape:
            meant = np.broadcast_to(meant, shape)
        item = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        addresses, done = look(self._launch, ptrs.data, meant, item, what)
        return self._module.TensorHandle(addresses, ptrs.dtype), meant, done

    def _handle(self, done: Mask, mask: Any) -> Any:
        """A mask in the form that Triton gave it."""
        return mask if done is mask.data else self._module.TensorHandle(done, self._module.tl.int1)

    def _adopted(self, handle: Any) -> Any:
        if self._launch is not None:
            handle.data = self._launch.adopt(np.asarray(handle.data, dtype=np.uint64))
        return handle

    def _bare(self, handle: Any) -> Any:
        if self._launch is None:
            return handle
        return self._module.TensorHandle(plain(np.asarray(handle.data)).view(np.uint64), handle.dtype)

    def _position(self, what: str) -> Access:
        """Where the kernel is: the innermost line that is neither Triton's nor ours."""
        return Access(what, tuple(self._module.interpreter_builder.grid_idx), line_of(self._frame()))

    def _place(self) -> tuple[CodeType, int] | None:
        """The instruction of the kernel that is being carried out."""
        frame = self._frame()
        return None if frame is None else (frame.f_code, frame.f_lasti)

    def _frame(self) -> FrameType | None:
        return outside((self._triton, _HERE, "<"))


def _hooked(original: Any, hook: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    return call


def _poison(handle: Any, lanes: Mask) -> None:
    """Set all bits of some lanes: no number, or -1."""
    data = np.array(handle.data)
    data.view(np.uint8).reshape(*data.shape, data.itemsize)[lanes] = 1 if data.dtype == bool else 0xFF
    handle.data = data


def _is_pointer(handle: Any) -> bool:
    return bool(handle.dtype.scalar.is_ptr())


def outside(files: tuple[str, ...]) -> FrameType | None:
    """The innermost frame of code in none of some files, by the beginnings of their paths."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(files):
        frame = frame.f_back
    return frame


def line_of(frame: FrameType | None) -> str:
    """File and number of the line where a frame is."""
    return "?" if frame is None else f"{'/'.join(Path(frame.f_code.co_filename).parts[-2:])}:{frame.f_lineno}"
