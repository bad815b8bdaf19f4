"""What an engine's own processes show of themselves, beside what their server answers: looks and broken laws."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdebug.base.abilities import INSIDE, Ability
from specdebug.base.errors import SpecDebugError
from specdebug.engine.config import EngineConfig
from specdebug.targets.base import RequestOnlooker, StoredDrafts
from specdebug.targets.http.answers import HttpAnswer
from specdebug.targets.http.host import Host
from specdebug.targets.http.looks import RequestLook, read_look, stored_rows
from specdebug.targets.inside.looks import looks_folder
from specdebug.targets.serving import NotShown

if TYPE_CHECKING:
    from torch import Tensor

LOOKS: frozenset[Ability] = INSIDE - {"pools"}
"""Abilities that rest on looks."""


class NoLook(SpecDebugError):
    """An engine's process left no look of a request: what was asked about it cannot be told."""

    exit_code = 125


class Inside:
    """The inside of an engine that ``host`` knows. ``shows``: what it was started to show. ``options``: of the arm's
    engine."""

    def __init__(self, host: Host, shows: Collection[Ability], options: Mapping[str, Any]) -> None:
        self._host = host
        self._folder = looks_folder(host.log_path) if LOOKS & frozenset(shows) else None
        self._spec = EngineConfig.from_dict(options).speculative
        self._looks: dict[str, RequestLook] = {}

    def show(self, session: Any, rid: str, answer: HttpAnswer, onlooker: RequestOnlooker) -> None:
        """Show a request that has ended, by its id there; nothing of it once the looks have ended. Raises NoLook."""
        if self._folder is None:
            return
        look = read_look(self._folder, rid, answer)
        if look is None and self._host.lost():
            return
        if look is None:
            words = self._host.said("looking ends") or "its log does not say why"
            raise NoLook(f"the engine left no look of request {answer.rid}: {words}; its log is {self._host.log_path}")
        self._looks[answer.rid] = look
        if self._spec is not None:
            look.show(session, self._spec, onlooker)

    def kv(self, pool: str, rid: str, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of positions [start, stop) at a request's end, of the ``draft`` or the ``target``: each
        [layers, n, heads, head_dim]. Raises NotShown."""
        self._require(rid)
        keys, values = (self._looks[rid].kv[f"{pool}_{kind}"][:, start:stop] for kind in ("k", "v"))
        return keys, values

    def draft_state(self, requests: Sequence[Any]) -> StoredDrafts:
        """The rows that these requests store. Raises NotShown."""
        for each in requests:
            self._require(each.rid)
        return stored_rows(requests)

    def _require(self, rid: str) -> None:
        if rid not in self._looks:
            raise NotShown(rid)

    def new_problems(self) -> Sequence[str]:
        """Laws of the pools that were broken since the last call, each ``law: what``."""
        return self._host.new_problems()
