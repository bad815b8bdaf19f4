"""Gated delta nets and Mamba2 token by token: prefill, decode and verify read and leave the same state, written out in
float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug.targets.sglang.inside.recurrent import (
    CHUNK,
    chunk_gated_delta_rule,
    fused_qkvzba_split_reshape_cat,
    fused_recurrent_gated_delta_rule_packed_decode,
    fused_sigmoid_gating_delta_rule_update,
    launch_fused_gate_sigmoid_mul,
    mamba_chunk_scan_combined,
    scatter_states,
    selective_state_update,
)

KEY_HEADS, HEADS, K, V, TOKENS = 1, 2, 3, 4, 5


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


Q, KEYS, VALUES = random(1, TOKENS, KEY_HEADS, K), random(1, TOKENS, KEY_HEADS, K, seed=9), random(1, TOKENS, HEADS, V)
A, B, A_LOG, BIAS = random(TOKENS, HEADS), random(TOKENS, HEADS, seed=5), random(HEADS), random(HEADS, seed=3)
DECAY = -A_LOG.exp() * torch.log1p((A + BIAS).exp())


def written_out(state: Tensor, tokens: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """What each token reads [heads, V], and the state after it, float64 [heads, V, K]."""
    state, reads, states = state.double(), [], []
    for at in tokens:
        q, k = (each[0, at, 0].double() for each in (Q, KEYS))
        q, k = q / q.norm() / K**0.5, k / k.norm()
        heads = []
        for head in range(HEADS):
            kept = state[head] * DECAY[at, head].double().exp()
            gain = B[at, head].double().sigmoid()
            heads.append(kept + gain * torch.outer(VALUES[0, at, head].double() - kept @ k, k))
        state = torch.stack(heads)
        reads.append(state @ q)
        states.append(state)
    return reads, states


def close(ours: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(ours.double(), right, rtol=1e-4, atol=1e-5)


def prefill(pool: Tensor, ends: list[int], slots: list[int], **more: bool) -> tuple[Tensor, Tensor]:
    where = {"initial_state_indices": torch.tensor(slots), "cu_seqlens": torch.tensor(ends)}
    out, _, before = chunk_gated_delta_rule(
        Q,
        KEYS,
        VALUES,
        DECAY[None],
        B[None].sigmoid(),
        initial_state=pool,
        use_qk_l2norm_in_kernel=True,
        **where,
        **more,
    )
    return out, before


def test_a_prefill_goes_on_from_each_request_s_state_and_leaves_it() -> None:
    pool = random(4, HEADS, V, K)
    first = pool.clone()
    out, before = prefill(pool, [0, 2, 5], [3, 1])
    for slot, tokens in ((3, [0, 1]), (1, [2, 3, 4])):
        reads, states = written_out(first[slot], tokens)
        close(out[0, tokens], torch.stack(reads))
        close(pool[slot], states[-1])
    assert torch.equal(pool[[0, 2]], first[[0, 2]])
    assert torch.equal(before[0], first[[3, 1]])
    kept = pool.clone()
    prefill(pool, [0, 5], [2], inplace_update=False)
    assert torch.equal(pool, kept)


def test_a_state_is_told_for_each_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CHUNK == 64
    monkeypatch.setattr("specdebug.targets.sglang.inside.recurrent.CHUNK", 2)
    pool = random(2, HEADS, V, K)
    states = written_out(pool[1], [*range(TOKENS)])[1]
    _, before = prefill(pool, [0, 5], [1])
    close(before[0, 1:], torch.stack([states[1], states[3]]))


def test_a_decode_is_a_prefill_of_one_token_and_padding_touches_nothing() -> None:
    pool = random(3, HEADS, V, K)
    first, out = pool.clone(), torch.full((2, 1, HEADS, V), 9.0)
    packed = torch.cat((Q[0, :2].flatten(1), KEYS[0, :2].flatten(1), VALUES[0, :2].flatten(1)), 1)
    fused_recurrent_gated_delta_rule_packed_decode(
        packed, A[:2], B[:2], A_LOG, BIAS, K**-0.5, pool, out, torch.tensor([2, -1]), use_qk_l2norm_in_kernel=True
    )
    (read,), (state,) = written_out(first[2], [0])
    close(out[0, 0], read)
    close(pool[2], state)
    assert torch.equal(pool[:2], first[:2])
    assert not out[1].any()


def test_a_verify_keeps_the_state_after_each_node_and_its_last_accepted_one_becomes_the_request_s() -> None:
    pool, kept = random(3, HEADS, V, K), torch.zeros(2, TOKENS, HEADS, V, K)
    first = pool.clone()
    parents = torch.tensor([[0, 0, 0, 1, 2]])
    out = fused_sigmoid_gating_delta_rule_update(
        A_LOG, A, BIAS, 1.0, 20.0, Q, KEYS, VALUES, B, pool, torch.tensor([2]), use_qk_l2norm_in_kernel=True,
        cu_seqlens=torch.tensor([0, TOKENS]), disable_state_update=True, intermediate_states_buffer=kept,
        intermediate_state_indices=torch.tensor([1]), cache_steps=TOKENS, retrieve_parent_token=parents,
    )  # fmt: skip
    assert torch.equal(pool, first)
    for path in ([0, 1, 3], [0, 2, 4]):
        reads, states = written_out(first[2], path)
        close(out[0, path], torch.stack(reads))
        close(kept[1, path], torch.stack(states))
    layers = pool[None].clone()
    scatter_states(layers, kept[None], torch.tensor([2, 0]), torch.tensor([4, -1]), torch.tensor([1, 0]))
    assert torch.equal(layers[0, 2], kept[1, 4])
    assert torch.equal(layers[0, :2], first[:2])


DT, DECAYS, SKIP = random(TOKENS, HEADS, seed=2), -random(HEADS, seed=4).exp(), random(HEADS, seed=6)


def mamba_written_out(state: Tensor, tokens: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """As :func:`written_out`, of Mamba2 with one group."""
    state, reads, states = state.double(), [], []
    for at in tokens:
        steps = torch.log1p((DT[at] + BIAS).double().exp())
        value, key, query = VALUES[0, at].double(), KEYS[0, at, 0].double(), Q[0, at, 0].double()
        heads = [
            state[head] * (steps[head] * DECAYS[head].double()).exp() + steps[head] * torch.outer(value[head], key)
            for head in range(HEADS)
        ]
        state = torch.stack(heads)
        reads.append(state @ query + SKIP.double().unsqueeze(1) * value)
        states.append(state)
    return reads, states


def test_a_prefill_of_mamba_tells_states_by_chunks_of_the_batch_and_those_that_are_tracked() -> None:
    begun, out = random(2, HEADS, V, K), torch.zeros(1, TOKENS, HEADS, V)
    chunks, behind, tracked = mamba_chunk_scan_combined(
        VALUES, DT[None], DECAYS, KEYS, Q, 2, D=SKIP, dt_bias=BIAS, cu_seqlens=torch.tensor([0, 3, 5]), out=out,
        state_dtype=torch.float32, initial_states=begun.clone(), dt_softplus=True, return_varlen_states=True,
        return_track_states=True, track_seq_idx=torch.tensor([1]), track_end_locs=torch.tensor([4]),
    )  # fmt: skip
    first, second = (mamba_written_out(begun[at], tokens) for at, tokens in ((0, [0, 1, 2]), (1, [3, 4])))
    close(out[0], torch.stack([*first[0], *second[0]]))
    close(behind, torch.stack([first[1][-1], second[1][-1]]))
    close(chunks[0], torch.stack([begun[0].double(), first[1][1], second[1][0]]))
    assert tracked is not None
    close(tracked[0, 0], second[1][0])


@pytest.mark.parametrize("verify", [False, True])
def test_a_step_of_mamba_goes_on_from_a_state_or_from_its_node_s_parent(verify: bool) -> None:
    pool, kept, nodes = random(3, HEADS, V, K), torch.zeros(2, TOKENS, HEADS, V, K), TOKENS if verify else 1
    first, out = pool.clone(), torch.zeros(1, nodes, HEADS, V)
    parts = [each[:, :nodes] for each in (VALUES, DT[None, ..., None].expand(-1, -1, -1, V))]
    told: dict[str, Any] = {
        "disable_state_update": True, "intermediate_states_buffer": kept, "cache_steps": TOKENS,
        "intermediate_state_indices": torch.tensor([1]), "retrieve_parent_token": torch.tensor([[0, 0, 0, 1, 2]]),
    } if verify else {}  # fmt: skip
    keyed = [each[:, :nodes] for each in (KEYS, Q)]
    given = [each if verify else each[:, 0] for each in (*parts, *keyed)]
    spread = DECAYS[:, None, None].expand(-1, V, K), SKIP[:, None].expand(-1, V), BIAS[:, None].expand(-1, V)
    selective_state_update(
        pool, *given[:2], spread[0], *given[2:], spread[1], dt_bias=spread[2], dt_softplus=True,
        out=out if verify else out[:, 0], state_batch_indices=torch.tensor([2]), **told,
    )  # fmt: skip
    for path in ([0, 1, 3], [0, 2, 4]) if verify else ([0],):
        reads, states = mamba_written_out(first[2], path)
        close(out[0, path], torch.stack(reads))
        close(kept[1, path] if verify else pool[2:], torch.stack(states))
    assert torch.equal(pool[:2], first[:2])
    assert torch.equal(pool[2], first[2]) is verify


def test_projections_of_each_key_head_come_apart() -> None:
    q, k, v, z = (100 * part + torch.arange(width) for part, width in enumerate((4, 4, 12, 12)))
    heads = [
        torch.cat((q[2 * h : 2 * h + 2], k[2 * h : 2 * h + 2], v[6 * h : 6 * h + 6], z[6 * h : 6 * h + 6]))
        for h in (0, 1)
    ]
    qkvz, ba = torch.cat(heads).expand(2, -1), torch.tensor([[1, 2, 5, 6, 3, 4, 7, 8]])
    told = fused_qkvzba_split_reshape_cat(qkvz.clone(), ba.expand(2, -1).clone(), 2, 4, 2, 3)
    right = (torch.cat((q, k, v)), z.view(4, 3), torch.tensor([1, 2, 3, 4]), torch.tensor([5, 6, 7, 8]))
    for ours, wanted in zip(told, right, strict=True):
        assert torch.equal(ours, wanted.expand(2, *wanted.shape))


@pytest.mark.parametrize("add", [False, True])
def test_a_shared_expert_is_weighed_by_each_token_s_gate(add: bool) -> None:
    hidden, weight, shared = torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.tensor([3.0, -1.0]), torch.ones(2, 2)
    out = torch.full((2, 2), 7.0)
    launch_fused_gate_sigmoid_mul(hidden, weight, shared, out, do_add=add)
    torch.testing.assert_close(out[:, 0], torch.tensor([0.5, 0.731059]) + 7.0 * add)


def test_what_is_not_done_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="has no is_kda"):
        fused_sigmoid_gating_delta_rule_update(
            A_LOG, A, BIAS, 1.0, 20.0, Q, KEYS, VALUES, B, random(1, HEADS, V, K), torch.tensor([0]), is_kda=True
        )  # fmt: skip
