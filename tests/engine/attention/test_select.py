"""A plan's executor follows from the device, the type and what is installed."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.base.attention_plans import SHIPPED
from specdebug.base.errors import InvalidOption
from specdebug.engine import progress
from specdebug.engine.attention import backend as select
from specdebug.engine.attention.backend import TritonBackend
from specdebug.engine.config import EngineConfig
from specdebug.engine.gpu import flash_attn as library
from specdebug.engine.gpu.flash_attn import FlashAttnExecutor
from tests.engine.attention.fake_flash_attn import Interface3, Package2

CUDA = torch.device("cuda")


@dataclass(frozen=True)
class Geometry:
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    value_dim: int = 64
    rotary_dim: int = 64
    softmax_scale: float = 0.125
    kv_layout: str = "mha"


def config(plan: str) -> EngineConfig:
    return EngineConfig.from_dict({"attention_backend": plan})


PLANS = [plan.name for plan in SHIPPED]


def test_models_of_one_geometry_share_a_backend() -> None:
    models = [Geometry(), Geometry(num_heads=8), Geometry()]
    first, second, third = select.make_backends(config("triton"), models, torch.bfloat16, CUDA)
    assert isinstance(first, TritonBackend)
    assert first is third
    assert first is not second


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("head_dim", [16, 80, 96, 512])
def test_heads_that_no_kernel_has_are_refused_with_the_key_to_change(plan: str, head_dim: int) -> None:
    with pytest.raises(InvalidOption, match=rf"engine\.device: no kernels for this model's head_dim {head_dim} "):
        select.make_backends(config(plan), [Geometry(head_dim=head_dim)], torch.bfloat16, CUDA)


def latent(rank: int, part: int) -> Geometry:
    dims = {"head_dim": rank + part, "value_dim": rank, "rotary_dim": part}
    return Geometry(num_heads=16, num_kv_heads=1, **dims, kv_layout="mla")


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    ("rank", "part", "problem"), [(48, 32, "kv_lora_rank 48 (32, 64,"), (512, 8, "qk_rope_head_dim 8 (16,")]
)
def test_rows_that_no_kernel_has_are_refused_by_the_names_of_their_config(
    plan: str, rank: int, part: int, problem: str
) -> None:
    with pytest.raises(InvalidOption, match=re.escape(f"engine.device: no kernels for this model's {problem}")):
        select.make_backends(config(plan), [latent(rank, part)], torch.bfloat16, CUDA)


@pytest.mark.parametrize("plan", PLANS)
def test_trees_that_no_kernel_has_are_refused_with_the_key_to_change(plan: str) -> None:
    """The reference has them."""
    tree = {"num_steps": 4, "eagle_topk": 20, "num_draft_tokens": 1025}
    large = EngineConfig.from_dict({"attention_backend": plan, "speculative": tree})
    select.make_backends(large, [Geometry()], torch.bfloat16, torch.device("cpu"))
    with pytest.raises(InvalidOption, match=r"engine\.speculative\.num_draft_tokens: .*1024 nodes, not 1025"):
        select.make_backends(large, [Geometry()], torch.bfloat16, CUDA)


@pytest.fixture
def heard() -> Iterator[list[str]]:
    reports: list[str] = []
    forget = progress.listen(reports.append)
    yield reports
    forget()


@pytest.fixture
def flash_attn(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs stand-ins of the named modules on a GPU of the given capability."""

    def install(*modules: str, major: int = 9, broken: bool = False) -> None:
        def import_module(name: str) -> Any:
            assert name in modules
            if broken:
                raise OSError("undefined symbol\nand more")
            return Interface3() if name == "flash_attn_interface" else Package2()

        library._load.cache_clear()
        spec = SimpleNamespace(find_spec=lambda name: object() if name in modules else None)
        importer = SimpleNamespace(util=spec, import_module=import_module)
        monkeypatch.setattr(library, "importlib", importer)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))

    yield install
    library._load.cache_clear()


def chosen(dtype: torch.dtype = torch.bfloat16, models: int = 1, **options: Any) -> str:
    """The kernels of the fa3 plan's backend, ``triton`` for our own."""
    made = EngineConfig.from_dict({"attention_backend": "fa3", **options})
    heads: list[Any] = [Geometry(num_heads=4 * (n + 1)) for n in range(models)]
    backend = select.make_backends(made, heads, dtype, CUDA)[-1]
    if isinstance(backend, TritonBackend):
        return "triton"
    assert isinstance(backend, FlashAttnExecutor)
    return backend._kernels.name


TREE = {"num_steps": 2, "eagle_topk": 2, "num_draft_tokens": 4}


def test_flash_attn_executes_its_plan_where_it_is_installed(flash_attn: Callable[..., None], heard: list[str]) -> None:
    flash_attn("flash_attn_interface", "flash_attn")
    assert chosen(page_size=16, speculative=TREE) == "FlashAttention-3"
    flash_attn("flash_attn_interface", "flash_attn", major=8)
    assert chosen(page_size=256) == "FlashAttention-2"
    flash_attn()
    assert chosen() == "triton"
    assert heard == []


def test_triton_stands_in_for_flash_attn_and_says_why_once(flash_attn: Callable[..., None], heard: list[str]) -> None:
    flash_attn("flash_attn_interface")
    assert chosen(torch.float32, models=3) == "triton"
    assert heard == [
        "FlashAttention-3 computes in bfloat16 or float16, not in float32: Triton kernels execute the fa3 plan"
    ]
    flash_attn("flash_attn")
    assert [chosen(page_size=16), chosen(page_size=256, speculative=TREE)] == ["triton", "triton"]
    assert "not of page_size 16" in heard[1]
    assert "eagle_topk must be 1, not 2" in heard[2]
    flash_attn("flash_attn_interface", broken=True)
    assert chosen() == "triton"
    assert "cannot be imported (undefined symbol): Triton" in heard[3]
    flash_attn("flash_attn_interface", major=12)
    assert chosen() == "triton"
    assert "capability 9.x, not 12.x" in heard[4]


@pytest.mark.parametrize(("rank", "part"), [(512, 64), (64, 32)])
def test_triton_executes_every_plan_of_latents_and_says_why(
    rank: int, part: int, heard: list[str], flash_attn: Callable[..., None]
) -> None:
    flash_attn("flash_attn_interface")
    for plan in PLANS:
        (backend,) = select.make_backends(config(plan), [latent(rank, part)], torch.bfloat16, CUDA)
        assert isinstance(backend, TritonBackend)
    assert [said.rpartition(": ")[2] for said in heard] == [
        "Triton kernels execute the flashinfer plan",
        "Triton kernels execute the fa3 plan",
    ]
    why = "not installed" if (rank, part) == (512, 64) else "512 and 64 columns, not 64 and 32"
    assert why in heard[0]


@pytest.mark.parametrize(
    ("dtype", "installed", "said"), [(torch.float32, True, "not in float32"), (torch.bfloat16, False, "not installed")]
)
def test_triton_stands_in_for_flashinfer_and_says_why(
    dtype: torch.dtype, installed: bool, said: str, heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if installed else None)
    (backend,) = select.make_backends(config("flashinfer"), [Geometry()], dtype, CUDA)
    assert isinstance(backend, TritonBackend)
    assert len(heard) == 1
    assert said in heard[0]
