"""Stand-ins put into modules that stand for SGLang's, sgl-kernel's trees, and the entry point of a process."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug.targets.sglang.inside import seats, sgl_kernel, stand_ins
from specdebug.targets.sglang.inside.seats import NoSeat
from specdebug.targets.sglang.inside.sgl_kernel import (
    build_tree_kernel_efficient,
    top_k_renorm_prob,
    top_p_renorm_prob,
    tree_speculative_sampling_target_only,
    verify_tree_greedy,
)
from specdebug.targets.sglang.inside.stand_ins import STAND_INS, StandIn
from tests.targets.sglang.inside.engine import imported


def test_a_stand_in_is_made_of_what_is_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    imported(monkeypatch, {"new": {"kernel": 1}, "old": {"kernel": 5}})
    monkeypatch.setattr(stand_ins, "installed", seats.installed)
    one = StandIn(("srt.gone:kernel", "srt.new:kernel", "srt.old:kernel"), lambda kernel: kernel + 1)
    assert (one.applies, one.put()) == (True, "new.kernel")
    assert [getattr(*one.seat.find()), StandIn(("srt.old:kernel",), lambda _: 0).seat.find()[0].kernel] == [2, 5]
    with pytest.raises(NoSeat, match=r"SGLang has no srt\.new:other nor srt\.old:other"):
        StandIn(("srt.new:other", "srt.old:other"), lambda _: 0).put()
    assert StandIn(("srt.new:other",), lambda _: 0).applies
    assert not StandIn(("srt.new:other",), lambda _: 0, needed=False).applies


def test_a_platform_is_itself_but_no_cpu() -> None:
    platform = stand_ins._NoCpu(SimpleNamespace(is_cpu=lambda: True, is_cuda=lambda: False))
    assert (platform.is_cpu(), platform.is_cuda()) == (False, False)


def test_no_place_has_two_stand_ins() -> None:
    places = [place for each in STAND_INS for place in each.places]
    assert len(set(places)) == len(places)


def test_kernels_that_have_no_stand_in_are_refused_once_they_are_called() -> None:
    kernel = sgl_kernel.rotate_input_ids_cpu
    with pytest.raises(NotImplementedError, match=r"stand-in for sgl_kernel has no rotate_input_ids_cpu$"):
        kernel(1, out=2)
    with pytest.raises(AttributeError, match="__path__"):
        sgl_kernel.__path__  # noqa: B018 - what Python asks modules for


NODES = 4
PARENTS = torch.tensor([[-1, 0, 1], [-1, 0, 2]])
CHOSEN = torch.tensor([[0, 1, 2], [0, 2, 4]])
"""Two trees of topk 2, in which candidate c belongs to group c // 2, and PARENTS says which candidate a group
continues: in the first 1 and 2 are below the root and 3 below 1; the second is a chain."""
LINKS = ("retrive_index", "retrive_next_token", "retrive_next_sibling")


def build(mode: int, lengths: list[int]) -> dict[str, Tensor]:
    batch, width = len(lengths), NODES
    cells = sum(width * (length * (mode == 0) + width) for length in lengths)
    made = {
        "tree_mask": torch.ones(cells, dtype=torch.bool),
        "positions": torch.full((batch * width,), -7),
        **{name: torch.full((batch, width), -7) for name in LINKS},
    }
    build_tree_kernel_efficient(
        PARENTS, CHOSEN, torch.tensor(lengths), **made, topk=2, depth=2, draft_token_num=width, tree_mask_mode=mode
    )
    return made


@pytest.mark.parametrize("mode", [0, 1])
def test_nodes_are_linked_and_each_sees_the_context_and_its_ancestors(mode: int) -> None:
    made = build(mode, [3, 5])
    assert made["retrive_index"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert made["retrive_next_token"].tolist() == [[1, 3, -1, -1], [1, 2, 3, -1]]
    assert made["retrive_next_sibling"].tolist() == [[-1, 2, -1, -1], [-1, -1, -1, -1]]
    assert made["positions"].tolist() == [3, 4, 4, 5, 5, 6, 7, 8]
    context = 3 if mode == 0 else 0
    rows = made["tree_mask"][: NODES * (context + NODES)].view(NODES, -1).int()
    assert bool(rows[:, :context].all())
    assert rows[:, context:].tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
    with pytest.raises(NotImplementedError, match="has no mask of mode 2"):
        build(2, [1, 1])


def walk(kernel: Any, **given: Any) -> dict[str, Tensor]:
    """What a kernel writes that walks the first of the trees."""
    links = build(1, [3, 5])
    told = {
        "predicts": torch.full((NODES,), -5, dtype=torch.int32),
        "accept_index": torch.full((1, 3), -1, dtype=torch.int32),
        "accept_token_num": torch.full((1,), -5, dtype=torch.int32),
    }
    given = {name: links[name][:1] for name in LINKS} | given
    kernel(**told, candidates=torch.tensor([[10, 11, 12, 13]]), **given)
    return told


@pytest.mark.parametrize(
    ("places", "wanted", "path", "predicts"),
    [
        ([0, 1, 2, 3], [12, 0, 20, 0], [0, 2, -1], [12, -5, 20, -5]),
        # As in the kernels a node's place is the one that the index says, so an argument in another's place shows.
        ([1, 0, 3, 2], [0, 12, 0, 20], [1, 3, -1], [-5, 12, -5, 20]),
    ],
)
def test_the_path_that_the_target_wants_is_accepted_and_nothing_else_is_written(
    places: list[int], wanted: list[int], path: list[int], predicts: list[int]
) -> None:
    given = {"retrive_index": torch.tensor([places]), "target_predict": torch.tensor([wanted])}
    told = walk(verify_tree_greedy, **given)
    assert told["accept_index"].tolist() == [path]
    assert told["accept_token_num"].tolist() == [1]
    assert told["predicts"].tolist() == predicts


def sampled(probs: Tensor, drafts: Tensor, generator: torch.Generator) -> int:
    told = walk(
        tree_speculative_sampling_target_only,
        uniform_samples=torch.rand(1, NODES, generator=generator),
        uniform_samples_for_final_sampling=torch.rand(1, generator=generator),
        target_probs=probs,
        draft_probs=drafts,
    )
    return int(told["predicts"][0])


def test_sampled_drafts_are_accepted_as_often_as_the_target_says() -> None:
    probs, generator, count = torch.zeros(1, NODES, 30), torch.Generator().manual_seed(0), 4000
    probs[0, 0, [11, 12, 25]] = torch.tensor([0.5, 0.2, 0.3])
    probs[0, [1, 2, 3], 26] = 1.0
    with pytest.raises(NotImplementedError, match="has no draft_probs that are not 0"):
        sampled(probs, probs, generator)
    first = [sampled(probs, torch.zeros_like(probs), generator) for _ in range(count)]
    for token, share in ((11, 0.5), (12, 0.2), (25, 0.3)):
        # seven standard deviations
        assert abs(first.count(token) / count - share) < 7 * (share * (1 - share) / count) ** 0.5


def test_top_k_and_top_p_keep_what_they_must_and_sum_to_one() -> None:
    probs = torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.25, 0.25, 0.25, 0.25]])
    torch.testing.assert_close(top_k_renorm_prob(probs[:1], torch.tensor([2])), torch.tensor([[0, 4 / 7, 3 / 7, 0]]))
    torch.testing.assert_close(top_k_renorm_prob(probs, torch.tensor([1 << 30, 1])), probs)
    torch.testing.assert_close(top_p_renorm_prob(probs[:1], torch.tensor([0.5])), torch.tensor([[0, 4 / 7, 3 / 7, 0]]))
    torch.testing.assert_close(top_p_renorm_prob(probs, 1.0), probs)


PREPARED = """
import dataclasses, json
from specdebug.targets.inside.guard import LOST
from specdebug.targets.sglang.inside.stand_ins import prepare_for_cpu
prepare_for_cpu()
print(json.dumps([dataclasses.asdict(each) for each in LOST]))
"""


def test_stand_ins_that_have_no_place_are_noted_and_the_process_goes_on() -> None:
    """There is no SGLang here to put anything into."""
    lost = json.loads(subprocess.run([sys.executable, "-c", PREPARED], capture_output=True, check=True).stdout)
    assert all(each["stand_in"] for each in lost)
    assert {"graphs", "attention by FlashInfer"} <= {each["what"] for each in lost}
    assert {each["why"] for each in lost} == {"NoSeat: there is no SGLang here"}
