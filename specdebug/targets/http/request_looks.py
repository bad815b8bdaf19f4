"""Looks that an engine's process left of a request (``targets/inside/tape.py``), as an oracle sees our own engine: one
that has ended is shown once more from its prompt on, each moment as it was. Keys and values are those of its end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from specdebug.base.abilities import INSIDE, Ability
from specdebug.base.errors import CannotRunHere
from specdebug.events import Decided, Observers, Prefilled
from specdebug.targets.base import StoredDrafts
from specdebug.targets.http.request import HttpRequest
from specdebug.targets.inside.words import looks_folder
from specdebug.targets.launch.log import ServerLog
from specdebug.targets.options import OURS
from specdebug.targets.requests import NotShown, RequestView, Sampling

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.engine.config import SpeculativeConfig


@dataclass
class Moment:
    """A request at one time of its life, as ``base.RequestView``. ``stored``: what it drafts from next."""

    rid: str
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    sampling: Sampling
    kv_len: int
    cached_tokens: int
    accept_lengths: Sequence[int]
    stored: Any
    speculative: bool = True
    finish_reason: str | None = None
    matched_stop: int | str | None = None

    @property
    def all_ids(self) -> Sequence[int]:
        return [*self.prompt_ids, *self.output_ids]


@dataclass(frozen=True)
class StoredRow:
    """What one request stores, a row, as ``base.StoredDrafts``."""

    seq_lens: Tensor
    bonus: Tensor
    topk_p: Tensor | None
    topk_index: Tensor
    hidden_states: Tensor


@dataclass
class RequestLook:
    """All that is known of a request: its ``events`` in order, and ``kv`` by pool and kind."""

    answer: HttpRequest
    events: list[dict[str, Any]]
    kv: dict[str, Tensor]

    def show(self, spec: SpeculativeConfig, observers: Observers) -> None:
        """Show the request from its prompt on to its last verify that counted. From then on its answer knows what it
        stores at its end, and its verifies in their order."""
        answer, accepted = self.answer, list[int]()
        for event in self._counted():
            stored, length = event["stored"], event["stored"]["seq_len"]
            texts = (answer.rid, answer.prompt_ids, answer.output_ids[: self._outputs(length)], answer.sampling)
            moment = Moment(*texts, length, answer.cached_tokens, accepted, stored)
            if event["what"] == "prefilled":
                observers.tell(Prefilled, moment)
                continue
            _tell_decided(moment, event, spec, observers)
            moment.accept_lengths = accepted = [*accepted, event["accepted"]]
            moment.output_ids = answer.output_ids[: self._outputs(length) + event["accepted"]]
            answer.stored = event.get("stores")
        if sorted(accepted) == sorted(answer.accept_lengths):
            answer.accept_lengths = tuple(accepted)

    def _outputs(self, seq_len: int) -> int:
        """Tokens that were out when so many positions had KV: all of these, and the one after them."""
        return seq_len - len(self.answer.prompt_ids) + 1

    def _counted(self) -> list[dict[str, Any]]:
        """The events that the request's tokens come from. An engine that schedules ahead verifies once more what has
        ended, or is retracted: that counts for nothing."""
        counted: list[dict[str, Any]] = []
        for event in self.events:
            if event["what"] == "prefilled":
                length = event["stored"]["seq_len"]
                after = [each["stored"]["seq_len"] + each.get("accepted", 0) for each in counted]
                counted = [each for each, positions in zip(counted, after, strict=True) if positions < length]
            elif self._outputs(event["stored"]["seq_len"]) >= len(self.answer.output_ids):
                continue
            counted.append(event)
        return counted


def stored_rows(moments: Sequence[Moment | HttpRequest]) -> StoredRow:
    """What some requests store, a row each."""
    import torch

    rows = [each.stored for each in moments]
    stored = all("topk_p" in row for row in rows)
    return StoredRow(
        torch.tensor([row["seq_len"] for row in rows]),
        torch.stack([row["bonus_tokens"] for row in rows]),
        torch.stack([row["topk_p"] for row in rows]) if stored else None,
        torch.stack([row["topk_index"] for row in rows]),
        torch.stack([row["hidden_states"] for row in rows]),
    )


def _tell_decided(moment: Moment, event: dict[str, Any], spec: SpeculativeConfig, observers: Observers) -> None:
    """Tell of a verify of one request, as our engine does."""
    import torch

    observers.tell(
        Decided,
        requests=[moment],
        logits=event["logits"].float(),
        predict=event["predict"],
        accept_index=event["accept_index"].unsqueeze(0),
        num_correct_drafts=torch.tensor([event["accepted"] - 1]),
        coins=None if event["coins"] is None else event["coins"].unsqueeze(0),
        topk=spec.eagle_topk,
        num_steps=spec.num_steps,
        threshold_single=spec.threshold_single,
        threshold_acc=spec.threshold_acc,
        **{name: each.unsqueeze(0) for name, each in event["tree"].items()},
    )


LOOKS: frozenset[Ability] = INSIDE - {"pools"}
"""Abilities that rest on looks."""


class Inside:
    """The inside of an engine that writes this log. ``shows``: what it was started to show. ``options``: of the arm's
    engine."""

    def __init__(self, log: ServerLog, shows: Collection[Ability], options: Mapping[str, Any]) -> None:
        self._log = log
        self._folder = looks_folder(str(log.path)) if LOOKS & frozenset(shows) else None
        self._spec = OURS.read(options).speculative
        self._looks: dict[str, RequestLook] = {}

    def show(self, rid: str, answer: HttpRequest, observers: Observers) -> None:
        """Show a request that has ended, by its id there; nothing of it once the looks have ended. Raises
        CannotRunHere."""
        if self._folder is None:
            return
        import torch

        path = self._folder / f"{rid}.look"
        if not path.exists():
            if self._log.lost():
                return
            words = self._log.last_with("looking ends") or "its log does not say why"
            about = f"the engine left no look of request {answer.rid}"
            raise CannotRunHere(f"{about}: {words}; its log is {self._log.path}")
        plain = torch.load(path, weights_only=True)
        path.unlink()
        look = self._looks[answer.rid] = RequestLook(answer, plain["events"], plain["kv"])
        if self._spec is not None:
            look.show(self._spec, observers)

    def kv(self, pool: str, rid: str, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of positions [start, stop) at a request's end, of the ``draft`` or the ``target``: each
        [layers, n, heads, head_dim]. Raises NotShown."""
        self._require(rid)
        keys, values = (self._looks[rid].kv[f"{pool}_{kind}"][:, start:stop] for kind in ("k", "v"))
        return keys, values

    def draft_state(self, requests: Sequence[RequestView]) -> StoredDrafts:
        """The rows that these requests store. Raises NotShown."""
        for each in requests:
            self._require(each.rid)
        return stored_rows([cast(Moment | HttpRequest, each) for each in requests])

    def _require(self, rid: str) -> None:
        if rid not in self._looks:
            raise NotShown(rid)

    def new_problems(self) -> Sequence[str]:
        """Laws of the pools that were broken since the last call, each ``law: what``."""
        return self._log.new_problems()
