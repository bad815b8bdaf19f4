"""The torch references of kernels for trees, acceptance, pool rows, logits and merges, against plain Python."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.errors import IllegalAddress
from specdebug.engine.kernels.accept import accepted_locs, compact, walk_greedy, walk_sampling
from specdebug.engine.kernels.kv_cache import MTPRows, move_kv, mtp_rows, write_kv
from specdebug.engine.kernels.logits import softmax_topk
from specdebug.engine.kernels.merge_pair import PartialAttention, merge_pair
from specdebug.engine.kernels.trees import build_tree, flat_tree_mask, pack_mask, packed_size
from tests.engine.textbook.speculative.trees import ancestors, candidate_trees, shapes

INF, NAN, INT32 = float("inf"), float("nan"), torch.int32

# --- trees ---


@settings(max_examples=100, derandomize=True)
@given(st.data())
def test_links_follow_from_parents(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    candidates, parents = data.draw(candidate_trees(shape, batch=2, vocab=3))
    links = build_tree(candidates.parent_list, candidates.top_scores_index, shape.topk)
    size = shape.tree_size
    assert (links.mask.dtype, tuple(links.mask.shape)) == (torch.bool, (2, size, size))
    for tensor in (links.parent, links.depth, links.next_token, links.next_sibling):
        assert tensor.dtype == torch.int64
    for b, parent in enumerate(parents):
        assert links.parent[b].tolist() == parent[1:]
        for node in range(size):
            above = ancestors(parent, node)
            assert int(links.depth[b, node]) == len(above) - 1
            assert links.mask[b, node].nonzero().flatten().tolist() == above
            children = [n for n, p in enumerate(parent) if p == node]
            assert int(links.next_token[b, node]) == (children[0] if children else -1)
            after = [n for n, p in enumerate(parent) if n > node > 0 and p == parent[node]]
            assert int(links.next_sibling[b, node]) == (after[0] if after else -1)


@pytest.mark.parametrize(
    ("groups", "chosen", "topk", "links"),
    [
        # candidates 2, 3 continue 0 and 4, 5 continue 1, which was not chosen: node 2 is its own parent
        ([-1, 0, 1], [0, 4, 5], 2, ([0, 2, 2], [1, -1, 2, -1], [-1, -1, 3, -1], [0, 1, 1, 2])),
        # a probe must see that there is no node 4; links go to the last one
        ([-1, 7, 7], [1, 2, 3], 2, ([0, 4, 4], [1, -1, -1, 2], [-1, -1, 3, -1], [0, 1, 1, 1])),
        ([], [0, 2], 4, ([0, 0], [1, -1, -1], [-1, 2, -1], [0, 1, 1])),
    ],
)
def test_parents_that_were_not_chosen_and_candidates_without_groups(
    groups: list[int], chosen: list[int], topk: int, links: tuple[list[int], ...]
) -> None:
    """links: parent, next_token, next_sibling, depth."""
    found = build_tree(torch.tensor([groups], dtype=torch.int64), torch.tensor([chosen]), topk)
    for tensor, row in zip((found.parent, found.next_token, found.next_sibling, found.depth), links, strict=True):
        assert tensor.tolist() == [row]


def test_a_candidate_of_no_group_is_an_error() -> None:
    with pytest.raises(IndexError):
        build_tree(torch.tensor([[-1, 0]]), torch.tensor([[0, 9]]), 2)


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    nodes=st.integers(1, 6),
    spare=st.integers(0, 7),
    seed=st.integers(0, 99),
)
@settings(max_examples=80)
def test_a_mask_s_row_is_the_prefix_and_then_the_tree(lengths: list[int], nodes: int, spare: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.randint(0, 2, (len(lengths), nodes, nodes), generator=generator).to(torch.bool)
    total = sum((length + nodes) * nodes for length in lengths)
    noise = torch.randint(0, 2, (total + spare,), generator=generator).to(torch.bool)
    bits = noise.clone()
    starts = flat_tree_mask(mask, torch.tensor(lengths), bits)
    expected: list[bool] = []
    for b, length in enumerate(lengths):
        assert int(starts[b]) == len(expected)
        for row in range(nodes):
            expected += [True] * length + mask[b, row].tolist()
    assert starts.dtype == torch.int64
    assert bits[:total].tolist() == expected
    assert torch.equal(bits[total:], noise[total:])


@settings(max_examples=100, derandomize=True)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    q_len=st.integers(1, 9),
    gap=st.integers(0, 3),
    seed=st.integers(0, 10**6),
)
def test_every_sequence_is_packed_as_numpy_packs_it(lengths: list[int], q_len: int, gap: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor(lengths) * q_len
    starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]) + gap
    bits = torch.randint(0, 2, (int(starts[-1]),), generator=generator).to(torch.bool)
    kv_indptr = torch.tensor([0, *np.cumsum(lengths)], dtype=INT32) + 5  # only differences count
    packed = torch.full((packed_size(bits.numel(), len(lengths)),), 0xAA, dtype=torch.uint8)
    packed_indptr = torch.full((len(lengths),), -1, dtype=INT32)
    pack_mask(bits, starts[:-1], kv_indptr, q_len, packed, packed_indptr)
    touched = np.zeros(packed.numel(), dtype=bool)
    for b, size in enumerate(sizes.tolist()):
        first = int(packed_indptr[b])
        expected = np.packbits(bits[int(starts[b]) : int(starts[b]) + size].numpy(), bitorder="little")
        own = slice(first, first + expected.size)
        assert not touched[own].any(), "sequences share a byte"
        touched[own] = True
        assert packed[own].tolist() == expected.tolist()
    assert (packed.numpy()[~touched] == 0xAA).all()


def test_bits_past_the_end_of_the_mask_are_an_illegal_address() -> None:
    packed, packed_indptr = torch.zeros(8, dtype=torch.uint8), torch.zeros(1, dtype=INT32)
    with pytest.raises(IllegalAddress, match=r"pack_mask\.bits"):
        pack_mask(torch.ones(12).bool(), torch.tensor([4]), torch.tensor([0, 10]), 1, packed, packed_indptr)


# --- accept and commit ---

#     0 ── 1 (token 4) ── 3 (token 5)
#     └─── 2 (token 7)
LINKS = tuple(torch.tensor([row]) for row in ([3, 4, 7, 5], [1, 3, -1, -1], [-1, 2, -1, -1]))


@pytest.mark.parametrize(
    ("wanted", "num_steps", "path"),
    [([4, 5, 0, 6], 2, [0, 1, 3]), ([4, 5, 0, 6], 1, [0, 1]), ([7, 5, 8, 6], 2, [0, 2]), ([9, 5, 8, 6], 2, [0])],
)
def test_a_greedy_walk_takes_what_the_target_wants(wanted: list[int], num_steps: int, path: list[int]) -> None:
    predict, accept_index, correct = walk_greedy(*LINKS, torch.tensor([wanted]), num_steps)
    assert accept_index.tolist() == [path + [-1] * (num_steps + 1 - len(path))]
    assert predict.tolist() == [wanted[node] if node in path else 0 for node in range(4)]
    assert correct.tolist() == [len(path) - 1]
    assert predict.dtype == accept_index.dtype == correct.dtype == INT32


@pytest.mark.parametrize(
    ("coin", "bonus", "path", "tokens"),
    [
        (0.2, 0.0, [0, 1], [4, 0]),  # below the first draft's mass; token 5 has none, so the walk ends at node 1
        (0.3, 0.9, [0, 2], [7, 1]),  # between the first draft's mass and both
        (0.8, 0.4, [0], [0]),  # past both: tokens 0 and 1 share what is left
        (0.8, 0.6, [0], [1]),
    ],
)
def test_a_coin_picks_among_children_and_the_bonus_excludes_them(
    coin: float, bonus: float, path: list[int], tokens: list[int]
) -> None:
    probs = torch.zeros(1, 4, 8)
    probs[0, :, 0] = probs[0, :, 1] = 0.5
    probs[0, 0, [0, 1, 4, 7]] = 0.25
    coins = torch.tensor([[coin, coin, coin, bonus]])
    predict, accept_index, correct = walk_sampling(*LINKS, probs, coins, 2, 1.0, 1.0)
    assert accept_index.tolist() == [path + [-1] * (3 - len(path))]
    assert predict[path].tolist() == tokens
    assert correct.tolist() == [len(path) - 1]


INDEX = torch.tensor([[0, 2, -1], [4, 5, 7]], dtype=INT32)  # nodes 0, 2 of request 0; 0, 1, 3 of request 1
SLOTS = torch.arange(10, 18)


def test_entries_without_a_node_keep_what_the_buffers_held() -> None:
    src, tgt = accepted_locs(INDEX, SLOTS, 4, torch.full((2, 3), -7), torch.full((2, 3), -8))
    assert src.tolist() == [[10, 12, -7], [14, 15, 17]]
    assert tgt.tolist() == [[10, 11, -8], [14, 15, 16]]
    buffer = torch.full((1, 3), -7)  # a path longer than its tree has no place for the rest
    src, tgt = accepted_locs(torch.tensor([[0, 1, -1]], dtype=INT32), SLOTS[:2], 2, buffer, buffer)
    assert src.tolist() == tgt.tolist() == [[10, 11, -7]]


def test_rows_past_the_accepted_repeat_the_root_and_predict_nothing() -> None:
    predict = torch.arange(100, 108, dtype=INT32)
    features = torch.arange(8.0).unsqueeze(1)
    tokens, rows, lengths = compact(INDEX, predict, torch.tensor([1, 2], dtype=INT32), features, 4)
    assert tokens.tolist() == [100, 102, 0, 0, 104, 105, 107, 0]
    assert rows.flatten().tolist() == [0, 2, 0, 0, 4, 5, 7, 4]
    assert lengths.tolist() == [2, 3]


# --- rows ---


def test_keys_and_values_land_at_their_slots() -> None:
    k_cache, v_cache = torch.zeros(6, 2, 4), torch.zeros(6, 2, 4)
    fused = torch.arange(1.0, 37).view(2, 18)[:, :16].view(2, 4, 4)
    write_kv(k_cache, v_cache, torch.tensor([4, 1]), fused[:, :2], fused[:, 2:])
    for cache, rows in ((k_cache, fused[:, :2]), (v_cache, fused[:, 2:])):
        assert torch.equal(cache[[4, 1]], rows)
        assert not bool(cache[[0, 2, 3, 5]].any())
    with pytest.raises(IndexError):
        write_kv(k_cache, v_cache, torch.tensor([6, 0]), fused[:, :2], fused[:, 2:])


def test_a_rotation_reads_before_it_writes() -> None:
    buffers = torch.arange(2 * 4 * 3.0).view(2, 4, 1, 3)
    expected = buffers[:, [0, 3, 1, 2]].clone()
    move_kv(buffers, torch.tensor([1, 2, 3]), torch.tensor([3, 1, 2]))
    assert torch.equal(buffers, expected)


def rows_of(ids: list[int], recent: list[list[int]], rows: list[int], lengths: list[int], took: list[int]) -> MTPRows:
    """Hidden states are a tenth of the ids."""
    recent_ids = torch.tensor(recent).view(len(recent), -1).long()
    features = torch.tensor(ids).unsqueeze(1) / 10
    return mtp_rows(
        torch.tensor(ids), features, recent_ids, recent_ids[..., None] / 10, *map(torch.tensor, (rows, lengths, took))
    )


def test_recent_positions_come_before_the_new_ones_and_a_short_request_repeats_its_last() -> None:
    found = rows_of([13, 14, 0, 23, 24, 25], [[0, 0], [11, 12], [-1, 22]], [1, 2], [7, 1], [2, 3])
    assert found.next_ids.tolist() == [11, 12, 13, 14, 0, 22, 23, 24, 25, 25]
    assert found.positions.tolist() == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]
    assert torch.equal(found.hidden_states.flatten(), found.next_ids / 10)
    assert found.last.tolist() == [3, 8]
    assert found.kept_ids.tolist() == [[13, 14], [24, 25]]
    assert torch.equal(found.kept_hidden.squeeze(-1), found.kept_ids / 10)


def test_one_layer_needs_no_earlier_position() -> None:
    found = rows_of([5, 0], [[], []], [1], [4], [1])
    assert (found.next_ids.tolist(), found.positions.tolist(), found.last.tolist()) == ([5, 0], [4, 5], [0])
    assert (found.kept_ids.shape, found.kept_hidden.shape) == ((1, 0), (1, 0, 1))


# --- logits and merges ---


@given(rows=st.lists(st.lists(st.integers(-2, 2), min_size=6, max_size=6), min_size=1, max_size=4), k=st.integers(1, 6))
@settings(max_examples=200)
def test_descending_and_of_equals_the_first(rows: list[list[int]], k: int) -> None:
    """Whole logits: equal ones have equal probabilities, and others do not."""
    logits = torch.tensor(rows, dtype=torch.float32)
    probs, ids = softmax_topk(logits, k)
    assert (probs.dtype, ids.dtype) == (torch.float32, torch.int64)
    assert torch.equal(probs, torch.softmax(logits, -1).gather(1, ids))
    for row, found in zip(rows, ids.tolist(), strict=True):
        assert found == [place for _, place in sorted((-logit, place) for place, logit in enumerate(row))][:k]


def test_a_row_without_a_softmax_is_nan_at_the_first_places() -> None:
    logits = torch.tensor([[0.0, NAN, 1.0, 2.0], [0.0, INF, 1.0, 2.0], [-INF] * 4, [0.0, 3.0, 1.0, 2.0]])
    probs, ids = softmax_topk(logits, 3)
    assert probs[:3].isnan().all()
    assert ids.tolist() == [[0, 1, 2]] * 3 + [[1, 3, 2]]


@given(batch=st.integers(1, 3), q_len=st.integers(1, 4), split=st.integers(0, 9), seed=st.integers(0, 999))
@settings(max_examples=60)
def test_parts_give_what_all_keys_at_once_give(batch: int, q_len: int, split: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(batch, 2, q_len, 9, generator=generator) * 3
    values = torch.randn(batch, 2, 9, 5, generator=generator)

    def attend(start: int, stop: int) -> PartialAttention:
        part = scores[..., start:stop]
        out = torch.softmax(part, -1) @ values[..., start:stop, :]
        return PartialAttention(out.transpose(1, 2).contiguous(), torch.logsumexp(part, -1))

    first, second = attend(0, split), attend(split, 9)
    each = PartialAttention(second.out.flatten(0, 1).unsqueeze(1), second.lse.transpose(1, 2).reshape(-1, 2, 1))
    for other in (second, each):  # one sequence, or as many as there are queries
        torch.testing.assert_close(merge_pair(first, other), attend(0, 9).out.flatten(0, 1))


def test_neither_has_keys_and_a_nan_without_weight() -> None:
    nothing = PartialAttention(torch.zeros(1, 2, 1, 3), torch.full((1, 1, 2), -INF))
    assert torch.equal(merge_pair(nothing, nothing), torch.zeros(2, 1, 3))
    bad = PartialAttention(torch.tensor([0.0, NAN]).view(1, 2, 1, 1).expand(-1, -1, -1, 3), nothing.lse)
    merged = merge_pair(PartialAttention(torch.ones(1, 2, 1, 3), torch.zeros(1, 1, 2)), bad)
    assert torch.equal(merged[0], torch.ones(1, 3))
    assert bool(merged[1].isnan().all())
