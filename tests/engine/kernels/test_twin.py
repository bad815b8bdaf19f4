"""A reference and its Triton twin are one function to their callers."""

import importlib.util
import inspect
import os
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch

from specdebug.base.errors import CannotRunHere
from specdebug.engine import kernels

pytest.importorskip("triton")

from specdebug.engine.kernels import kv_cache, kv_indices, twin
from specdebug.engine.kernels.triton import kv_indices as twins

MODULES = [import_module(f"{kernels.__name__}.{each.name}") for each in pkgutil.iter_modules(kernels.__path__)]
REFERENCES = [
    function
    for module in MODULES
    for _, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and hasattr(function, "__wrapped__")
]
GATHER = (torch.arange(12, dtype=torch.int32).view(3, 4), torch.tensor([1]), 2, 2)


class OnGpu(torch.Tensor):
    """A tensor that says that it lies on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda each: each.__name__)
def test_a_twin_takes_what_its_reference_takes(reference: Callable[..., Any]) -> None:
    assert len(REFERENCES) >= 15
    module = import_module(reference.__module__.replace(".kernels.", ".kernels.triton."))
    taken = [
        [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]
        for function in (reference, getattr(module, reference.__name__))
    ]
    assert taken[0] == taken[1]


def test_a_first_argument_on_a_gpu_goes_to_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "gather_page_table", lambda *arguments: arguments[2:])
    assert kv_indices.gather_page_table(*GATHER).tolist() == [[2, 3]]
    assert kv_indices.gather_page_table(GATHER[0].as_subclass(OnGpu), *GATHER[1:]) == (2, 2)


def test_on_a_cpu_twins_are_taken_once_they_may_be_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin, "_interpreted", False)
    monkeypatch.setattr(twins, "gather_page_table", lambda *arguments: arguments[2:])
    monkeypatch.setenv("TRITON_INTERPRET", os.environ.get("TRITON_INTERPRET", "0"))
    twin.interpret_on_cpu()
    assert os.environ["TRITON_INTERPRET"] == "1"
    assert kv_indices.gather_page_table(*GATHER) == (2, 2)
    pool = torch.zeros(4, 1, 2)
    with pytest.raises(IndexError):  # kernels of many programs stay references
        kv_cache.write_kv(pool, pool, torch.tensor([9]), torch.ones(1, 1, 2), torch.ones(1, 1, 2))


def test_without_triton_nothing_can_be_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CannotRunHere, match="Triton"):
        twin.interpret_on_cpu()
