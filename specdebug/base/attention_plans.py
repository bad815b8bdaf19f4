"""Attention plans, one record each: a plan's metadata, its planner, and the library that executes it on a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specdebug.base import plugins

MetadataKind = Literal["ragged", "paged", "cascade"]
"""A class of the engine's ``attention.metadata``: packed index lists, page tables, or two passes of these."""


@dataclass(frozen=True)
class Generation:
    """One generation of a library, which is a package of its own."""

    name: str  # in messages
    package: str  # its key in ``specdebug.workers.stack.versions``
    module: str  # its import name
    distributions: tuple[str, ...]  # its names as installed, the usual one first
    capability: int | None = None  # the first number of its kernels' compute capability; None means any
    limits: str = ""  # its other needs, for a reader


@dataclass(frozen=True, kw_only=True)
class KernelLibrary:
    """A library whose kernels execute a plan on a GPU. Where it cannot, our own Triton kernels do."""

    name: str  # in messages
    package: str  # the name of what is not installed
    executor: str  # ``module:function``, a ``MakeExecutor`` of ``specdebug.engine.attention.backend``
    dtypes: tuple[str, ...] = ("bfloat16", "float16")  # that it has kernels for
    head_dims: Sequence[int]  # that it has kernels for
    generations: tuple[Generation, ...]  # newest first


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """One value of ``attention_backend``."""

    name: str
    planner: str  # ``module:class`` of its ``AttentionPlanner``
    mla_planner: str | None = None  # of models whose KV layout is ``mla``; None: ``planner`` serves them, too
    modules: tuple[str, ...]  # those that hold the planners' own lines: a fix in them exists under this plan only
    metadata: frozenset[MetadataKind]  # the kinds that the planner builds
    library: KernelLibrary | None = None  # that executes it on a GPU; None for our own kernels
    log_names: tuple[str, ...] = ()  # its other names in SGLang's logs


_ATTENTION = "specdebug.engine.attention"
_FLASHINFER = "specdebug.engine.textbook.attention.flashinfer"

FLASHINFER_LIBRARY = KernelLibrary(
    name="FlashInfer",
    package="flashinfer",
    executor="specdebug.engine.gpu.flashinfer_executor:make_flashinfer",
    head_dims=(64, 128, 256),
    generations=(Generation("FlashInfer", "flashinfer", "flashinfer", ("flashinfer-python", "flashinfer")),),
)

_FA3 = ("flash-attn-3", "flash_attn_interface")
_FA2_LIMITS = "pages of a multiple of 256 slots and eagle_topk 1"
FLASH_ATTN_LIBRARY = KernelLibrary(
    name="flash-attn",
    package="flash-attn",
    executor="specdebug.engine.gpu.flash_attn:make_flash_attn",
    head_dims=range(8, 257, 8),
    generations=(
        Generation("FlashAttention-3", "flash_attn_3", "flash_attn_interface", _FA3, capability=9),
        Generation("FlashAttention-2", "flash_attn", "flash_attn", ("flash-attn",), limits=_FA2_LIMITS),
    ),
)

FLASHINFER = AttentionPlan(
    name="flashinfer",
    planner=f"{_FLASHINFER}:FlashInferPlanner",
    mla_planner=f"{_ATTENTION}.flashinfer_mla:FlashInferMLAPlanner",
    modules=(_FLASHINFER, f"{_ATTENTION}.flashinfer_mla"),
    metadata=frozenset({"ragged"}),
    library=FLASHINFER_LIBRARY,
)

FA3 = AttentionPlan(
    name="fa3",
    planner=f"{_ATTENTION}.fa3:FlashAttention3Planner",
    modules=(f"{_ATTENTION}.fa3",),
    metadata=frozenset({"paged", "cascade"}),
    library=FLASH_ATTN_LIBRARY,
    log_names=("flashattention",),
)

TRITON = AttentionPlan(
    name="triton",
    planner=f"{_ATTENTION}.triton:TritonPlanner",
    modules=(f"{_ATTENTION}.triton", _FLASHINFER),  # its planner builds on FlashInfer's
    metadata=frozenset({"ragged"}),
)

SHIPPED = (FLASHINFER, FA3, TRITON)

PLANS = plugins.PluginRegistry(
    "attention_plans",
    "an AttentionPlan",
    lambda part: isinstance(part, AttentionPlan),
    {plan.name: plan for plan in SHIPPED},
)
