"""Attention plans: whose metadata is built, by which planner, and which library's kernels execute it on a GPU.

Each plan is one record, and :data:`PLANS` lists them. Everything that names plans derives from that list: the engine's
option and the command line's, which fixes and faults exist under a plan, and what a machine says it would execute.

Code is named here as ``module:name`` and imported where it is used. This module needs neither torch nor the engine, so
that a parent process and a fork server can read it, and a worker can still revert fixes before it imports the engine.

A package of its own brings a plan through an entry point of the group ``specdebug.attention_plans``. The entry point
has the plan's name and leads to an :class:`AttentionPlan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specdebug import plugins

MetadataKind = Literal["ragged", "paged", "cascade"]
"""The classes of ``specdebug.engine.attention.metadata``: packed index lists, page tables, and two passes of these."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One generation of a library, which is a package of its own.

    Attributes:
        name: as messages have it.
        package: its key in what ``specdebug.workers.stack.versions`` reports.
        module: as it is imported.
        distributions: as it is installed; the usual one comes first.
        capability: the first number of the compute capability that its kernels are for; None means any.
        limits: what else it needs, for a reader; empty where it needs nothing else.
    """

    name: str
    package: str
    module: str
    distributions: tuple[str, ...]
    capability: int | None = None
    limits: str = ""


@dataclass(frozen=True, kw_only=True)
class KernelLibrary:
    """A library whose kernels execute a plan on a GPU. Where it cannot, our own Triton kernels do.

    Attributes:
        name: as messages have it.
        package: what one says is not installed.
        executor: ``module:function`` that makes the backend for a model, as ``MakeExecutor`` of
            ``specdebug.engine.attention.backend`` says.
        dtypes: of the keys and queries that it has kernels for.
        head_dims: sizes of a head that it has kernels for.
        generations: newest first.
    """

    name: str
    package: str
    executor: str
    dtypes: tuple[str, ...]
    head_dims: Sequence[int]
    generations: tuple[Generation, ...]


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """One value of ``attention_backend``.

    Attributes:
        planner: ``module:class`` of its ``AttentionPlanner``.
        modules: those that hold the planner's own lines. A fix in them exists under this plan only.
        metadata: the kinds that the planner builds.
        library: that executes it on a GPU; None where our own kernels are meant to.
        log_names: what SGLang's logs call it besides its name.
    """

    name: str
    planner: str
    modules: tuple[str, ...]
    metadata: frozenset[MetadataKind]
    library: KernelLibrary | None = None
    log_names: tuple[str, ...] = ()


_ATTENTION = "specdebug.engine.attention"

FLASHINFER_LIBRARY = KernelLibrary(
    name="FlashInfer",
    package="flashinfer",
    executor=f"{_ATTENTION}.flashinfer_executor:make_flashinfer",
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
    executor=f"{_ATTENTION}.flash_attn_executor:make_flash_attn",
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
    planner=f"{_ATTENTION}.flashinfer:FlashInferPlanner",
    modules=(f"{_ATTENTION}.flashinfer",),
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
    modules=(f"{_ATTENTION}.triton", *FLASHINFER.modules),  # its planner builds on FlashInfer's
    metadata=frozenset({"ragged"}),
)

SHIPPED = (FLASHINFER, FA3, TRITON)


PLANS = plugins.PluginRegistry(
    "attention_plans",
    "an AttentionPlan",
    lambda part: isinstance(part, AttentionPlan),
    {plan.name: plan for plan in SHIPPED},
)
