"""Classes of faults that have a meaning in SGLang: those that act between two of its scheduler's batches, on what its
pools, rows and books are like ours in, and those at sites that it passes."""

from __future__ import annotations

from typing import Any

from specdebug.errors import one_line
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.model import Fault
from specdebug.targets.sglang.sites import passed

BETWEEN_BATCHES = (
    "nan_kv_in_use",
    "inf_kv_in_use",
    "bit_flip_kv_in_use",
    "denormal_kv_in_use",
    "nan_draft_kv_in_use",
    "bit_flip_draft_kv_in_use",
    "nan_kv_unused",
    "req_to_token_swapped",
    "req_to_token_flipped",
    "req_to_token_out_of_range",
    "req_to_token_of_another",
    "slot_used_after_free",
    "generation_mismatch",
    "slots_leaked",
    "cache_lock_lost",
    "worker_killed",
    "worker_hangs",
)
NOT_AT_SITES = ("stale_padding_positions", "draft_kv_not_written", "nan_kv_after_forward", "bit_flip_kv_after_forward")
"""Classes that act at sites, but on buffers of our own engine."""


def plain_fault(fault: Fault) -> dict[str, Any]:
    """A fault as plain data, without its place in a file."""
    return {name: value for name, value in vars(fault).items() if name != "where"}


def sites_of_class(name: str) -> tuple[str, ...]:
    """The sites at which a class can act there."""
    return () if name in NOT_AT_SITES else tuple(site for site in CLASSES[name].sites if site in passed())


def acting() -> tuple[str, ...]:
    """The classes that can act there, in the order of the catalogue."""
    return tuple(name for name in CLASSES if name in BETWEEN_BATCHES or sites_of_class(name))


def refusal(fault: Fault) -> str | None:
    """Why a fault cannot act in SGLang; None if it can."""
    if fault.name not in acting():
        return f"it has no meaning in SGLang; {one_line(', '.join(acting()), 2000)} have"
    sites = sites_of_class(fault.name)
    site = fault.site or next(iter(CLASSES[fault.name].sites), None)
    if site is not None and site not in sites:
        return f"SGLang passes no site {site}; with site={sites[0]} it can act" if sites else f"no site {site}"
    return None
