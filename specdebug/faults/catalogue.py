"""Every class of faults, by name, in the order of their families."""

from __future__ import annotations

from specdebug.faults.acts import anywhere, books, kv, lifecycle, process, rows, sites, streams
from specdebug.faults.model import FaultClass
from specdebug.faults.shot import registered

FAMILIES = tuple(module.FAMILY for module in (kv, sites, anywhere, rows, books, streams, lifecycle, process))

CLASSES: dict[str, FaultClass] = dict(sorted(registered.items(), key=lambda entry: FAMILIES.index(entry[1].family)))
