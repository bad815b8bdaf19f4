"""A plan's executor follows from the device, the type and what is installed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from specdebug.engine import progress
from specdebug.engine.attention import select
from specdebug.engine.attention.backend import TorchBackend, TritonBackend
from specdebug.engine.config import EngineConfig, InvalidOption

CUDA = torch.device("cuda")


@dataclass(frozen=True)
class Geometry:
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64


def config(plan: str) -> EngineConfig:
    return EngineConfig.from_dict({"attention_backend": plan})


@pytest.mark.parametrize("plan", ["flashinfer", "fa3", "triton"])
def test_a_cpu_runs_the_reference(plan: str) -> None:
    backends = select.make_backends(config(plan), [Geometry()], torch.bfloat16, torch.device("cpu"))
    assert [type(backend) for backend in backends] == [TorchBackend]


def test_models_of_one_geometry_share_a_backend() -> None:
    models = [Geometry(), Geometry(num_heads=8), Geometry()]
    first, second, third = select.make_backends(config("triton"), models, torch.bfloat16, CUDA)
    assert isinstance(first, TritonBackend)
    assert first is third
    assert first is not second


def test_heads_that_no_kernel_has_are_refused_with_the_key_to_change() -> None:
    with pytest.raises(InvalidOption, match=r"engine\.device: no kernels for this model's head_dim 80"):
        select.make_backends(config("triton"), [Geometry(head_dim=80)], torch.bfloat16, CUDA)


@pytest.mark.parametrize(
    ("dtype", "installed", "said"),
    [(torch.float32, True, "not in float32"), (torch.bfloat16, False, "not installed")],
)
def test_triton_stands_in_for_flashinfer_and_says_why(
    dtype: torch.dtype, installed: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if installed else None)
    heard: list[str] = []
    forget = progress.listen(heard.append)
    try:
        (backend,) = select.make_backends(config("flashinfer"), [Geometry()], dtype, CUDA)
    finally:
        forget()
    assert isinstance(backend, TritonBackend)
    assert len(heard) == 1
    assert said in heard[0]
