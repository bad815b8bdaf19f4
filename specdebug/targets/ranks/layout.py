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
    """Ranks by how they share the work; rank ``pp_rank * tp + tp_rank`` holds a part of the layers of a stage.

    Attributes:
        tp: ranks that share each layer.
        pp: stages, each of some layers.
        dp: parts of the ``tp`` ranks of which each attends to requests of its own.
        dp_attention: attention is by these parts; without it ``dp`` is 1.
        dp_balance: ``round_robin`` gives each part its turn of the requests, ``skewed`` gives the first all of them.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    dp_attention: bool = False
    dp_balance: str = "round_robin"

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
        layout = cls(**given)
        if layout.dp > 1 and not layout.dp_attention:
            raise InvalidOption("is the ranks of one server by dp_attention alone; give dp_attention: true", ("dp",))
        if layout.tp % layout.dp:
            raise InvalidOption(f"must divide tp, which is {layout.tp}", ("dp",))
        if layout.world > MOST:
            raise InvalidOption(f"with tp {layout.tp} there are {layout.world} ranks; the most are {MOST}", ("pp",))
        return layout

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.tp * self.pp

    @property
    def attention_tp(self) -> int:
        """Ranks that share the attention of a request."""
        return self.tp // self.dp

    def part(self, rank: int) -> int:
        """The part of the ranks, from 0 to ``dp - 1``, whose requests a rank attends to."""
        return rank % self.tp // self.attention_tp

    def stage(self, rank: int) -> int:
        """The stage of the pipeline, from 0 to ``pp - 1``."""
        return rank // self.tp

    def peers(self, rank: int) -> Sequence[int]:
        """The ranks that compute the same of the same requests, itself included: their batches, tokens and whatever is
        replicated are equal."""
        both = self.stage(rank), self.part(rank)
        return [each for each in range(self.world) if (self.stage(each), self.part(each)) == both]

    def leader(self, part: int) -> int:
        """The rank that a part's requests arrive at, and that says what comes of them."""
        return part * self.attention_tp

    def leads(self, rank: int) -> bool:
        """Return True for a rank that requests arrive at."""
        return self.leader(self.part(rank)) == rank

    def part_of(self, number: int) -> int:
        """The part that takes request ``number``."""
        return number % self.dp if self.dp_balance == BALANCES[0] else 0


KEYS = tuple(each.name for each in fields(RankLayout))
"""The engine options that are read here."""
BALANCES = ("round_robin", "skewed")
