"""Which arguments of which kernels are held, and what a finding does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from specdebug.kernel_memory.finding import KINDS

OFF = "off"
RECORD = "record"
ASSERT = "assert"


@dataclass(frozen=True)
class KernelRule:
    """A mode for the arguments that a glob covers, by ``kernel.argument``; ``*`` matches dots too."""

    glob: str
    mode: str = RECORD
    kinds: tuple[str, ...] = KINDS

    def covers(self, site: str, kind: str) -> bool:
        """Return True if the rule speaks of this kind of finding at this site."""
        return kind in self.kinds and fnmatchcase(site, self.glob)


def mode_of(rules: Sequence[KernelRule], site: str, kind: str) -> str:
    """The mode of a site: of the rules that cover it the last one decides; none: off."""
    covering = [rule.mode for rule in rules if rule.covers(site, kind)]
    return covering[-1] if covering else OFF
