"""What is read of a verify's buffers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.targets.sglang.inside.looks import _of_nodes_alone, tree_masks

TREES = [[[1, 0], [1, 1]], [[1, 0], [0, 1]]]
BEHIND = [1, 0, 1, 1, 0]


@pytest.mark.parametrize("alone", [True, False])
def test_each_tree_is_read_out_of_a_buffer_that_is_longer(alone: bool) -> None:
    contexts = [0, 0] if alone else [3, 1]
    flat = [cell for tree, length in zip(TREES, contexts, strict=True) for row in tree for cell in [1] * length + row]
    masks = tree_masks(torch.tensor(flat + BEHIND), [3, 1], 2, alone=alone)
    assert [mask.int().tolist() for mask in masks] == TREES


def worker(default: str, owned: str | None, **backend: Any) -> Any:
    if owned is not None:
        backend["verify_mask"] = SimpleNamespace(mode=SimpleNamespace(name=owned))
    runner = SimpleNamespace(attn_backend=SimpleNamespace(**backend))
    return SimpleNamespace(
        tree_mask_mode=SimpleNamespace(name=default), target_worker=SimpleNamespace(model_runner=runner)
    )


@pytest.mark.parametrize(
    ("default", "owned", "alone"),
    [
        ("FULL_MASK", None, False),
        ("QLEN_ONLY", None, True),
        ("FULL_MASK", "QLEN_ONLY", True),
        ("QLEN_ONLY", "FULL_MASK", False),
    ],
)
def test_the_backend_s_own_buffer_decides_how_masks_lie(default: str, owned: str | None, alone: bool) -> None:
    assert _of_nodes_alone(worker(default, owned)) is alone
