"""Every oracle, in the order in which they look: upstream first, so that the first violation names the failure."""

from dataclasses import dataclass

from specdebug.base.abilities import SHOWN, Ability
from specdebug.base.plugins import PluginRegistry, import_named
from specdebug.run.oracles.base import Bench, Oracle, OracleSettings

OURS = (
    "findings:Guards",
    "findings:ProbesOracle",
    "server:ServerFindings",
    "findings:PoolsOracle",
    "ranks:RanksOracle",
    "graphs:Graphs",
    "kv:DraftKV",
    "verified:VerifiedLogits",
    "kv:TargetKV",
    "draft_state:DraftStateOracle",
    "acceptance:AcceptanceOracle",
    "lossless:Lossless",
    "lossless:ToldLogprobs",
    "sampling:SampledTokens",
    "ends:Ends",
    "turns:TurnsOracle",
    "work:WorkOracle",
    "accept:Accept",
    "accept:AcceptFloor",
    "server:ServerCounts",
    "server_answers:ServerAnswers",
    "server:ServerAlive",
)
"""Module and class of each oracle of ours."""

ORACLES: tuple[type[Oracle], ...] = tuple(import_named(f"{__package__}.{each}", "an oracle") for each in OURS)

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
        if not lacks:
            looking.append(kind(bench))
        elif (said := CannotShow(kind.name, lacks)) not in blind:  # oracles that share a name say it once
            blind.append(said)
    return looking, blind
