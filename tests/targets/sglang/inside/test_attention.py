"""The stand-ins of attention kernels against attention written out in float64, slot by slot."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from specdebug.targets.inside.words import facts_in
from specdebug.targets.sglang.inside.attention import STAGE1, flash_attn_with_kvcache
from specdebug.targets.sglang.inside.seats import NoSeat
from tests.targets.sglang.inside.launching import SPLITS, decode, extend, kernel

HEADS, KV_HEADS, DIM, SLOTS = 4, 2, 8, 40
SCALE = 0.3


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(math.prod(shape)))


def written_out(q: Tensor, keys: Tensor, values: Tensor, visible: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Attention of each query over the positions that it sees, [n, heads, D], and the logs of the sums of weights."""
    out, lse = torch.zeros(q.shape, dtype=torch.float64), torch.full((q.shape[1], q.shape[0]), float("-inf"))
    for row, seen in enumerate(visible):
        for head in range(q.shape[1]):
            kv = head // (q.shape[1] // keys.shape[1])
            scores = [float(q[row, head].double() @ keys[at, kv].double()) * SCALE for at in seen]
            if scores:
                weights = torch.tensor(scores, dtype=torch.float64)
                lse[head, row] = weights.logsumexp(0)
                out[row, head] = weights.softmax(0) @ values[seen, kv].double()
    return out, lse


