"""Triton kernels: the text they compile or interpret is the patched one, and their launches are counted.

Needs triton (CUDA builds of torch bring it). Without a GPU the kernels run in triton's interpreter, and
what a GPU would compile is checked by source and cache key only; the test marked ``gpu`` launches
compiled kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import specdebug

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

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
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("script", [IN_PROCESS, BY_HOOK], ids=["in-process", "hook"])
def test_compiled(tmp_path, script):
    run(tmp_path, script, "cuda", interpret=False)
