"""Layouts of ranks: each rank has one place, those in one place do the same, and each part has one that leads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.base.errors import InvalidOption
from specdebug.targets.ranks.layout import MOST, RankLayout


@st.composite
def layouts(draw: Any) -> RankLayout:
    tp = draw(st.integers(1, MOST))
    pp = draw(st.integers(1, MOST // tp))
    dp = draw(st.sampled_from([each for each in range(1, tp + 1) if tp % each == 0]))
    balance = draw(st.sampled_from(["round_robin", "skewed"]))
    attention = pp == 1 and (dp > 1 or draw(st.booleans()))
    options = {"tp": tp, "pp": pp, "dp": dp if attention else 1, "dp_attention": attention, "dp_balance": balance}
    return RankLayout.read(options)


@given(layouts())
def test_peers_divide_the_ranks(layout: RankLayout) -> None:
    groups = {tuple(layout.peers(rank)) for rank in range(layout.world)}
    assert sorted(rank for group in groups for rank in group) == list(range(layout.world))
    assert all(rank in layout.peers(rank) for rank in range(layout.world))
    assert {len(group) for group in groups} == {layout.attention_tp}


@given(layouts())
def test_each_part_has_one_leader_which_is_the_first_of_its_peers(layout: RankLayout) -> None:
    for part in range(layout.dp):
        leader = layout.leader(part)
        assert layout.leads(leader)
        assert (layout.part(leader), layout.stage(leader)) == (part, 0)
        assert layout.peers(leader)[0] == leader
    assert sum(layout.leads(rank) for rank in range(layout.world)) == layout.dp


@given(layouts(), st.integers(1, 30))
def test_requests_go_round_the_parts_or_all_to_the_first(layout: RankLayout, count: int) -> None:
    taken = [layout.part_of(number) for number in range(count)]
    shares = [taken.count(part) for part in range(layout.dp)]
    if layout.dp_balance == "skewed":
        assert shares[0] == count
    else:
        assert max(shares) - min(shares) <= 1


def test_without_a_word_there_is_one_rank() -> None:
    assert RankLayout.read({"model": "tiny"}) == RankLayout()
    assert RankLayout().world == 1


@pytest.mark.parametrize(
    ("options", "place", "told"),
    [
        ({"tp": 0}, "tp", "whole number from 1 to 8"),
        ({"tp": True}, "tp", "whole number"),
        ({"pp": "2"}, "pp", "whole number"),
        ({"tp": 9}, "tp", "whole number"),
        ({"dp_attention": 1}, "dp_attention", "true or false"),
        ({"dp_balance": "fair"}, "dp_balance", "round_robin, skewed"),
        ({"tp": 2, "dp": 2}, "dp", "dp_attention: true"),
        ({"tp": 4, "dp": 3, "dp_attention": True}, "dp", "must divide tp, which is 4"),
        ({"tp": 4, "pp": 4}, "pp", "16 ranks; the most are 8"),
        ({"tp": 2, "pp": 2, "dp_attention": True}, "pp", "not beside dp_attention or disaggregation"),
        ({"pp": 2, "disaggregation": "pd"}, "pp", "not beside dp_attention or disaggregation"),
    ],
)
def test_what_no_layout_is_is_refused_at_its_key(options: dict[str, Any], place: str, told: str) -> None:
    with pytest.raises(InvalidOption, match=told) as caught:
        RankLayout.read(options)
    assert caught.value.key_path == (place,)
