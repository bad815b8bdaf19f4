"""A finding of a probe, and the one line of text in which an assertion says it.

Only the line survives an assertion, amid other text on a GPU; ``parse_message`` finds it there and reads it back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from .kinds import KINDS, PHRASES

_NUMBER = r"-?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|inf)|nan"
_LINE = re.compile(
    rf"async probe (?P<kind>{'|'.join(KINDS)})@(?P<site>[^\s:`'\"]+)"
    rf"(?:: value (?P<bound>(?:{'|'.join(PHRASES)}) (?:{_NUMBER})))?"
    rf"(?: \[step (?P<step>-?\d+), (?P<count>\d+) bad, first (?P<value>{_NUMBER}) at (?P<index>\d+)\])?"
)


@dataclass(frozen=True)
class ProbeFinding:
    """One probe's finding in one tensor. Details are None when only the text of an assertion is known.

    ``kind``: nan, inf, oob or page_aligned. ``step``: as ``set_step`` last said. ``value``: the first bad element (for
    a relative oob its difference from ``relative_to``), ``index``: its place, flat (row-major), whatever the strides.
    ``count``: of bad elements. ``bound``: broken by the value, as in ``not below 2048`` or ``not a multiple of 16``.
    """

    site: str
    kind: str
    step: int | None = None
    index: int | None = None
    value: int | float | None = None
    count: int | None = None
    bound: str | None = None

    @property
    def signature(self) -> str:
        """``kind@site``."""
        return f"{self.kind}@{self.site}"

    def message(self) -> str:
        """The line; ``parse_message`` is its inverse."""
        text = f"async probe {self.signature}"
        if self.bound is not None:
            text += f": value {self.bound}"
        if self.count is not None:
            text += f" [step {self.step}, {self.count} bad, first {self.value!r} at {self.index}]"
        return text


def parse_message(text: str) -> ProbeFinding | None:
    """The first finding that ``text`` (an exception's or a driver's output) tells of, if any."""
    found = _LINE.search(text)
    if found is None:
        return None
    finding = ProbeFinding(found["site"], found["kind"], bound=found["bound"])
    if found["count"] is None:
        return finding
    step, index, count = (int(found[name]) for name in ("step", "index", "count"))
    value = int(found["value"]) if re.fullmatch(r"-?\d+", found["value"]) else float(found["value"])
    return replace(finding, step=step, index=index, value=value, count=count)