def close(ours: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(ours.double(), right.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("splits", [1, 2, SPLITS])
def test_decode_reads_the_slots_that_the_indices_name(splits: int) -> None:
    k, v, q = random(SLOTS, KV_HEADS, DIM), random(SLOTS, KV_HEADS, DIM), random(3, HEADS, DIM)
    slots = torch.tensor([3, 1, 7, 7, 20, 39, 5])
    out = torch.full_like(q, 9.0)
    decode(q, k, v, out, torch.tensor([0, 2, 2, 7]), slots, SCALE, splits=torch.full((3,), splits))
    right, _ = written_out(q, k, v, [[3, 1], [], [7, 7, 20, 39, 5]])
    close(out[[0, 2]], right[[0, 2]])
    assert torch.equal(out[1], torch.full_like(out[1], 9.0))


def test_a_kernel_reads_by_the_strides_that_it_is_launched_with() -> None:
    """So a launch with strides of other dimensions, or of another buffer, shows."""
    k, v = random(SLOTS, KV_HEADS, DIM), random(SLOTS, KV_HEADS, DIM)
    q = random(3, HEADS, DIM).transpose(0, 1).contiguous().transpose(0, 1)
    out = torch.zeros(3, HEADS, DIM)
    decode(q, k, v, out, torch.tensor([0, 1, 2, 3]), torch.tensor([3, 4, 5]), SCALE)
    close(out, written_out(q, k, v, [[3], [4], [5]])[0])
    with pytest.raises(RuntimeError, match="out of bounds"):
        decode(q, k, v, out, torch.tensor([0, 1, 2, 3]), torch.tensor([3, 4, 5]), SCALE, stride_qbs=1 << 20)


@pytest.mark.parametrize("masked", [True, False])
def test_extend_sees_the_cache_and_of_new_tokens_what_is_allowed(masked: bool) -> None:
    k, v = random(SLOTS, KV_HEADS, DIM), random(SLOTS, KV_HEADS, DIM)
    q, new_k, new_v = random(5, HEADS, DIM), random(5, KV_HEADS, DIM), random(5, KV_HEADS, DIM)
    mask = torch.tensor([*[0] * 2, 1, 0, *[1] * 2, 1, 1, *[1] * 3, *[0, 0], 1, 0, *[0] * 9, 1]).bool()
    mask = torch.cat((mask[:8], torch.tensor([1, 0, 0, 1, 1, 0, 1, 0, 1]).bool()))
    out = torch.zeros_like(q)
    extend(
        (q, new_k, new_v), out, (k, v), torch.tensor([0, 2, 5]), torch.tensor([0, 2, 2]), torch.tensor([9, 4]), SCALE,
        mask=mask if masked else None, mask_rows=torch.tensor([0, 8]),
    )  # fmt: skip
    keys, values = torch.cat((k, new_k)), torch.cat((v, new_v))
    at = SLOTS
    tree = [[at + 2], [at + 2, at + 3], [at + 2, at + 4]]
    causal = [[at + 2], [at + 2, at + 3], [at + 2, at + 3, at + 4]]
    first = [[9, 4, at], [9, 4, at, at + 1]]
    close(out, written_out(q, keys, values, [*first, *(tree if masked else causal)])[0])


def test_queries_that_the_grid_has_no_block_for_are_not_computed() -> None:
    new, cache = (random(3, HEADS, DIM), *[random(3, KV_HEADS, DIM)] * 2), [random(SLOTS, KV_HEADS, DIM)] * 2
    out = torch.full((3, HEADS, DIM), 9.0)
    ends = torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64)
    extend(new, out, (cache[0], cache[1]), torch.tensor([0, 3]), *ends, SCALE, blocks=1, block=2)
    assert [bool((row == 9.0).all()) for row in out] == [False, False, True]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("cut", [True, False])
def test_flash_attention_over_pages(causal: bool, cut: bool) -> None:
    page, lengths = 4, [6, 3]
    k, v, q = random(10, page, KV_HEADS, DIM), random(10, page, KV_HEADS, DIM), random(4, HEADS, DIM)
    table = torch.tensor([[7, 2, 99], [5, 99, 99]], dtype=torch.int32)
    told = flash_attn_with_kvcache(
        q if cut else q.view(2, 2, HEADS, DIM), k, v, cache_seqlens=torch.tensor(lengths), page_table=table,
        cu_seqlens_q=torch.tensor([0, 2, 4]) if cut else None, softmax_scale=SCALE, causal=causal,
        return_softmax_lse=True, k=None, window_size=(-1, -1), softcap=0.0,
    )  # fmt: skip
    slots = [[7 * page + n for n in range(4)] + [2 * page, 2 * page + 1], [5 * page + n for n in range(3)]]
    seen = [at[: len(at) - 1 + row] if causal else at for at in slots for row in range(2)]
    right, lse = written_out(q, k.view(-1, KV_HEADS, DIM), v.view(-1, KV_HEADS, DIM), seen)
    close(told[0].reshape(q.shape), right)
    close(told[1] if cut else told[1].transpose(0, 1).reshape(HEADS, 4), lse)


def test_what_is_not_done_is_refused_and_the_harness_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    q, ends, slots = random(1, HEADS, DIM), torch.tensor([0, 1]), torch.tensor([0])
    for more, lacks in (
        ({"logit_cap": 30.0}, "logit_cap, and was given 30.0"),
        ({"NEW_MODE": True}, "argument NEW_MODE, and was given True"),
    ):
        with pytest.raises(NotImplementedError, match=f"stand-in for decode_attention_fwd has no {lacks}"):
            decode(q, q, q, q, ends, slots, SCALE, **more)
    with pytest.raises(NotImplementedError, match="has no window_size"):
        flash_attn_with_kvcache(q, q, q, cache_seqlens=ends, page_table=ends, window_size=(64, 0))
    with pytest.raises(NotImplementedError, match="has no new_option, and was given 3"):
        flash_attn_with_kvcache(q, q, q, cache_seqlens=ends, page_table=ends, new_option=3)
    told = [facts["lost"] for line in capsys.readouterr().err.splitlines() if (facts := facts_in(line))]
    assert [each["stand_in"] for each in told] == [True] * 4
    decode(q, q, q, q, ends, slots, SCALE, NEW_MODE=False)  # asks for nothing


def test_a_kernel_that_takes_other_arguments_has_no_stand_in() -> None:
    with pytest.raises(NoSeat, match="SGLang's kernel _stage1 has no argument Att_Lse, Att_Out, K_Buffer"):
        STAGE1.instead_of(kernel("Q kv_indptr kv_indices", "_stage1"))
