"""The choice between a torch reference and its Triton twin."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import ParamSpec, TypeVar

from torch import Tensor

_P = ParamSpec("_P")
_R = TypeVar("_R")


def triton_on_gpu(reference: Callable[_P, _R]) -> Callable[_P, _R]:
    """Hand a call whose first argument is a tensor on a GPU to the function and module of the same names in ``triton``.

    That module is imported by the first such call, because Triton comes with CUDA builds only.
    """
    module = reference.__module__.replace(".kernels.", ".kernels.triton.")

    @wraps(reference)
    def choose(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        first = args[0]
        if isinstance(first, Tensor) and first.is_cuda:
            twin: Callable[_P, _R] = getattr(import_module(module), reference.__name__)
            return twin(*args, **kwargs)
        return reference(*args, **kwargs)

    return choose
