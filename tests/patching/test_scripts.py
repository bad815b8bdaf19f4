"""TorchScript compiles from text: it gets the patched one, and what it has compiled already is refused."""

from __future__ import annotations

import importlib
import sys

import pytest

from specdebug.patching import Patch, apply

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

TEXT = """
import torch


@torch.jit.script
def scripted(x: torch.Tensor):
    # A comment.
    y = x + 1
    return y


def plain(x: torch.Tensor):
    y = x * 2
    return y


class Layer(torch.nn.Module):
    def scale(self, x):
        return x * 3

    def unused(self, x):
        return x

    def forward(self, x):
        return self.scale(x)
"""


def value(call) -> float:
    return call(torch.tensor([1.0])).item()


def test_a_function_scripted_at_import(toys):
    name = toys.write(TEXT)
    patch = Patch.of("t", f"{name}:scripted", ("# A comment.\ny = x + 1", "# Another.\ny = x + 10\ny = y + 5"))
    with apply([patch], "import") as applied:
        mod = importlib.import_module(name)
        assert isinstance(mod.scripted, torch.jit.ScriptFunction)
        assert value(mod.scripted) == 16
        assert applied.hits() == {"t#1": 1}
    assert name not in sys.modules
    assert value(importlib.import_module(name).scripted) == 2


def test_functions_and_modules_scripted_later(toys):
    mod = toys.load(TEXT)
    patches = [
        Patch.of("t", f"{mod.__name__}:plain", ("y = x * 2", "y = x * 20")),
        Patch.of("u", f"{mod.__name__}:Layer.scale", ("return x * 3", "return x * 30")),
    ]
    with apply(patches) as applied:
        assert [value(torch.jit.script(mod.plain)), value(torch.jit.script(mod.Layer()))] == [20, 30]
        assert applied.hits() == {"t#1": 1, "u#1": 1}
    assert sys.modules[mod.__name__] is mod
    assert value(torch.jit.script(mod.plain)) == 2


def test_what_is_compiled_already_is_refused_by_name(toys, refusal):
    mod = toys.load(TEXT)
    layer, plain = torch.jit.script(mod.Layer()), torch.jit.script(mod.plain)
    for target, old, new in (
        ("scripted", "y = x + 1", "y = x + 10"),
        ("plain", "y = x * 2", "y = x * 20"),
        ("Layer.scale", "return x * 3", "return x * 30"),
    ):
        told = refusal(apply, [Patch.of("t", f"{mod.__name__}:{target}", (old, new))])
        assert f"{target} is compiled by torch.jit.script already" in told
    with apply([Patch.of("t", f"{mod.__name__}:Layer.unused", ("return x", "return -x"))]):
        assert mod.Layer().unused(1) == -1
    assert [value(layer), value(plain)] == [3, 2]
