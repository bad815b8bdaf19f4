"""What a probe found, and the one line of text an assertion says it in.

The line is all that survives an assertion (on a GPU it is printed by the driver, amid other text), so it can
be read back: ``parse_message`` finds it in any text.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from .kinds import KINDS, PHRASES

_NUMBER = r"-?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|inf)|nan"
_LINE = re.compile(
    rf"async probe (?P<kind>{'|'.join(KINDS)})@(?P<site>[^\s:`'\"]+)"
    rf"(?:: value (?P<bound>(?:{'|'.join(PHRASES)}) (?:{_NUMBER})))?"
    rf"(?: \[step (?P<step>-?\d+), (?P<count>\d+) bad, first (?P<value>{_NUMBER}) at (?P<index>\d+)\])?"
)


@dataclass(frozen=True)
class ProbeFinding:
    """One probe's finding in one tensor. Details are None when only the text of an assertion is known."""

    site: str
    kind: str
    """One of ``KINDS``."""
    step: int | None = None
    """What ``set_step`` last said."""
    index: int | None = None
    """Flat (row-major) index of the first bad element; the tensor's own strides do not matter."""
    value: int | float | None = None
    """The first bad element; for a relative oob its difference from ``relative_to``."""
    count: int | None = None
    """How many elements are bad."""
    bound: str | None = None
    """What the value is that it should not be: ``below 0``, ``not below 2048``, ``not a multiple of 16``."""

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
    if found["count"] is None:
        return ProbeFinding(found["site"], found["kind"], bound=found["bound"])
    return ProbeFinding(
        site=found["site"],
        kind=found["kind"],
        step=int(found["step"]),
        index=int(found["index"]),
        value=_number(found["value"]),
        count=int(found["count"]),
        bound=found["bound"],
    )


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return math.nan if text == "nan" else float(text)
