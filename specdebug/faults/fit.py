"""Refuse a fault that cannot act in an engine at all, before anything is run."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from specdebug.attention_plans import PLANS
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.model import NEEDS, Fault, Need

if TYPE_CHECKING:
    from specdebug.engine.config import EngineConfig

OF_LAYERS = "mtp_*"
OF_THE_LOOP = (
    "draft.forward.*", "draft.organize.*", "draft.select.*", "draft.plan.*", "draft.out_cache_loc", "draft.prefix_tail",
    "draft_graph.*", "draft_extend_graph.*", "draft_extend.topk_p",
)  # fmt: skip
"""Sites that only one way of drafting passes: next-n layers, or a head's draft loop and its graphs."""


def _loops(config: EngineConfig) -> bool:
    return config.speculative is not None and config.speculative.algorithm != "MTP"


HAS: dict[Need, Callable[[EngineConfig], bool]] = {
    "speculative": lambda config: config.speculative is not None,
    "loop": _loops,
    "tree": lambda config: config.speculative is not None and config.speculative.eagle_topk > 1,
    "pages": lambda config: config.page_size > 1,
    "graphs": lambda config: config.cuda_graph.enabled,
    "guards": lambda config: config.memory.guards,
    "ragged": lambda config: "ragged" in PLANS[config.attention_backend].metadata,
    "radix": lambda config: config.radix_cache,
}


def check_fit(fault: Fault, config: EngineConfig, who: str) -> None:
    """Raise ContentError at the fault's place (BadFault for one of the command line) when it cannot act.
    ``who`` has the engine, such as ``arm 'fixed'``."""
    kind = CLASSES[fault.name]
    for need in kind.needs:
        if not HAS[need](config):
            raise fault.error(f"it needs {NEEDS[need]}, which {who} does not have")
    site = fault.site or next(iter(kind.sites), "")
    others = OF_THE_LOOP if config.speculative is not None and not _loops(config) else (OF_LAYERS,)
    if any(fnmatchcase(site, pattern) for pattern in others):
        raise fault.error(f"it acts at {site}, which {who} never passes: something else drafts there")
    if site in kind.captured_sites and config.device != "cpu" and config.cuda_graph.enabled:
        raise fault.error(
            f"it acts at {site}, inside a captured CUDA graph that calls nothing on the host; run it with "
            "engine.cuda_graph.enabled: false, or on the CPU"
        )
