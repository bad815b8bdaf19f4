"""Every class of faults, by name, in the order of their families, and which of them can act in an engine at all."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from specdebug.base.attention_plans import PLANS
from specdebug.engine.sites import held_at
from specdebug.faults.acts import memory, ranks, tensors, timing  # noqa: F401  (each enters its classes)
from specdebug.faults.model import NEEDS, Fault, FaultClass, Need, registered

if TYPE_CHECKING:
    from specdebug.engine.config import EngineConfig

FAMILIES = ("kv", "tensors", "anywhere", "rows", "books", "streams", "lifecycle", "process", "ranks")

CLASSES: dict[str, FaultClass] = dict(sorted(registered.items(), key=lambda entry: FAMILIES.index(entry[1].family)))

HAS: dict[Need, Callable[[EngineConfig], bool]] = {
    "speculative": lambda config: config.speculative is not None,
    "tree": lambda config: config.speculative is not None and config.speculative.eagle_topk > 1,
    "weighed": lambda config: config.speculative is not None and config.speculative.drafting != "layers",
    "draft_kv": lambda config: config.speculative is not None and config.speculative.draft_kv,
    "reserve": lambda config: config.speculative is None or config.speculative.worker != "v1",
    "pages": lambda config: config.page_size > 1,
    "graphs": lambda config: config.cuda_graph.enabled,
    "guards": lambda config: config.memory.guards,
    "ragged": lambda config: "ragged" in PLANS[config.attention_backend].metadata,
    "radix": lambda config: config.radix_cache,
    **dict.fromkeys(("ranks", "transfers"), lambda config: False),  # ours has one, and hands nothing over
}


def lacking(kind: FaultClass, config: EngineConfig, also: Collection[str] = ()) -> Need | None:
    """Return the first need of a class that an engine of this configuration does not meet. ``also``: those that another
    engine meets."""
    return next((need for need in kind.needs if need not in also and not HAS[need](config)), None)


def check_fit(fault: Fault, config: EngineConfig, who: str, world: int = 1, also: Collection[str] = ()) -> None:
    """Raise ContentError at the fault's place (BadFault for one of the command line) when it cannot act.
    ``who`` has the engine, such as ``arm 'fixed'``, on ``world`` ranks; ``also`` as of :func:`lacking`."""
    kind = CLASSES[fault.name]
    if fault.rank is not None and fault.rank >= world:
        raise fault.error(f"{who} has no rank {fault.rank}; its ranks are 0 to {world - 1}")
    if (need := lacking(kind, config, also)) is not None:
        raise fault.error(f"it needs {NEEDS[need]}, which {who} does not have")
    site = fault.site or next(iter(kind.sites), "")
    if config.speculative is not None and config.speculative.drafting not in held_at(site).drafted_by:
        raise fault.error(f"it acts at {site}, which {who} never passes: something else drafts there")
    if site in kind.captured_sites and config.device != "cpu" and config.cuda_graph.enabled:
        raise fault.error(
            f"it acts at {site}, inside a captured CUDA graph that calls nothing on the host; run it with "
            "engine.cuda_graph.enabled: false, or on the CPU"
        )
