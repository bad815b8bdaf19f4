"""Torch operations on static buffers: what they write is stamped, what they read is held against the stamps.

An operation reads all of a tensor that it is given, but for those that pick elements by an index. What this package
reads itself, to look, is no read of the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specdebug.kernel_memory.finding import Access
from specdebug.kernel_memory.interpreter import line_of, outside
from specdebug.kernel_memory.shadows import StampedBuffer, StampedBuffers

_HERE = str(Path(__file__).parent)
_PACKAGE = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)
Report = Callable[[str, str, str, Access, str, Callable[[], str], int], None]
"""Takes a finding, as ``Watch.report`` does."""

PICKS = {"aten::index", "aten::index_select", "aten::gather", "aten::embedding", "aten::take"}
"""Of their first argument they read what the others say."""
OVERWRITES = {"aten::copy_", "aten::fill_", "aten::zero_", "aten::_foreach_copy_", "aten::_foreach_zero_"}
"""They write all of an argument and read nothing of it, as do those whose argument is ``out``."""
PUTS: Mapping[str, Callable[..., Any]] = {
    "aten::index_put_": lambda stamps, number, indices, *_, **__: stamps.index_put_(indices, stamps.new_tensor(number)),
    "aten::scatter_": lambda stamps, number, dim, index, *_, **__: stamps.scatter_(dim, index, number),
    "aten::masked_fill_": lambda stamps, number, mask, *_, **__: stamps.masked_fill_(mask, number),
    "aten::index_fill_": lambda stamps, number, dim, index, *_, **__: stamps.index_fill_(dim, index, number),
    "aten::index_copy_": lambda stamps, number, dim, index, *_, **__: stamps.index_fill_(dim, index, number),
}
"""They write some elements of their first argument and read nothing of it: the same done to its stamps."""


class _Given(NamedTuple):
    """A tensor that an operation was given. ``first``: as its first argument; ``writes``: it may write there; ``out``:
    without reading."""

    tensor: Tensor
    buffer: StampedBuffer
    first: bool
    writes: bool
    out: bool


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's is not typed
    """Looks at every operation while it is entered. ``busy``: an interpreted kernel runs, whose accesses are looked at
    one by one."""

    def __init__(self, static: StampedBuffers, report: Report, busy: Callable[[], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._static = static
        self._report = report
        self._busy = busy
        self._paused = 0

    def pause(self) -> None:
        """Look at nothing until :meth:`go_on`: what stands for a kernel runs."""
        self._paused += 1

    def go_on(self) -> None:
        """Look again."""
        self._paused -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        # what asks a tensor for its shape and type alone reads nothing
        of_shape = name.startswith("aten::new_") or name.endswith("_like")
        given = [] if self._paused or self._busy() or of_shape else list(self._given(func, args, kwargs))
        if not given:
            return func(*args, **kwargs)
        if not any(each.writes for each in given):
            answer = func(*args, **kwargs)
            views = {each.untyped_storage().data_ptr() for each in _tensors(answer)}
            for each in given:
                if each.tensor.untyped_storage().data_ptr() not in views:  # else a view was made
                    self._read(name, each, func, args, kwargs)
            return answer
        if name == "aten::copy_" and args[0].data_ptr() == args[1].data_ptr() and args[0].shape == args[1].shape:
            return func(*args, **kwargs)  # a buffer copied to itself is neither read nor written
        for each in given:
            if not each.writes or not (each.out or name in OVERWRITES or name in PUTS):
                self._read(name, each, func, args, kwargs)
        answer = func(*args, **kwargs)
        for each in given:
            if each.writes:
                put = partial(_put, name, args[1:], kwargs) if name in PUTS and each.first else None
                each.buffer.wrote(each.tensor, put)
        return answer

    def _given(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[_Given]:
        for place, argument in enumerate(func._schema.arguments):
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            alias = argument.alias_info
            if value is None or (alias is not None and not alias.is_write):
                continue  # a view is made of it, which reads nothing
            for tensor in _tensors(value):
                if (buffer := self._static.of(tensor)) is not None:
                    writes = alias is not None
                    yield _Given(tensor, buffer, place == 0, writes, writes and argument.kwarg_only)

    def _read(self, name: str, given: _Given, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        chosen = (lambda stamps: func(stamps, *args[1:], **kwargs)) if name in PICKS and given.first else None
        misread = given.buffer.read(given.tensor, chosen)
        if misread is None or (frame := outside((_TORCH, _HERE, "<"))) is None:
            return
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            access = Access(f"load by torch's {name.removeprefix('aten::')}", None, line_of(frame))
            runner = self._static.now.runner
            self._report(runner, given.buffer.name, misread.kind, access, "", misread.words, misread.count)


def _put(name: str, rest: Sequence[Any], named: Mapping[str, Any], stamps: Tensor, number: int) -> None:
    PUTS[name](stamps, number, *rest, **named)


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of an argument or an answer."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)
