"""What ranks tell of a step becomes the events of one engine: of each request all heads, whatever rank has them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.events import BatchBegan, Decided, Finishing, InVain, Observers, Prefilled, Stepped
from specdebug.targets.ranks.told import Noted, RankedRequest, RankReport, retold
from specdebug.targets.requests import NotShown

KEYS = torch.arange(24.0).reshape(2, 3, 4, 1)
"""Of two layers, three positions and four heads."""


def request() -> RankedRequest:
    return RankedRequest("a", [1, 2], SimpleNamespace(), True)


def session_of(keys: torch.Tensor) -> Any:
    """A rank's session, which has these heads of each request's target, and no draft."""
    requests = {"a": request()}
    for each in requests.values():
        each.kv_len, each.output_ids = 3, [5]

    def target_kv(each: Any, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        return keys[:, start:stop], -keys[:, start:stop]

    def draft_kv(each: Any, start: int, stop: int) -> None:
        raise NotShown(each.rid)

    shown = {"target_kv": target_kv, "draft_kv": draft_kv}
    return SimpleNamespace(request=requests.__getitem__, shows=frozenset(), **shown)


def report_of(session: Any, *events: Any, leading: bool, shows_kv: bool = True) -> RankReport:
    noted = Noted(session, leading=leading, shows_kv=shows_kv)
    for each in events:
        noted.on(each)
    return noted.report(Stepped(1, "decode", ("a",), {"a": [5]}, {"a": 1}), [], [])


class Heard:
    hears = (Prefilled, Finishing, Decided, InVain)

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on(self, event: Any) -> None:
        self.events.append(event)


def told(reports: list[RankReport], heads: int = 4) -> tuple[RankedRequest, list[Any]]:
    heard, mine, observers = Heard(), request(), Observers()
    observers.add(heard)
    retold(reports, heads, {"a": mine}, observers)
    return mine, heard.events


@pytest.mark.parametrize(
    "shards",
    [
        (KEYS,),
        (KEYS[:, :, :2], KEYS[:, :, 2:]),
        (KEYS[:, :, :1], KEYS[:, :, 1:2], KEYS[:, :, 2:3], KEYS[:, :, 3:]),
        (KEYS, KEYS),  # each has all
        (KEYS[:, :, :2], KEYS[:, :, :2], KEYS[:, :, 2:], KEYS[:, :, 2:]),  # two have the same half
        (KEYS, torch.zeros_like(KEYS)),  # padded to more heads than there are
    ],
    ids=["one", "halves", "quarters", "replicated", "twice", "padded"],
)
def test_heads_lie_side_by_side_whatever_rank_has_them(shards: tuple[torch.Tensor, ...]) -> None:
    reports = []
    for rank, shard in enumerate(shards):
        session = session_of(shard)
        reports.append(report_of(session, Prefilled(session.request("a")), leading=rank == 0))
    mine, (event,) = told(reports)
    assert isinstance(event, Prefilled)
    assert event.request is mine
    keys, values = mine.kv["target"]
    assert torch.equal(keys, KEYS)
    assert torch.equal(values, -KEYS)
    assert "draft" not in mine.kv


def test_a_request_is_as_it_was_at_the_event_and_not_as_it_is_at_the_end() -> None:
    session = session_of(KEYS)
    noted = Noted(session, leading=True, shows_kv=False)
    noted.on(Finishing(session.request("a")))
    session.request("a").output_ids = [5, 6, 7]
    report = noted.report(Stepped(1, "decode", ("a",)), [], [])
    mine, _ = told([report])
    assert mine.output_ids == [5]
    assert mine.all_ids == [1, 2, 5]
    assert report.requests["a"]["output_ids"] == [5, 6, 7]


def test_only_the_rank_that_leads_tells_of_a_batch() -> None:
    session = session_of(KEYS)
    event = InVain("grammar", [])
    assert [each.kind for each in report_of(session, event, leading=True).said] == [InVain]
    assert report_of(session, event, leading=False).said == []
    _, events = told([report_of(session, event, leading=True), report_of(session, event, leading=False)])
    assert len(events) == 1


def test_facts_are_the_batch_the_sites_and_what_came_of_it() -> None:
    session = session_of(KEYS)
    noted = Noted(session, leading=True, shows_kv=False)
    noted.on(BatchBegan("decode", [session.request("a")]))
    passed = torch.tensor([1, 2])
    noted.add("verify.input_ids", passed)
    noted.add("prefix.target_kv", passed)  # a rank's own heads
    noted.add("commit.draft_kv", passed)
    passed += 1
    stepped = Stepped(1, "decode", ("a",), {"a": [5]}, {"a": 1}, finished=("a",))
    facts = noted.report(stepped, [], []).facts
    assert [site for site, _ in facts] == [
        *("batch.kind", "batch.rids", "batch.seq_lens", "verify.input_ids", "tokens", "accept_lengths", "finished")
    ]
    assert dict(facts)["verify.input_ids"].tolist() == [1, 2]
    assert dict(facts)["tokens"] == {"a": [5]}
    assert noted.report(Stepped(2, "idle", ()), [], []).facts[0][0] == "tokens"
