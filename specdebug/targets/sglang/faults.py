"""Classes of faults that have a meaning in SGLang: those that act between two of its scheduler's batches, on what its
pools, rows and books are like ours in, those at sites that it passes, and those of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdebug.base.errors import one_line
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.model import Fault
from specdebug.targets.installs.release import order
from specdebug.targets.ranks.layout import PD
from specdebug.targets.sglang.sites import passed

BETWEEN_BATCHES = (
    *("nan_kv_in_use", "inf_kv_in_use", "bit_flip_kv_in_use", "denormal_kv_in_use", "nan_draft_kv_in_use"),
    *("bit_flip_draft_kv_in_use", "nan_kv_unused", "req_to_token_swapped", "req_to_token_flipped"),
    *("req_to_token_out_of_range", "req_to_token_of_another", "slot_used_after_free", "generation_mismatch"),
    *("slots_leaked", "cache_lock_lost", "worker_killed", "worker_hangs"),
)
OF_RANKS = tuple(name for name, kind in CLASSES.items() if kind.point == "ranks")
"""Classes that act on processes which compute together, and on what they hand over."""
NOT_AT_SITES = (
    *("stale_padding_positions", "draft_kv_not_written", "nan_kv_after_forward", "bit_flip_kv_after_forward"),
    *("poisoned_padding_rows", "stale_padding_rows"),
)
"""Classes that act at sites, but on buffers of our own engine, or on padding, which SGLang's probes are not given."""
NOT_READ = dict.fromkeys(("tied_draft_logits", "one_hot_draft_logits"), frozenset({"draft_extend.logits"}))
"""Sites at which a class does no damage: of a row for each node of the trees the worker reads one a request."""
LACKED: dict[str, tuple[str, str]] = {
    "cache_lock_lost": ("0.5.23", "its radix tree is in Rust: no node there counts its locks in Python")
}
"""Classes that act on what releases have not, from the first that it is so in, and why."""
AT_CHUNKS = "draft_prefill.input_ids"
"""Passed behind a chunk that is not the prompt's last, and nowhere else."""


class SglangFaults:
    """The faults that can act in a release of SGLang; in any that is known, where it is None. ``busy``: the steps of a
    small scenario in which several requests of ``new_tokens`` decode."""

    engine = "SGLang"

    def __init__(self, release: str | None = None) -> None:
        self._release = release

    busy = (8, 40)
    new_tokens = 24  # a batch is begun before the last one's tokens are known: of a request that ends it is dropped

    def options(self, name: str, site: str | None) -> Mapping[str, Any]:
        """Engine options without which a class cannot act, at a site or at the first of its own."""
        at = site or next(iter(CLASSES[name].sites), None)
        chunks = {"chunked_prefill_size": 16} if at == AT_CHUNKS else {}
        return {"attention_backend": "fa3", **chunks, **ranks_for(name)}  # no other plan has trees on pages

    def lacks(self, name: str) -> str | None:
        """Why a class that has a meaning in SGLang cannot act in this release; None if it can."""
        first, why = LACKED.get(name, (None, ""))
        return None if first is None or self._release is None or order(self._release) < order(first) else why

    def sites(self, name: str) -> tuple[str, ...] | None:
        """The sites at which a class can act; empty for one that acts at none, None for one that cannot act."""
        if name in NOT_AT_SITES or self.lacks(name) is not None:
            return None
        if name in BETWEEN_BATCHES or name in OF_RANKS:
            return ()
        there = passed() - NOT_READ.get(name, frozenset())
        return tuple(site for site in CLASSES[name].sites if site in there) or None

    def refusal(self, fault: Fault) -> str | None:
        """Why a fault cannot act; None if it can."""
        if lacked := self.lacks(fault.name):
            return f"it cannot act in {self.engine} {self._release}: {lacked}"
        sites = self.sites(fault.name)
        if sites is None:
            acting = ", ".join(name for name in CLASSES if self.sites(name) is not None)
            return f"it has no meaning in {self.engine}; {one_line(acting, 2000)} have"
        site = fault.site or next(iter(CLASSES[fault.name].sites), None)
        if site is not None and site not in sites:
            return f"SGLang passes no site {site}; with site={sites[0]} it can act" if sites else f"no site {site}"
        return None


def ranks_for(name: str) -> Mapping[str, Any]:
    """Engine options of the ranks without which a class cannot act."""
    needs = CLASSES[name].needs
    return {"disaggregation": PD} if "transfers" in needs else {"tp": 2} if "ranks" in needs else {}
