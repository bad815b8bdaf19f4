"""torch.compile: compiled callers see a patch and its end, and counters break no graph."""

from __future__ import annotations

import pytest

from specdebug.patching import Patch, apply

torch = pytest.importorskip("torch")

TEXT = """
import torch


@torch.compile(backend="eager", fullgraph=True)
def compiled(x):
    y = x + 1
    return y


def helper(x):
    y = x * 2
    return y


@torch.compile(backend="eager", fullgraph=True)
def caller(x):
    return helper(x) + 1


class Layer(torch.nn.Module):
    def scale(self, x):
        factor = 3
        return x * factor

    def forward(self, x):
        return self.scale(x)
"""


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def value(call, at: float = 1.0) -> float:
    return call(torch.tensor([at])).item()


def test_decorated_function(toys):
    mod = toys.load(TEXT)
    assert value(mod.compiled) == 2
    with apply([Patch.of("t", f"{mod.__name__}:compiled", ("y = x + 1", "y = x + 10"))]) as applied:
        assert [value(mod.compiled), value(mod.compiled, 2.0)] == [11, 12]
        assert applied.hits()["t#1"] >= 1
    assert value(mod.compiled) == 2


def test_a_compiled_caller_that_inlined_the_function(toys):
    mod = toys.load(TEXT)
    assert value(mod.caller) == 3
    with apply([Patch.of("t", f"{mod.__name__}:helper", ("y = x * 2", "y = x * 20"))]) as applied:
        assert value(mod.caller) == 21
        assert applied.hits()["t#1"] >= 1
    assert value(mod.caller) == 3


def test_a_compiled_module_that_inlined_a_method(toys):
    mod = toys.load(TEXT)
    layer = torch.compile(mod.Layer(), backend="eager", fullgraph=True)
    assert value(layer) == 3
    with apply([Patch.of("t", f"{mod.__name__}:Layer.scale", ("factor = 3", "factor = 30"))]) as applied:
        assert value(layer) == 30
        assert applied.hits()["t#1"] >= 1
    assert value(layer) == 3


def test_by_import_hook(toys):
    import importlib

    name = toys.write(TEXT)
    patches = [
        Patch.of("t", f"{name}:compiled", ("y = x + 1", "y = x + 10")),
        Patch.of("u", f"{name}:helper", ("y = x * 2", "y = x * 20")),
        Patch.of("v", f"{name}:Layer", ("factor = 3", "factor = 30")),
    ]
    with apply(patches, "import") as applied:
        mod = importlib.import_module(name)
        layer = torch.compile(mod.Layer(), backend="eager", fullgraph=True)
        assert [value(mod.compiled), value(mod.caller), value(layer)] == [11, 21, 30]
        assert all(applied.hits().values())
    assert [value(mod.compiled), value(mod.caller), value(layer)] == [2, 3, 3]


def test_counting_compiles_nothing_twice(toys):
    mod = toys.load(TEXT)
    with apply([Patch.of("t", f"{mod.__name__}:helper", ("y = x * 2", "y = x * 20"))]) as applied:
        torch._dynamo.utils.counters.clear()
        for at in range(5):
            value(mod.caller, float(at))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
        assert applied.hits() == {"t#1": 1}


def test_the_counter_runs_eagerly_too(toys):
    mod = toys.load(TEXT)
    with apply([Patch.of("t", f"{mod.__name__}:helper", ("y = x * 2", "y = x * 20"))]) as applied:
        mod.helper(1)
        mod.helper(1)
        assert applied.hits() == {"t#1": 2}
