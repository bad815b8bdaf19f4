"""The choice between a torch reference and its Triton twin."""

import importlib.util
import os
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import ParamSpec, TypeVar

from torch import Tensor

from specdebug.base.errors import CannotRunHere

_P = ParamSpec("_P")
_R = TypeVar("_R")

NOT_INTERPRETED = ("argmax", "softmax_top1", "softmax_topk", "write_kv", "move_kv")
"""Their kernels have a program for each row of logits, keys or values. Interpreted they would take most of a step, and
the references refuse an index that lies outside."""

_interpreted = False


def interpret_on_cpu() -> None:
    """From now on hand calls with tensors on a CPU to the Triton twins, too, which Triton's interpreter runs, but for
    :data:`NOT_INTERPRETED`. Call it before Triton is imported. Raises CannotRunHere where Triton is not installed."""
    global _interpreted
    if importlib.util.find_spec("triton") is None:
        raise CannotRunHere("Triton, whose interpreter runs kernels on a CPU, is not installed here")
    os.environ["TRITON_INTERPRET"] = "1"
    _interpreted = True


def triton_on_gpu(reference: Callable[_P, _R]) -> Callable[_P, _R]:
    """Hand a call whose first argument is a tensor on a GPU to the function and module of the same names in ``triton``;
    after :func:`interpret_on_cpu` every call.

    That module is imported by the first such call, because Triton comes with CUDA builds only.
    """
    module = reference.__module__.replace(".kernels.", ".kernels.triton.")
    on_cpu = reference.__name__ not in NOT_INTERPRETED

    @wraps(reference)
    def choose(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        first = args[0]
        if isinstance(first, Tensor) and (first.is_cuda or (_interpreted and on_cpu)):
            twin: Callable[_P, _R] = getattr(import_module(module), reference.__name__)
            return twin(*args, **kwargs)
        return reference(*args, **kwargs)

    return choose
