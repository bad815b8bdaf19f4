"""Where classes of faults are entered; ``catalogue.py`` sees to it that all are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from specdebug.faults.model import Effect, FaultClass, Need, Point

if TYPE_CHECKING:
    from specdebug.faults.shot import Shot

Act = Callable[["Shot"], None]

registered: dict[str, FaultClass] = {}


def fault_class(
    family: str,
    point: Point,
    effect: Effect,
    *,
    needs: tuple[Need, ...] = (),
    sites: tuple[str, ...] = (),
    addressed_by: tuple[str, ...] = ("request", "row"),
) -> Callable[[Act], Act]:
    """Enter a function as a class of its name; the first line of its docstring says what it does."""

    def enter(act: Act) -> Act:
        name = act.__name__
        summary = (act.__doc__ or "").strip().splitlines()[0]
        if name in registered:
            raise ValueError(f"fault class {name!r} is registered twice")
        registered[name] = FaultClass(name, family, summary, point, effect, act, needs, sites, addressed_by)
        return act

    return enter
