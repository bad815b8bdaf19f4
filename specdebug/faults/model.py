"""A fault: a class, an address, the shot that its function gets when it is due, and what that leaves in the ledger."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from specdebug.base.attention_plans import SHIPPED
from specdebug.base.errors import ContentError, SpecDebugError, Where
from specdebug.engine.sites import held_at, rows_per_request

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.async_probe import SiteCall
    from specdebug.engine.inspect import EngineView
    from specdebug.engine.textbook.request import Request

Point = Literal["before", "after", "ranks", "site", "lengths", "readback", "move", "free", "attach", "release"]
"""When a class can act: before or after a step, before the ranks of a session begin one, when a site is reached, or
when the engine calls what is wrapped."""

Effect = Literal["corrupts", "benign", "kills"]
"""The consequence in a sound engine: damage that must be seen, nothing, or the worker's end."""

Need = Literal[
    "speculative",
    "tree",
    "weighed",
    "draft_kv",
    "reserve",
    "pages",
    "graphs",
    "guards",
    "ragged",
    "radix",
    "ranks",
    "transfers",
]
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
    "ranks": "several ranks (engine.tp above 1)",
    "transfers": "prefill and decode apart (engine.disaggregation)",
}


Steps = tuple[int, int]
"""First and last step of a window, both included."""

ALWAYS = ("step", "probability", "times", "seed")
"""Keys of a declaration that mean something to every class."""


class BadFault(SpecDebugError):
    """``--fault`` names no class, or addresses one by a key it does not know."""


@dataclass(frozen=True)
class Fault:
    """One fault as declared. None: the place, step or request that comes first.

    ``row``: place of the request in its batch. ``rank``: by default the last. ``probability``: of each opportunity.
    ``times``: injections at most. ``seed``: of what is drawn for it, by default the run's.
    """

    name: str
    step: Steps | None = None
    request: str | None = None
    row: int | None = None
    rank: int | None = None
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
        return (*(key for key in ("request", "row", "rank", "site") if key in own), *ALWAYS)

    @property
    def captured_sites(self) -> tuple[str, ...]:
        """Those of its sites at which it is refused where CUDA graphs are captured."""
        return tuple(name for name in self.sites if held_at(name).captured)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("name", "family", "summary", "effect")} | {
            "acts": self.point,
            "sites": list(self.sites),
            "captured_sites": list(self.captured_sites),
            "addressed_by": list(self.keys),
            "needs": list(self.needs),
        }


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


registered: dict[str, FaultClass] = {}
"""Classes by name; ``catalogue.py`` sees to it that all are here."""


class NotHere(Exception):
    """The fault cannot act at this opportunity; the message says why, should no better one come."""


@dataclass
class Call:
    """A call of the engine's that is wrapped. The engine gets ``result`` instead of the function's answer."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    made: bool = False

    def proceed(self, *args: Any) -> Any:
        """Call the wrapped function, with the engine's own arguments unless others are given."""
        self.made = True
        self.result = self.function(*(args or self.args), **self.options)
        return self.result


@dataclass
class Shot:
    """One opportunity of one fault.

    ``batch``: the requests of the batch that is computed, in its order; between two steps, the requests that decode.
    ``request``: chosen by :meth:`pick`. ``after_gather``: called once the engine has gathered the next step's state.
    ``after_step``: called when this step is over, before anything looks at it.
    """

    fault: Fault
    number: int
    step: int
    view: EngineView
    rng: random.Random
    report: Callable[[Injection], None]
    batch: Sequence[Request] = ()
    at_site: SiteCall | None = None
    call: Call | None = None
    request: Request | None = None
    after_gather: list[Callable[[], None]] = field(default_factory=list)
    after_step: list[Callable[[], None]] = field(default_factory=list)
    reported: int = 0

    @property
    def site(self) -> SiteCall:
        """The call of the site that was reached, for classes that act at sites."""
        assert self.at_site is not None
        return self.at_site

    @property
    def wrapped(self) -> Call:
        """The intercepted call, for classes that act on calls."""
        assert self.call is not None
        return self.call

    def pick(self, among: Sequence[Request] | None = None, why: str = "no request is computed") -> Request:
        """The request addressed, else one drawn of ``among`` (the batch). Raises NotHere."""
        requests = list(self.batch if among is None else among)
        if self.fault.row is not None:
            requests = requests[self.fault.row : self.fault.row + 1]
            why = f"the batch has no row {self.fault.row}"
        if self.fault.request is not None:
            requests = [request for request in requests if request.rid == self.fault.request]
            why = f"request {self.fault.request} is not in a batch that it can act on"
        if not requests:
            raise NotHere(why)
        self.request = self.rng.choice(requests)
        return self.request

    def site_rows(self, request: Request) -> range:
        """Rows of the site's tensor that are the request's. Raises NotHere."""
        order = [each.rid for each in self.batch]
        spec = self.view.config.speculative
        branches, nodes = (1, 1) if spec is None else (spec.eagle_topk, spec.tree_size)
        per_request = rows_per_request(self.site.site, branches=branches, nodes=nodes)
        if per_request is None:
            raise NotHere(f"rows of {self.site.site} cannot be told apart")
        start = order.index(request.rid) * per_request
        if start + per_request > self.site.tensor.shape[0]:
            raise NotHere(f"{self.site.site} has no rows of {request.rid}")
        return range(start, start + per_request)

    def edit(self, tensor: Tensor, index: tuple[int, ...], value: float | int, name: str) -> None:
        """Put ``value`` into one element, and write it to the ledger."""
        before = tensor[index].item()
        tensor[index] = value
        self.note(name, index, before, tensor[index].item())

    def overwrite(self, tensor: Tensor, rows: Tensor | slice | int, values: Any, name: str) -> None:
        """Put ``values`` into rows of the tensor's first dimension, and write it to the ledger as one entry."""
        if isinstance(rows, int):
            rows = slice(rows, rows + 1)
        before = tensor[rows].clone()
        tensor[rows] = values
        after = tensor[rows]
        differs = (before != after) & ~((before != before) & (after != after))
        where = differs.nonzero()
        inside = tuple(where[0].tolist()) if len(where) else (0,) * before.dim()
        if not before.numel():
            self.note(name, inside, None, None)
            return
        row = rows.start + inside[0] if isinstance(rows, slice) else int(rows.reshape(-1)[inside[0]])
        index = (row, *inside[1:])
        self.note(name, index, before[inside].item(), after[inside].item(), count=max(int(differs.sum()), 1))

    def note(self, tensor: str, index: Sequence[int], before: Any, after: Any, count: int = 1) -> None:
        """Write damage to the ledger that was done by other means than :meth:`edit`."""
        same = before == after or (before != before and after != after)
        request = None if self.request is None else self.request.rid
        site = None if self.at_site is None else self.at_site.site
        self.reported += 1
        place = (self.fault.name, self.number, self.step, request, site, tensor, tuple(index))
        self.report(Injection(*place, before, after, count, not same))


Act: TypeAlias = Callable[[Shot], None]


def fault_class(family: str, point: Point, effect: Effect, **more: Any) -> Callable[[Act], Act]:
    """Enter a function as a class of its name; the first line of its docstring says what it does.

    ``more``: ``needs``, ``sites`` and ``addressed_by`` of :class:`FaultClass`.
    """

    def enter(act: Act) -> Act:
        name = act.__name__
        if name in registered:
            raise ValueError(f"fault class {name!r} is registered twice")
        summary = (act.__doc__ or "").strip().splitlines()[0]
        registered[name] = FaultClass(name, family, summary, point, effect, act, **more)
        return act

    return enter
