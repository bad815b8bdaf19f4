"""A request's look, shown as our own engine shows its requests: each moment as it was, and only what counted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.base.errors import CannotRunHere
from specdebug.engine.config import EngineConfig, SpeculativeConfig
from specdebug.events import Decided, Event, Observers, Prefilled
from specdebug.scenario.workload import RequestSampling
from specdebug.targets.http.request import HttpRequest
from specdebug.targets.http.request_looks import Inside, RequestLook, stored_rows
from specdebug.targets.inside.words import looks_folder
from specdebug.targets.requests import Lost, NotShown
from specdebug.workers.machine_failure import machine_failure

PROMPT, OUTPUT = (1, 2, 3), [10, 11, 12, 13, 14, 15]
NODES, VOCAB = 3, 32


@pytest.fixture
def spec() -> SpeculativeConfig:
    config = EngineConfig.from_dict({"speculative": {"num_steps": 2, "eagle_topk": 1}})
    assert config.speculative is not None
    return config.speculative


def answer(output: list[int], accepted: tuple[int, ...]) -> HttpRequest:
    sampling = RequestSampling(max_new_tokens=len(output))
    return HttpRequest("g0.0", PROMPT, sampling, True, output_ids=output, accept_lengths=accepted)


def stored(seq_len: int, bonus: int) -> dict[str, Any]:
    return {
        "seq_len": seq_len,
        "bonus_tokens": torch.tensor(bonus),
        "topk_index": torch.tensor([bonus + 1]),
        "hidden_states": torch.full((4,), float(seq_len)),
    }


def prefilled(seq_len: int, bonus: int) -> dict[str, Any]:
    return {"what": "prefilled", "stored": stored(seq_len, bonus)}


def verified(seq_len: int, bonus: int, accepted: int) -> dict[str, Any]:
    chain = torch.arange(NODES)
    return {
        "what": "verified",
        "stored": stored(seq_len, bonus),
        "stores": stored(seq_len + accepted, bonus + accepted),
        "tree": {
            "tokens": bonus + chain,
            "positions": seq_len + chain,
            "mask": torch.ones(NODES, NODES, dtype=torch.bool).tril(),
            "retrieve_next_token": torch.tensor([1, 2, -1]),
            "retrieve_next_sibling": torch.tensor([-1, -1, -1]),
        },
        "logits": torch.zeros(NODES, VOCAB),
        "predict": bonus + 1 + chain,
        "accept_index": torch.where(chain < accepted, chain, -1),
        "accepted": accepted,
        "coins": None,
    }


class Told:
    """An observer that notes what it is told, as it was then."""

    hears = (Prefilled, Decided)

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []
        self.moments: list[Any] = []

    def on(self, event: Event) -> None:
        match event:
            case Prefilled(request):
                self.lines.append(("prefilled", request.kv_len, list(request.output_ids)))
            case Decided([moment], tokens):
                self.moments.append(moment)
                self.lines.append(("decided", moment.kv_len, list(moment.output_ids), tokens[0].tolist()))


def shown(events: list[dict[str, Any]], one: HttpRequest, spec: SpeculativeConfig) -> Told:
    told, observers = Told(), Observers()
    observers.add(told)
    RequestLook(one, events, {}).show(spec, observers)
    return told


def test_moments_come_in_order_and_each_holds_what_was_out_then(spec: SpeculativeConfig) -> None:
    one = answer(OUTPUT, (3, 2))
    told = shown([prefilled(3, 10), verified(3, 10, 2), verified(5, 12, 3)], one, spec)
    assert told.lines == [
        ("prefilled", 3, [10]),
        ("decided", 3, [10], [10, 11, 12]),
        ("decided", 5, [10, 11, 12], [12, 13, 14]),
    ]
    # After its step a moment knows what the verify gave, as a request of our own engine does.
    assert [(list(each.output_ids), list(each.accept_lengths)) for each in told.moments] == [
        (OUTPUT[:3], [2]),
        (OUTPUT, [2, 3]),
    ]
    assert one.accept_lengths == (2, 3), "in the order of the verifies, which the interface does not tell"
    assert one.stored["seq_len"] == 8


def test_a_verify_made_ahead_of_the_end_does_not_count_and_a_cut_one_is_shown_as_far_as_it_goes(
    spec: SpeculativeConfig,
) -> None:
    one = answer(OUTPUT[:3], (2,))
    told = shown([prefilled(3, 10), verified(3, 10, 2), verified(5, 12, 3)], one, spec)
    assert [line[:2] for line in told.lines] == [("prefilled", 3), ("decided", 3)]
    assert one.stored["seq_len"] == 5
    one = answer(OUTPUT[:2], (3,))
    told = shown([prefilled(3, 10), verified(3, 10, 3)], one, spec)
    assert (list(told.moments[0].output_ids), one.accept_lengths) == (OUTPUT[:2], (3,))
    one = answer(OUTPUT, (4, 2))  # what does not agree stays as the server tells it
    shown([prefilled(3, 10), verified(3, 10, 2), verified(5, 12, 3)], one, spec)
    assert one.accept_lengths == (4, 2)


def test_what_was_verified_ahead_of_a_retraction_does_not_count(spec: SpeculativeConfig) -> None:
    # Retracted with three tokens out; the verify that was under way is dropped, and all six positions prefilled again.
    events = [prefilled(3, 10), verified(3, 10, 2), verified(5, 12, 3), prefilled(6, 13), verified(6, 13, 2)]
    told = shown(events, answer(OUTPUT, (2, 2)), spec)
    assert told.lines == [
        ("prefilled", 3, [10]),
        ("decided", 3, [10], [10, 11, 12]),
        ("prefilled", 6, OUTPUT[:4]),
        ("decided", 6, OUTPUT[:4], [13, 14, 15]),
    ]


def test_stored_rows_have_probabilities_only_if_all_do(spec: SpeculativeConfig) -> None:
    told = shown([prefilled(3, 10), verified(3, 10, 2), verified(5, 12, 3)], answer(OUTPUT, (3, 2)), spec)
    rows = stored_rows(told.moments)
    assert rows.seq_lens.tolist() == [3, 5]
    assert rows.bonus.tolist() == [10, 12]
    assert rows.topk_index.tolist() == [[11], [13]]
    assert rows.topk_p is None
    for moment in told.moments:
        moment.stored["topk_p"] = torch.tensor([0.5])
    assert stored_rows(told.moments).topk_p is not None


OPTIONS = {"speculative": {"num_steps": 2, "eagle_topk": 1}}


def inside(
    log: Path, *shows: Any, said: str = "", problems: tuple[str, ...] = (), lost: tuple[Lost, ...] = ()
) -> Inside:
    told: Any = SimpleNamespace(path=log, last_with=lambda _: said, new_problems=lambda: problems, lost=lambda: lost)
    return Inside(told, shows, OPTIONS)


def two_tokens() -> HttpRequest:
    return HttpRequest("g0.0", (1, 2), RequestSampling(max_new_tokens=2), True, output_ids=[3, 4])


def test_keys_and_values_are_those_of_the_look(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    looks_folder(str(log)).mkdir()
    keys = torch.arange(12.0).view(1, 3, 2, 2)
    torch.save({"events": [], "kv": {"draft_k": keys, "draft_v": -keys}}, looks_folder(str(log)) / "r-g0.0.look")
    one = inside(log, "kv")
    one.show("r-g0.0", two_tokens(), Observers())
    found = one.kv("draft", "g0.0", 1, 3)
    assert torch.equal(found[0], keys[:, 1:3])
    assert torch.equal(found[1], -keys[:, 1:3])
    assert not list(looks_folder(str(log)).iterdir()), "it is read once"


def test_a_look_that_is_missing_is_told_by_the_log_and_is_the_machine_s_if_the_disk_was_full(tmp_path: Path) -> None:
    one = inside(tmp_path / "server.log", "kv", said="looking ends, x.look: No space left on device")
    with pytest.raises(CannotRunHere, match=r"no look of request g0\.0: looking ends") as caught:
        one.show("r-g0.0", two_tokens(), Observers())
    failure = machine_failure(caught.value)
    assert failure is not None
    assert failure.cause == "disk"
    with pytest.raises(CannotRunHere, match="its log does not say why"):
        inside(tmp_path / "server.log", "kv").show("r-g0.0", two_tokens(), Observers())


def test_what_a_look_that_was_lost_does_not_show_says_so(tmp_path: Path) -> None:
    one = inside(tmp_path / "server.log", "kv", lost=(Lost("requests inside", "moved", "", False),))
    one.show("r-g0.0", two_tokens(), Observers())
    with pytest.raises(NotShown):
        one.kv("draft", "g0.0", 0, 1)
    with pytest.raises(NotShown):
        one.draft_state([two_tokens()])


def test_where_only_the_pools_are_shown_no_look_is_wanted(tmp_path: Path) -> None:
    one = inside(tmp_path / "server.log", "pools", problems=("locks: 4 slots are protected",))
    one.show("r-g0.0", two_tokens(), Observers())
    assert list(one.new_problems()) == ["locks: 4 slots are protected"]
