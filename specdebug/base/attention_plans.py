"""Attention plans: a plan's metadata, the planner that builds it, and the library that executes it on a GPU.

Each plan is one record, and :data:`PLANS` lists them. All that names plans derives from that list: the options of the
engine and of the command line, the fixes and faults of a plan, and a machine's report of what it would execute.

Code is named here as ``module:name`` and imported where it is used: this module needs neither torch nor the engine, so
that a parent process and a fork server can read it, and a worker can still revert fixes before it imports the engine.

Another package brings a plan through an entry point of the group ``specdebug.attention_plans``, which has the plan's
name and leads to an :class:`AttentionPlan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specdebug.base import plugins

MetadataKind = Literal["ragged", "paged", "cascade"]
"""A class of the engine's ``attention.metadata``: packed index lists, page tables, or two passes of these."""


@dataclass(frozen=True, kw_only=True)
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
    dtypes: tuple[str, ...]  # that it has kernels for
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
_GPU = "specdebug.engine.gpu"

FLASHINFER_LIBRARY = KernelLibrary(
    name="FlashInfer",
    package="flashinfer",
    executor=f"{_GPU}.flashinfer_executor:make_flashinfer",
    dtypes=("bfloat16", "float16"),
    head_dims=(64, 128, 256),
    generations=(
        Generation(
            name="FlashInfer",
            package="flashinfer",
            module="flashinfer",
            distributions=("flashinfer-python", "flashinfer"),
        ),
    ),
)

FLASH_ATTN_LIBRARY = KernelLibrary(
    name="flash-attn",
    package="flash-attn",
    executor=f"{_GPU}.flash_attn:make_flash_attn",
    dtypes=("bfloat16", "float16"),
    head_dims=range(8, 257, 8),
    generations=(
        Generation(
            name="FlashAttention-3",
            package="flash_attn_3",
            module="flash_attn_interface",
            distributions=("flash-attn-3", "flash_attn_interface"),
            capability=9,
        ),
        Generation(
            name="FlashAttention-2",
            package="flash_attn",
            module="flash_attn",
            distributions=("flash-attn",),
            limits="pages of a multiple of 256 slots and eagle_topk 1",
        ),
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
