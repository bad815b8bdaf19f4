"""What passes the sites of a release with a mutant, held against the sound engine's tape as it passes: in the worker,
so that nothing but the first difference has to be kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from specdebug.diverge.align import is_where
from specdebug.diverge.recording import BATCH, PADDING
from specdebug.diverge.rounding import difference
from specdebug.diverge.tape import TapedCall, TapedStep, TapeRecording
from specdebug.targets.inside.tape import array_of

SITES = 2
"""Sites with a difference beyond rounding after which nothing more is looked at."""


class HeldRecords:
    """Takes a tape's records. What a request's rows hold counts; other slots for the same tokens are no other result,
    and rows that pad a batch are no request's: what they hold nothing decides.

    Args:
        sound: the sound engine's.
        allowed: by a site, how far two values of a row may lie apart, as a part of the largest.

    Attributes:
        failed: nothing more is compared.
        first: the first difference beyond rounding, or of rounding where there is no other: kind, step, site, request
            and text.
        sites: those with a difference beyond rounding.
    """

    def __init__(self, sound: TapeRecording, allowed: Callable[[str], float]) -> None:
        self._sound, self._allowed = sound, allowed
        self._steps: Iterator[TapedStep] = iter(sound.taped)
        self._step: TapedStep | None = None
        self._calls: Iterator[TapedCall] = iter(())
        self.failed = False
        self.first: tuple[str, int, str, str | None, str] | None = None
        self.sites: list[str] = []

    def write(self, facts: dict[str, Any], tensor: Tensor | None) -> None:
        """Compare a record with the sound engine's next."""
        if self.failed:
            return
        if "batch" in facts:
            self._batch(facts)
        elif tensor is not None:
            self._site(str(facts["site"]), tensor)

    def flush(self) -> None:
        """Nothing is kept."""

    def end(self) -> None:
        """The run is over."""
        if not self.failed:
            self._missing("nothing more")
        if not self.failed and (missing := next(self._steps, None)) is not None:
            self._part("end", missing.number, "", None, f"only the sound engine has a batch {missing.number}")

    def _batch(self, facts: dict[str, Any]) -> None:
        self._missing("nothing more")
        step = self._step = next(self._steps, None)
        asked = facts["kind"], tuple(facts["rids"]), tuple(facts["lens"])
        if step is None:
            self._part("end", facts["batch"], "", None, f"only the mutant has a batch {facts['batch']}")
        elif (step.kind, step.rids, step.lens) != asked:
            text = f"{step.kind} of {', '.join(step.rids)}, with the mutant {asked[0]} of {', '.join(asked[1])}"
            self._part("schedule", step.number, "", None, text)
        else:
            self._calls = iter(step.calls)

    def _missing(self, instead: str) -> None:
        """A site that the sound engine passes next in this batch is not passed."""
        if self._step is not None and (call := next(self._calls, None)) is not None:
            text = f"the sound engine passes {call.site}, the mutant {instead}"
            self._part("schedule", self._step.number, call.site, None, text)

    def _site(self, site: str, tensor: Tensor) -> None:
        step, call = self._step, next(self._calls, None)
        assert step is not None
        shape = tuple(tensor.shape) or (1,)
        if call is None or call.site != site:
            there = "nothing more" if call is None else call.site
            self._part("schedule", step.number, site, None, f"the sound engine passes {there}, the mutant {site}")
        elif call.shape != shape:
            text = f"{list(call.shape)} in the sound engine, {list(shape)} with the mutant"
            self._part("shape", step.number, site, None, text)
        elif not is_where(site):
            self._values(step, call, tensor)

    def _values(self, step: TapedStep, call: TapedCall, tensor: Tensor) -> None:
        sound, other = self._sound.values(call), array_of(tensor)
        if sound.tobytes() == other.tobytes():
            return
        for owner, start, stop in self._sound.batch(step).segments(call.site, call.shape[0]):
            found = None if owner == PADDING else difference(sound[start:stop], other[start:stop])
            if found is None:
                continue
            whose = None if owner == BATCH else step.rids[owner]
            text = f"{found.left} in the sound engine, {found.right} with the mutant"
            if found.gap <= self._allowed(call.site):
                self.first = self.first or ("rounding", step.number, call.site, whose, text)
            else:
                self._part("value", step.number, call.site, whose, text)
                return

    def _part(self, what: str, step: int, site: str, whose: str | None, text: str) -> None:
        if not self.sites:
            self.first = what, step, site, whose, text
        if site not in self.sites:
            self.sites.append(site)
        self.failed = what != "value" or len(self.sites) >= SITES
