"""The functions of classes: how they are entered, and the shot that each gets when its fault is due."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specdebug.engine.sites import rows_per_request
from specdebug.faults.model import Effect, Fault, FaultClass, Injection, Need, Point

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.async_probe import SiteCall
    from specdebug.engine.inspect import EngineView
    from specdebug.engine.textbook.request import Request


registered: dict[str, FaultClass] = {}
"""By name; ``catalogue.py`` sees to it that all are here."""


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
        """The call of the site that was reached. For classes that act at sites only."""
        assert self.at_site is not None
        return self.at_site

    @property
    def wrapped(self) -> Call:
        """The intercepted call. For classes that act on calls only."""
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
        self.report(Injection(*place, before=before, after=after, count=count, changed=not same))


def fault_class(
    family: str,
    point: Point,
    effect: Effect,
    *,
    needs: tuple[Need, ...] = (),
    sites: tuple[str, ...] = (),
    addressed_by: tuple[str, ...] = ("request", "row"),
) -> Callable[[Callable[[Shot], None]], Callable[[Shot], None]]:
    """Enter a function as a class of its name; the first line of its docstring says what it does."""

    def enter(act: Callable[[Shot], None]) -> Callable[[Shot], None]:
        name = act.__name__
        summary = (act.__doc__ or "").strip().splitlines()[0]
        if name in registered:
            raise ValueError(f"fault class {name!r} is registered twice")
        registered[name] = FaultClass(name, family, summary, point, effect, act, needs, sites, addressed_by)
        return act

    return enter
