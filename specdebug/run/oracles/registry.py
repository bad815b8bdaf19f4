"""Every oracle, in the order in which they look: upstream first, so that the first violation names the failure."""

from __future__ import annotations

from dataclasses import dataclass

from specdebug.base.abilities import SHOWN, Ability
from specdebug.base.plugins import PluginRegistry
from specdebug.run.oracles.accept import Accept, AcceptFloor
from specdebug.run.oracles.acceptance import AcceptanceOracle
from specdebug.run.oracles.base import Bench, Oracle, OracleSettings
from specdebug.run.oracles.draft_kv import DraftKV
from specdebug.run.oracles.draft_state import DraftStateOracle
from specdebug.run.oracles.ends import Ends
from specdebug.run.oracles.graphs import Graphs
from specdebug.run.oracles.guards import Guards
from specdebug.run.oracles.lossless import Lossless
from specdebug.run.oracles.pools import PoolsOracle
from specdebug.run.oracles.probes import ProbesOracle
from specdebug.run.oracles.sampling import SampledTokens
from specdebug.run.oracles.server import ServerAlive, ServerCounts, ServerFindings
from specdebug.run.oracles.server_answers import ServerAnswers
from specdebug.run.oracles.target_kv import TargetKV

ORACLES: tuple[type[Oracle], ...] = (
    Guards,
    ProbesOracle,
    ServerFindings,
    PoolsOracle,
    Graphs,
    DraftKV,
    TargetKV,
    DraftStateOracle,
    AcceptanceOracle,
    Lossless,
    SampledTokens,
    Ends,
    Accept,
    AcceptFloor,
    ServerCounts,
    ServerAnswers,
    ServerAlive,
)

_ADDED: PluginRegistry[type[Oracle]] = PluginRegistry(
    "oracles", "a class derived from Oracle", lambda part: isinstance(part, type) and issubclass(part, Oracle), {}
)


@dataclass(frozen=True)
class CannotShow:
    """An oracle that was asked for and cannot look, and what the target lacks for it."""

    oracle: str
    lacks: tuple[Ability, ...]

    def __str__(self) -> str:
        return f"{self.oracle}: this target cannot show {', '.join(SHOWN[each] for each in self.lacks)}"


def needed_by(settings: OracleSettings) -> frozenset[Ability]:
    """All that the shipped oracles of a run of these settings need of a target."""
    return frozenset().union(*(each.needs for each in ORACLES if each.wanted(settings)))


def oracles_of(bench: Bench) -> tuple[list[Oracle], list[CannotShow]]:
    """The oracles that look at a run, and those that would but cannot be shown what they need. Raises PluginError."""
    looking, blind = list[Oracle](), list[CannotShow]()
    added = [_ADDED[name] for name, options in bench.settings.spec.more.items() if options is not False]
    for kind in (*(each for each in ORACLES if each.wanted(bench.settings)), *added):
        lacks = tuple(sorted(kind.needs - bench.session.shows))
        if lacks:
            blind.append(CannotShow(kind.name, lacks))
        else:
            looking.append(kind(bench))
    return looking, blind
