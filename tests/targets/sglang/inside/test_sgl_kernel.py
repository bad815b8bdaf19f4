"""Kernels of sgl-kernel's in torch, against what SGLang's own source says of them."""

from __future__ import annotations

import random

import torch

from specdebug.targets.sglang.inside.sgl_kernel import murmur_hash32, reconstruct_indices_from_tree_mask


def test_links_of_a_tree_come_back_from_its_mask() -> None:
    nodes, draw = 8, random.Random(3)
    parents = [[-1, *(draw.randrange(node) for node in range(1, nodes))] for _ in range(3)]
    masks = torch.zeros(3, nodes, nodes, dtype=torch.bool)
    for tree, above in enumerate(parents):
        for node in range(nodes):
            at = node
            while at >= 0:
                masks[tree, node, at] = True
                at = above[at]
    lengths = torch.tensor([5, 17, 40])
    index, child, sibling = (torch.zeros(3, nodes, dtype=torch.int64) for _ in range(3))
    positions = torch.zeros(3 * nodes, dtype=torch.int64)
    reconstruct_indices_from_tree_mask(masks.flatten(), lengths, positions, index, child, sibling, 3, nodes)
    assert index.flatten().tolist() == list(range(3 * nodes))
    for tree, above in enumerate(parents):
        for node, parent in enumerate(above):
            later = range(node + 1, nodes)
            assert child[tree, node] == next((each for each in later if above[each] == node), -1)
            beside = (each for each in later if above[each] == parent)
            assert sibling[tree, node] == (-1 if parent < 0 else next(beside, -1))
            depth = int(masks[tree, node].sum()) - 1
            assert positions[tree * nodes + node] == lengths[tree] + depth


def test_the_hash_of_seeds_is_murmur_s() -> None:
    """By hand, of the bytes of seed, position and column, little end first."""
    found = murmur_hash32(torch.tensor([1, 2**40 + 5]), torch.tensor([3, 4]), torch.arange(3))
    assert found.tolist() == [[4121973084, 2993210623, 808334041], [4279292228, 4075147864, 4164400762]]
    assert found.dtype == torch.uint32
