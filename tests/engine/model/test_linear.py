"""Where weights lie, and products that may write over their addend."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.model.linear import as_weight, empty_weight, linear, linear_into

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")


def test_a_cpu_stores_inputs_first_and_other_devices_outputs_first():
    for make in (
        lambda device: empty_weight(3, 5, torch.float32, device),
        lambda device: as_weight(torch.empty(5, 3, device=device)),
    ):
        here, there = make(CPU), make(ELSEWHERE)
        assert here.shape == there.shape == (3, 5)
        assert (here.stride(), there.stride()) == ((5, 1), (1, 3))


def test_rows_already_in_place_are_shared():
    rows = torch.randn(5, 3)
    assert as_weight(rows.t().contiguous().t()).data_ptr() != rows.data_ptr()
    stored = rows.t().contiguous()
    assert as_weight(stored.t()).data_ptr() == stored.data_ptr()
    assert torch.equal(as_weight(rows), rows.t())


@pytest.mark.parametrize("with_bias", [True, False])
def test_the_product_leaves_its_operands_alone(with_bias):
    x, weight, bias = torch.randn(2, 3), torch.randn(3, 5), torch.randn(5) if with_bias else None
    kept = [None if value is None else value.clone() for value in (x, weight, bias)]
    out = linear(x, weight, bias)
    torch.testing.assert_close(out, x @ weight + (0 if bias is None else bias))
    for value, before in zip((x, weight, bias), kept, strict=True):
        assert value is before is None or torch.equal(value, before)


def test_the_sum_takes_the_place_of_its_addend():
    base, x, weight = torch.randn(2, 5), torch.randn(2, 3), torch.randn(3, 5)
    expected = torch.addmm(base, x, weight)
    assert linear_into(base, x, weight) is base
    assert torch.equal(base, expected)
