"""How two tensors compare, and what passes for rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from specdebug.diverge.values import difference, keep, kept, tolerance


def test_the_first_element_that_differs() -> None:
    left = np.array([[1.0, 2.0], [3.0, np.nan]])
    right = np.array([[1.0, 2.0], [3.5, np.nan]])
    found = difference(left, right)
    assert found is not None
    assert (found.index, found.left, found.right, found.count, found.size) == ((1, 0), 3.0, 3.5, 1, 4)
    assert difference(left, left.copy()) is None


def test_zeros_of_either_sign_differ_by_no_gap() -> None:
    found = difference(np.zeros((1, 1)), -np.zeros((1, 1)))
    assert found is not None
    assert (found.count, found.gap) == (1, 0.0)


@pytest.mark.parametrize(
    ("left", "right", "rounding"),
    [
        ([[1000.0, 0.001]], [[1000.0, 0.0011]], True),  # little beside the largest of its row
        ([[1000.0, 0.0], [0.001, 0.0]], [[1000.0, 0.0], [0.0011, 0.0]], False),  # much beside its own row's
        ([[1.0, np.nan]], [[1.0, 2.0]], False),
        ([[1.0, np.inf]], [[1.00001, np.inf]], True),
        ([[1.0, np.inf]], [[1.0, -np.inf]], False),
    ],
)
def test_rounding_is_measured_by_the_row(left: list[list[float]], right: list[list[float]], rounding: bool) -> None:
    found = difference(np.array(left), np.array(right))
    assert found is not None
    assert (found.gap <= 1e-4) is rounding


def test_integers_and_shapes_differ_infinitely() -> None:
    found = difference(np.array([[10**9]]), np.array([[10**9 + 1]]))
    assert found is not None
    assert found.gap == np.inf
    other = difference(np.zeros((2, 3)), np.zeros((2, 4)))
    assert other is not None
    assert (other.left, other.right, other.gap) == ([2, 3], [2, 4], np.inf)


@pytest.mark.parametrize(("dtype", "unit"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_tolerances_grow_with_the_root_of_the_depth(dtype: str, unit: float) -> None:
    assert tolerance("verify.logits", dtype, 4, 256) == pytest.approx(8 * unit)
    assert tolerance("verify.logits", dtype, 16, 4096) == pytest.approx(16 * unit)
    assert tolerance("draft_extend.topk_p", dtype, 4, 256) == pytest.approx(80 * unit)


def test_float32_rounds_the_terms_of_its_sums() -> None:
    assert tolerance("kv_pool.write.k", "float32", 4, 256) == pytest.approx(8 * 16 * 2**-24)
    assert tolerance("kv_pool.write.k", "int64", 4, 256) == 0.0


def test_tensors_are_kept_by_place(tmp_path: Path) -> None:
    keep(tmp_path, (3, 7), torch.tensor([[1.5, 2.0]], dtype=torch.bfloat16))
    found = kept(tmp_path, (3, 7))
    assert found is not None
    assert found.tolist() == [[1.5, 2.0]]
    assert kept(tmp_path, (3, 8)) is None


def test_not_finite_is_text_in_plain_data() -> None:
    found = difference(np.array([[np.nan]]), np.array([[1.0]]))
    assert found is not None
    assert (found.to_dict()["left"], found.to_dict()["gap"]) == ("nan", "inf")
