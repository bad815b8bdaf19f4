"""The ranks that an engine is asked for, by the keys of a scenario's ``engine:``, and which of them do the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from specdebug.base.errors import InvalidOption

MOST = 8
"""Ranks on one machine."""


@dataclass(frozen=True)
class RankLayout:
    """Ranks by how they share the work; rank ``pp_rank * tp + tp_rank`` of a server holds a part of the layers of a
    stage.

    Attributes:
        tp: ranks that share each layer.
        pp: stages, each of some layers.
        dp: parts of the ``tp`` ranks of which each attends to requests of its own.
        dp_attention: attention is by these parts; without it ``dp`` is 1.
        dp_balance: ``round_robin`` gives each part its turn of the requests, ``skewed`` gives the first all of them.
        disaggregation: ``pd`` or ``pd_nixl``: one server prefills and hands requests over to another, which decodes,
            by Mooncake's connector or NIXL's. Each has the ranks above, those that decode first.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    dp_attention: bool = False
    dp_balance: str = "round_robin"
    disaggregation: str | None = None

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> RankLayout:
        """The layout that options ask for. Raises InvalidOption."""
        given = {key: options[key] for key in KEYS if key in options}
        for key in ("tp", "pp", "dp"):
            value = given.get(key, 1)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
                raise InvalidOption(f"must be a whole number from 1 to {MOST}", (key,))
        if not isinstance(given.get("dp_attention", False), bool):
            raise InvalidOption("must be true or false", ("dp_attention",))
        if given.get("dp_balance", BALANCES[0]) not in BALANCES:
            raise InvalidOption(f"must be one of {', '.join(BALANCES)}", ("dp_balance",))
        if given.get("disaggregation") not in (None, *CONNECTORS):
            raise InvalidOption(f"must be one of {', '.join(CONNECTORS)}", ("disaggregation",))
        layout = cls(**given)
        if layout.dp > 1 and not layout.dp_attention:
            raise InvalidOption("is the ranks of one server by dp_attention alone; give dp_attention: true", ("dp",))
        if layout.tp % layout.dp:
            raise InvalidOption(f"must divide tp, which is {layout.tp}", ("dp",))
        if layout.pp > 1 and (layout.dp_attention or layout.disaggregation):
            raise InvalidOption("is tried with tp alone, not beside dp_attention or disaggregation", ("pp",))
        if layout.world > MOST:
            raise InvalidOption(f"in all there are {layout.world} ranks; the most are {MOST}", ("pp",))
        return layout

    @property
    def of_a_server(self) -> int:
        """The number of ranks of each server."""
        return self.tp * self.pp

    @property
    def world(self) -> int:
        """The number of ranks of all servers."""
        return self.of_a_server * (1 if self.disaggregation is None else 2)

    @property
    def batches(self) -> int:
        """The batches that requests which run may be in: those of a pipeline, or what waits until it is decoded."""
        return self.pp if self.disaggregation is None else 2

    @property
    def meets(self) -> frozenset[str]:
        """Needs of faults that an engine of this layout meets beside those of its configuration."""
        several = {"ranks"} if self.world > 1 else set[str]()
        return frozenset(several | ({"transfers"} if self.disaggregation else set()))

    def role(self, rank: int) -> str | None:
        """``decode`` or ``prefill`` of a rank that does one of them only."""
        return None if self.disaggregation is None else ROLES[rank // self.of_a_server]

    def within(self, rank: int) -> int:
        """The number of a rank in its server."""
        return rank % self.of_a_server

    @property
    def attention_tp(self) -> int:
        """Ranks that share the attention of a request."""
        return self.tp // self.dp

    def part(self, rank: int) -> int:
        """The part of the ranks, from 0 to ``dp - 1``, whose requests a rank attends to."""
        return self.within(rank) % self.tp // self.attention_tp

    def stage(self, rank: int) -> int:
        """The stage of the pipeline, from 0 to ``pp - 1``."""
        return self.within(rank) // self.tp

    def peers(self, rank: int) -> Sequence[int]:
        """The ranks that compute the same of the same requests, itself included: their batches, tokens and whatever is
        replicated are equal."""
        place = self.role(rank), self.stage(rank), self.part(rank)
        return [each for each in range(self.world) if (self.role(each), self.stage(each), self.part(each)) == place]

    def leader(self, part: int, role: str | None = None) -> int:
        """The rank that a part's requests arrive at, and that says what comes of them; in the server of that role, by
        default the first."""
        first = 0 if role is None else ROLES.index(role) * self.of_a_server
        return first + part * self.attention_tp

    def turns(self) -> list[list[int]]:
        """The ranks that step together, in the order in which they do: what prefills, then what decodes."""
        ranks = list(range(self.world))
        if self.disaggregation is None:
            return [ranks]
        return [ranks[self.of_a_server :], ranks[: self.of_a_server]]

    def leads(self, rank: int) -> bool:
        """Return True for a rank that requests arrive at."""
        return self.leader(self.part(rank), self.role(rank)) == rank

    def part_of(self, number: int) -> int:
        """The part that takes request ``number``."""
        return number % self.dp if self.dp_balance == BALANCES[0] else 0


KEYS = tuple(each.name for each in fields(RankLayout))
"""The engine options that are read here."""
BALANCES = ("round_robin", "skewed")
PD = "pd"
CONNECTORS = {PD: "mooncake", "pd_nixl": "nixl"}
"""Ways of disaggregation, and the connector of each, as SGLang names them."""
PREFILL = "prefill"
ROLES = ("decode", PREFILL)
