"""A fault: a class, an address, and what an injection leaves in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from specdebug.base.attention_plans import SHIPPED
from specdebug.base.errors import ContentError, SpecDebugError, Where
from specdebug.engine.sites import held_at

if TYPE_CHECKING:
    from specdebug.faults.shot import Shot

Point = Literal["before", "after", "site", "lengths", "readback", "move", "free", "attach", "release"]
"""When a class can act: before or after a step, when a site is reached, or when the engine calls what is wrapped."""

Effect = Literal["corrupts", "benign", "kills"]
"""The consequence in a sound engine: damage that must be seen, nothing, or the worker's end."""

Need = Literal["speculative", "tree", "weighed", "draft_kv", "reserve", "pages", "graphs", "guards", "ragged", "radix"]
"""A property that an engine must have for a class to act; see :data:`NEEDS`."""

NEEDS: Mapping[Need, str] = {
    "speculative": "speculation",
    "tree": "speculation with eagle_topk above 1",
    "weighed": "drafts that are weighed by their probabilities (algorithm MTP takes the best token of each layer)",
    "draft_kv": "a draft with KV of its own",
    "reserve": "slots that requests hold in reserve (not speculative.worker: v1)",
    "pages": "page_size above 1",
    "graphs": "graph runners (cuda_graph.enabled)",
    "guards": "memory.guards",
    "ragged": f"the {' or '.join(plan.name for plan in SHIPPED if 'ragged' in plan.metadata)} plan",
    "radix": "the radix cache",
}


class BadFault(SpecDebugError):
    """``--fault`` names no class, or addresses one by a key it does not know."""


Steps = tuple[int, int]
"""First and last step of a window, both included."""


@dataclass(frozen=True)
class Fault:
    """One fault as declared. None: the place, step or request that comes first.

    ``row``: place of the request in its batch. ``probability``: of each opportunity. ``times``: injections at most.
    ``seed``: of what is drawn for it, by default the run's.
    """

    name: str
    step: Steps | None = None
    request: str | None = None
    row: int | None = None
    site: str | None = None
    probability: float = 1.0
    times: int = 1
    seed: int | None = None
    where: Where | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """The fault in a scenario's grammar; what is as by default is left out."""
        plain: dict[str, Any] = {"fault": self.name}
        if self.step is not None:
            plain["step"] = self.step[0] if self.step[0] == self.step[1] else list(self.step)
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in ("name", "step", "where") and value != each.default:
                plain[each.name] = value
        return plain

    def error(self, message: str) -> SpecDebugError:
        """An error about this fault, at its place in the file if it has one."""
        if self.where is None:
            return BadFault(f"--fault {self.name}: {message}")
        return ContentError(f"fault {self.name}: {message}", self.where)

    def __str__(self) -> str:
        """As on the command line: ``nan_kv_in_use:step=3,request=g0.1``."""
        plain = self.to_dict()
        name = plain.pop("fault")
        if self.step is not None and self.step[0] != self.step[1]:
            plain["step"] = f"{self.step[0]}..{self.step[1]}"
        address = ",".join(f"{key}={value}" for key, value in plain.items())
        return f"{name}:{address}" if address else name


@dataclass(frozen=True)
class FaultClass:
    """One kind of damage. ``sites``: it can act there, by default at the first; empty for a class that acts elsewhere.

    ``addressed_by``: keys of a declaration that mean something to it, beside those that always do.
    """

    name: str
    family: str
    summary: str
    point: Point
    effect: Effect
    act: Callable[[Shot], None]
    needs: tuple[Need, ...] = ()
    sites: tuple[str, ...] = ()
    addressed_by: tuple[str, ...] = ("request", "row")

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key a declaration of this class may have."""
        own = (*self.addressed_by, *(("site",) if self.sites else ()))
        return (*(key for key in ("request", "row", "site") if key in own), *ALWAYS)

    @property
    def captured_sites(self) -> tuple[str, ...]:
        """Those of its sites at which it is refused where CUDA graphs are captured."""
        return tuple(name for name in self.sites if held_at(name).captured)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "family": self.family,
            "summary": self.summary,
            "acts": self.point,
            "effect": self.effect,
            "sites": list(self.sites),
            "captured_sites": list(self.captured_sites),
            "addressed_by": list(self.keys),
            "needs": list(self.needs),
        }


ALWAYS = ("step", "probability", "times", "seed")
"""Keys that mean something to every class."""


@dataclass(frozen=True)
class Injection:
    """One entry of the ledger: what was done, where and when. Values that are no finite numbers are text.

    ``index``: of the first of ``count`` changed elements. ``changed``: True if any has another value now.
    """

    fault: str
    number: int
    step: int
    request: str | None
    site: str | None
    tensor: str
    index: tuple[int, ...]
    before: Any
    after: Any
    count: int = 1
    changed: bool = True

    def __str__(self) -> str:
        place = f"{self.tensor}{list(self.index) if self.index else ''}"
        who = f", request {self.request}" if self.request is not None else ""
        at = f" at {self.site}" if self.site is not None else ""
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"injected {self.fault} at step {self.step}{who}{at}, {place}: {self.before} -> {self.after}{more}"
