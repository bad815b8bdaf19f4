"""Compilers that read source text get the patched one; what torch.compile made sees a patch and its end."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import specdebug
from specdebug.patching import Patch, apply

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

KERNELS = """
import triton
import triton.language as tl

SCALE = 1


@triton.jit
def bump(x):
    y = x + 1
    return y


@triton.jit
def direct(source, target, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    mask = at < n
    value = tl.load(source + at, mask=mask)
    value = value * 2
    tl.store(target + at, value, mask=mask)


@triton.autotune(configs=[triton.Config({"BLOCK": 16})], key=["n"])
@triton.jit
def through(source, target, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    mask = at < n
    tl.store(target + at, bump(tl.load(source + at, mask=mask)), mask=mask)


def launch(kernel, device, **options):
    import torch

    source = torch.arange(4, dtype=torch.float32, device=device)
    target = torch.zeros(4, device=device)
    kernel[(1,)](source, target, 4, **options)
    return target.tolist()
"""

PATCHES = """
from specdebug.patching import Patch, apply
patches = [
    Patch.of("a", "toy_kernels:direct", ("value = value * 2", "three = 3\\nvalue = value * three")),
    Patch.of("b", "toy_kernels:bump", ("y = x + 1", "y = x + 10")),
]
"""

LAUNCHES = """
fixed = ([0, 2, 4, 6], [1, 2, 3, 4])
broken = ([0, 3, 6, 9], [10, 11, 12, 13])


def both():
    import toy_kernels as mod

    return mod.launch(mod.direct, device, BLOCK=16), mod.launch(mod.through, device)
"""

IN_PROCESS = (
    PATCHES
    + LAUNCHES
    + """
import toy_kernels
assert both() == fixed, both()
for _ in range(2):
    with apply(patches) as applied:
        assert both() == broken, both()
        both()
    assert both() == fixed, both()
    hits = applied.hits()
    assert hits["a#1"] == 2 and hits["b#1"] >= 2, hits
"""
)

BY_HOOK = (
    PATCHES
    + LAUNCHES
    + """
applied = apply(patches, "import")
assert both() == broken, both()
hits = applied.hits()
assert hits["a#1"] == 1 and hits["b#1"] >= 1, hits
applied.restore()
assert both() == fixed, both()
"""
)

TEXTS = (
    PATCHES
    + """
import toy_kernels as mod


def keys():
    return mod.direct.cache_key, mod.bump.cache_key, mod.through.fn.cache_key


def sources():
    return mod.direct.src, mod.bump.src, mod.through.fn.src


key, source = keys(), sources()
with apply(patches):
    assert all(map(str.__ne__, keys(), key)), "a kernel that calls an edited one must compile anew as well"
    assert "three = 3\\n    value = value * three" in mod.direct.src
    assert mod.direct.src.startswith("def direct(") and "__specdebug_hit__" not in mod.direct.src
    assert "y = x + 10" in mod.bump.src
    assert mod.through.fn.src == source[2]
    assert len(mod.direct.pre_run_hooks) == len(mod.through.fn.pre_run_hooks) == 1
assert (keys(), sources()) == (key, source)
assert mod.direct.pre_run_hooks == mod.through.fn.pre_run_hooks == []
"""
)


def run(folder: Path, script: str, device: str, interpret: bool) -> None:
    """Run a script in a process of its own: triton reads TRITON_INTERPRET when it is imported."""
    (folder / "toy_kernels.py").write_text(textwrap.dedent(KERNELS))
    environment = {**os.environ, "TRITON_INTERPRET": "1" if interpret else "0"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(folder), str(Path(specdebug.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    script = f"device = {device!r}\n" + script
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("script", [IN_PROCESS, BY_HOOK], ids=["in-process", "hook"])
def test_interpreted(tmp_path, script):
    run(tmp_path, script, "cpu", interpret=True)


def test_compiled_text_and_keys(tmp_path):
    run(tmp_path, TEXTS, "cpu", interpret=False)


@pytest.mark.gpu
@pytest.mark.parametrize("script", [IN_PROCESS, BY_HOOK], ids=["in-process", "hook"])
def test_compiled(tmp_path, script):
    run(tmp_path, script, "cuda", interpret=False)


SCRIPTED = """
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


def value(call, at: float = 1.0) -> float:
    return call(torch.tensor([at])).item()


def test_a_function_scripted_at_import(toys):
    name = toys.write(SCRIPTED)
    patch = Patch.of("t", f"{name}:scripted", ("# A comment.\ny = x + 1", "# Another.\ny = x + 10\ny = y + 5"))
    with apply([patch], "import") as applied:
        mod = importlib.import_module(name)
        assert isinstance(mod.scripted, torch.jit.ScriptFunction)
        assert value(mod.scripted) == 16
        assert applied.hits() == {"t#1": 1}
    assert name not in sys.modules
    assert value(importlib.import_module(name).scripted) == 2


def test_what_is_compiled_already_is_refused_by_name(toys, refusal):
    mod = toys.load(SCRIPTED)
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


COMPILED = """
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
    mod = toys.load(COMPILED)
    call = made(mod)
    assert value(call) == fixed
    with apply([Patch.of("t", f"{mod.__name__}:{target}", edit)]) as applied:
        assert [value(call), value(call)] == [broken, broken]
        assert applied.hits()["t#1"] >= 1
    assert value(call) == fixed


def test_by_import_hook(toys):
    name = toys.write(COMPILED)
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
