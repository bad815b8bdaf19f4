"""Classes of faults that have a meaning in vLLM: those of its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdebug.faults.catalogue import CLASSES
from specdebug.targets.sglang.faults import OF_RANKS, SglangFaults, ranks_for


class VllmFaults(SglangFaults):
    """The faults that can act in vLLM."""

    engine = "vLLM"

    def options(self, name: str, site: str | None) -> Mapping[str, Any]:
        """Engine options without which a class cannot act."""
        chains = {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 1}
        return {"page_size": 32, "speculative": chains, **ranks_for(name)}

    def sites(self, name: str) -> tuple[str, ...] | None:
        """Empty for a class that can act, none of which acts at a site; else None."""
        return () if name in OF_RANKS and "transfers" not in CLASSES[name].needs else None
