"""The oracle of ranks: where two part that should agree, by the first site, and which collectives they entered."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.events import RankStepped
from specdebug.run.oracles.base import Bench, OracleSettings
from specdebug.run.oracles.ranks import RanksOracle
from specdebug.scenario.grammar import OracleSpec
from specdebug.targets.base import Asked
from specdebug.targets.ranks.collectives import Collective
from specdebug.verdict.outcome import Violation
from tests.run.fakes import oracle_settings


class Told:
    """The oracle, told of what two ranks that do the same have done in a step."""

    def __init__(self) -> None:
        self.found: list[Violation] = []
        session: Any = SimpleNamespace()
        self.oracle = RanksOracle(Bench(oracle_settings(), session, None, self.found.append, print, str))

    def step(self, first: dict[str, Any], second: dict[str, Any], alike: tuple[int, ...] = (0, 1)) -> list[Violation]:
        """``first`` and ``second``: facts by their sites, and ``collectives``."""
        for rank, facts in enumerate((first, second)):
            collectives = facts.get("collectives", [])
            same = alike if rank in alike else (rank,)
            own = [(site, value) for site, value in facts.items() if site != "collectives"]
            self.oracle.on(RankStepped(3, rank, same, own, collectives))
        return self.found


def entered(op: str = "allreduce", number: int = 1, group: str = "tp", shape: tuple[int, ...] = (2,)) -> Collective:
    return Collective(op, group, number, "float32", shape, "m.py:1 f")


def test_ranks_that_agree_are_silent() -> None:
    nan = torch.tensor([1.0, float("nan")])
    facts = {"batch.rids": ["a"], "verify.logits": nan, "collectives": [entered()]}
    assert Told().step(facts, {**facts, "verify.logits": nan.clone()}) == []


@pytest.mark.parametrize(
    ("first", "second", "site", "ours", "theirs"),
    [
        ({"tokens": {"a": [1]}}, {"tokens": {"a": [2]}}, "tokens", "{'a': [1]}", "{'a': [2]}"),
        ({"s": torch.tensor([[1, 2]])}, {"s": torch.tensor([[1, 3]])}, "s", "2 at [0, 1]", "3 at [0, 1]"),
        ({"s": torch.zeros(2)}, {"s": torch.zeros(3)}, "s", "[2] of torch.float32", "[3] of torch.float32"),
        ({"s": torch.zeros(1)}, {"s": torch.zeros(1).int()}, "s", "[1] of torch.float32", "[1] of torch.int32"),
        ({"a": 1, "b": 2}, {"b": 2}, "a", "passes a", "passes b"),
        ({"a": 1, "b": 2}, {"a": 1}, "b", "passes b", "is over by then"),
        ({"a": 1}, {"a": 1, "b": 2}, "b", "is over by then", "passes b"),
    ],
)
def test_the_first_site_at_which_they_part_is_named(
    first: dict[str, Any], second: dict[str, Any], site: str, ours: str, theirs: str
) -> None:
    (found,) = Told().step({"before": 0, **first}, {"before": 0, **second})
    assert found.signature == f"ranks@{site}"
    assert found.step == 3
    assert found.data["rank"] == 1
    assert found.data["ranks"] == [f"rank 0 {ours}", f"rank 1 {theirs}"]


@pytest.mark.parametrize(
    ("first", "second", "op"),
    [
        ([entered()], [entered(shape=(1,))], "allreduce"),
        ([entered(), entered("broadcast", 2)], [entered()], "broadcast"),
        ([entered()], [entered(), entered("allgather", 2)], "allgather"),
    ],
)
def test_collectives_of_a_group_must_be_the_same(first: list[Collective], second: list[Collective], op: str) -> None:
    (found,) = Told().step({"collectives": first}, {"collectives": second}, alike=(0,))
    assert found.signature == f"ranks@{op}"


@pytest.mark.parametrize(
    "theirs",
    [[entered(group="attention")], [], [entered(), entered("send", 2), entered("recv", 3)]],
    ids=["another-group", "none", "messages"],
)
def test_what_only_one_of_them_is_in_is_not_compared(theirs: list[Collective]) -> None:
    assert Told().step({"collectives": [entered()]}, {"collectives": theirs}, alike=(0,)) == []


def test_ranks_of_other_parts_need_not_agree() -> None:
    assert Told().step({"tokens": [1]}, {"tokens": [2]}, alike=(0,)) == []


def test_ranks_of_a_second_server_are_held_to_each_other() -> None:
    told = Told()
    groups = ("decode.4", "decode.4", "prefill.4", "prefill.4")
    for rank, (group, size) in enumerate(zip(groups, (2, 2, 3, 1), strict=True)):
        told.oracle.on(RankStepped(3, rank, (rank,), [], [entered(group=group, shape=(size,))]))
    (found,) = told.found
    assert (found.signature, found.data["rank"]) == ("ranks@allreduce", 3)
    assert str(found.data["ranks"][0]).startswith("rank 2 enters allreduce #1 of float32 3 in group prefill.4")


def test_it_is_told_once() -> None:
    told = Told()
    told.step({"tokens": [1]}, {"tokens": [2]})
    assert len(told.step({"tokens": [1]}, {"tokens": [2]})) == 1


@pytest.mark.parametrize(("ranks", "wanted", "looks"), [(2, True, True), (2, False, False), (1, True, False)])
def test_it_is_wanted_where_there_are_several(ranks: int, wanted: bool, looks: bool) -> None:
    settings = OracleSettings(OracleSpec(ranks=wanted), Asked("tiny", ranks=ranks))
    assert RanksOracle.wanted(settings) is looks


def test_a_rank_has_the_same_trace_if_it_tells_the_same_to_the_bit() -> None:
    def trace(facts: dict[str, Any]) -> str:
        told = Told()
        told.step({"tokens": {"a": [1]}}, facts, alike=(0,))
        return told.oracle.bench.rank_traces["1"]

    facts = {"s": torch.tensor([1.0, -0.0]), "collectives": [entered()]}
    assert trace(facts) == trace({**facts, "s": torch.tensor([1.0, -0.0])})
    others = ({"s": torch.tensor([1.0, 0.0])}, {"s": torch.tensor([[1.0, -0.0]])}, {"collectives": [entered(number=2)]})
    assert len({trace({**facts, **other}) for other in ({}, *others)}) == 4
