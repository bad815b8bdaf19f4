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


def compiled_layer(mod):
    return torch.compile(mod.Layer(), backend="eager", fullgraph=True)


@pytest.mark.parametrize(
    ("made", "target", "edit", "fixed", "broken"),
    [
        (lambda mod: mod.compiled, "compiled", ("y = x + 1", "y = x + 10"), 2, 11),
        (lambda mod: mod.caller, "helper", ("y = x * 2", "y = x * 20"), 3, 21),
        (compiled_layer, "Layer.scale", ("factor = 3", "factor = 30"), 3, 30),
    ],
    ids=["a compiled function", "one that it has inlined", "an inlined method"],
)
def test_what_is_compiled_sees_a_patch_and_its_end(toys, made, target, edit, fixed, broken):
    mod = toys.load(TEXT)
    call = made(mod)
    assert value(call) == fixed
    with apply([Patch.of("t", f"{mod.__name__}:{target}", edit)]) as applied:
        assert [value(call), value(call)] == [broken, broken]
        assert applied.hits()["t#1"] >= 1
    assert value(call) == fixed


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
        layer = compiled_layer(mod)
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
