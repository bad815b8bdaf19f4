"""SGLang's kernels for gated delta nets and for Mamba2 in torch, token by token: a prefill's chunks, a decode's step,
and a verify's steps along a tree. A state is float32 [value heads, V, K]; that of a negative slot is zero, and not
kept. Two kernels of such models' layers stand beside them, which the interpreter calls once for each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from specdebug.targets.sglang.inside.launches import refuse

CHUNK = 64
"""Tokens between the states of which SGLang keeps snapshots."""


def _step(state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One token: the state after it, and what its query reads there [heads, V]. q, k: [heads, K]; v: [heads, V]; decay,
    beta: [heads]."""
    state = state * decay.exp()[:, None, None]
    wrong = (v - (state @ k.unsqueeze(-1)).squeeze(-1)) * beta.unsqueeze(-1)
    state = state + wrong.unsqueeze(-1) * k.unsqueeze(-2)
    return state, (state @ q.unsqueeze(-1)).squeeze(-1)


def _heads(part: Tensor, heads: int, normal: bool) -> Tensor:
    """Queries or keys [tokens, key heads, K] for each value head, float32, of length 1 if the kernel makes them so."""
    part = part.float().repeat_interleave(heads // part.shape[1], 1)
    return part * torch.rsqrt(part.pow(2).sum(-1, keepdim=True) + 1e-6) if normal else part


def _gates(A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """The decay, as a logarithm, and the weight of each token's value, [tokens, heads]."""
    return -A_log.float().exp() * softplus(a.float() + dt_bias.float()), b.float().sigmoid()


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    initial_state: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    inplace_update: bool = True,
    **more: Any,
) -> tuple[Tensor, None, Tensor]:
    """A prefill. q, k: [1, T, key heads, K]; v: [1, T, heads, V]; g, beta: [1, T, heads]. Returns what is read, [1, T,
    heads, V], and the state before each chunk of each request, [1, chunks, heads, V, K]."""
    refuse("chunk_gated_delta_rule", more, head_first=(False,))
    heads, scale = v.shape[2], k.shape[-1] ** -0.5 if scale is None else scale
    queries, keys = (_heads(each[0], heads, use_qk_l2norm_in_kernel) for each in (q, k))
    out, before = torch.empty_like(v), []
    ends = cu_seqlens.tolist()
    for request, slot in enumerate(initial_state_indices.tolist()[: len(ends) - 1]):
        state = _state(initial_state, slot)
        for number, at in enumerate(range(ends[request], ends[request + 1])):
            if number % CHUNK == 0:
                before.append(state)
            state, read = _step(
                state, queries[at] * scale, keys[at], v[0, at].float(), g[0, at].float(), beta[0, at].float()
            )
            out[0, at] = read.to(out.dtype)
        if inplace_update and slot >= 0:
            initial_state[slot] = state.to(initial_state.dtype)
    empty = initial_state.new_empty(0, *initial_state.shape[1:])
    return out, None, (torch.stack(before) if before else empty).to(k.dtype).unsqueeze(0)


def _state(pool: Tensor, slot: int) -> Tensor:
    return pool[slot].float().clone() if slot >= 0 else torch.zeros(pool.shape[1:])


def fused_recurrent_gated_delta_rule_packed_decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    out: Tensor,
    ssm_state_indices: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor]:
    """A decode: one token of each request, its queries, keys and values beside each other. out: [B, 1, heads, V]."""
    _, heads, values, keys = initial_state.shape
    width = (mixed_qkv.shape[1] - heads * values) // 2
    q, k, v = mixed_qkv[:, :width], mixed_qkv[:, width : 2 * width], mixed_qkv[:, 2 * width :]
    queries, keyed = (_heads(each.reshape(len(each), -1, keys), heads, use_qk_l2norm_in_kernel) for each in (q, k))
    decay, beta = _gates(A_log, a, b, dt_bias)

    def step(state: Tensor, row: int) -> Tensor:
        value = v[row].view(heads, values).float()
        state, read = _step(state, queries[row] * scale, keyed[row], value, decay[row], beta[row])
        out[row, 0] = read.to(out.dtype) if ssm_state_indices[row] >= 0 else 0.0
        return state

    _walk(initial_state, ssm_state_indices, range(len(out) + 1), step, None, None, None, update=True)
    return out, initial_state


def fused_sigmoid_gating_delta_rule_update(
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    softplus_beta: float,
    softplus_threshold: float,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
    **more: Any,
) -> Tensor:
    """A decode, or a verify: each token goes on from the state of the one before it, or of its parent in a tree
    (``retrieve_parent_token`` [B, nodes]), and the state after each is kept in ``intermediate_states_buffer``
    [requests, cache_steps, heads, V, K]. Returns [1, T, heads, V]."""
    name = "fused_sigmoid_gating_delta_rule_update"
    refuse(name, {**more, "softplus_beta": softplus_beta}, softplus_beta=(1.0,), is_kda=(False,), lower_bound=(None,),
           cache_ring=(False,), match_cutedsl_decode=(False,))  # fmt: skip
    heads, scale = v.shape[2], k.shape[-1] ** -0.5 if scale is None else scale
    queries, keys = (_heads(each.flatten(0, 1), heads, use_qk_l2norm_in_kernel) for each in (q, k))
    decay, beta = _gates(A_log, a.reshape(-1, heads), b.reshape(-1, heads), dt_bias)
    values, out = v.flatten(0, 1), torch.zeros_like(v).flatten(0, 1)
    ends = list(range(0, v.shape[0] * v.shape[1] + 1, v.shape[1])) if cu_seqlens is None else cu_seqlens.tolist()

    def step(state: Tensor, at: int) -> Tensor:
        state, read = _step(state, queries[at] * scale, keys[at], values[at].float(), decay[at], beta[at])
        out[at] = read.to(out.dtype)
        return state

    kept = (intermediate_states_buffer, intermediate_state_indices, retrieve_parent_token)
    _walk(initial_state_source, initial_state_indices, ends, step, *kept, update=not disable_state_update)
    return out.view(1, -1, *out.shape[1:])


def _walk(
    pool: Tensor,
    slots: Tensor,
    ends: Sequence[int],
    step: Callable[[Tensor, int], Tensor],
    keep: Tensor | None,
    rows: Tensor | None,
    parents: Tensor | None,
    *,
    update: bool,
) -> None:
    """Each request's tokens, from its slot's state on, of a tree from that of each node's parent: ``step`` makes the
    state behind a token, which is kept in ``keep`` [rows, steps, ...], the last one in the pool if that is updated."""
    for request, slot in enumerate(slots.tolist()[: len(ends) - 1]):
        state, kept = _state(pool, slot), -1 if keep is None or rows is None else int(rows[request])
        for number, at in enumerate(range(ends[request], ends[request + 1])):
            if number and kept >= 0 and parents is not None and keep is not None:
                state = keep[kept, int(parents[request, number])].float()
            state = step(state, at)
            if kept >= 0 and keep is not None:
                keep[kept, number] = state.to(keep.dtype)
        if update and slot >= 0:
            pool[slot] = state.to(pool.dtype)


def _mamba(
    out: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, dt_bias: Tensor
) -> Callable[[Tensor, int], Tensor]:
    """Return a step: it makes the state behind a token, and writes what is read of it to ``out``. x, out: [T, heads,
    V]; dt: [T, heads]; A, D, dt_bias: [heads]; B, C: [T, groups, K]."""
    heads, steps = x.shape[1], softplus(dt.float() + dt_bias.float())
    keys, queries = (each.float().repeat_interleave(heads // each.shape[1], 1) for each in (B, C))
    fades, values = (steps * A.float()).exp(), x.float()

    def step(state: Tensor, at: int) -> Tensor:
        added = (steps[at].unsqueeze(-1) * values[at]).unsqueeze(-1) * keys[at].unsqueeze(-2)
        state = state * fades[at, :, None, None] + added
        out[at] = ((state @ queries[at].unsqueeze(-1)).squeeze(-1) + D.float().unsqueeze(-1) * values[at]).to(out.dtype)
        return state

    return step


def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    *,
    D: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    out: Tensor,
    state_dtype: torch.dtype,
    initial_states: Tensor | None = None,
    track_seq_idx: Tensor | None = None,
    track_end_locs: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """A prefill, all requests behind each other. Returns the states at the starts of chunks of the whole batch, [1,
    chunks, heads, V, K], those behind each request, and those that are to be tracked: of some requests, before a
    token."""
    refuse("mamba_chunk_scan_combined", more, z=(None,), dt_softplus=(True,), return_varlen_states=(True,),
           return_track_states=(True,), return_final_states=(False,), dt_limit=((0.0, float("inf")),))  # fmt: skip
    step, ends = _mamba(out[0], x[0], dt[0], A, B[0], C[0], D, dt_bias), cu_seqlens.tolist()
    shape = (len(ends) - 1, *x.shape[2:], B.shape[3])
    first = torch.zeros(shape) if initial_states is None else initial_states.float()
    pool, behind = first.clone(), [first[0]]
    for request, state in enumerate(first):
        for at in range(ends[request], ends[request + 1]):
            state = step(state, at)
            behind.append(state)
        pool[request] = state
    told = torch.stack(behind).to(state_dtype)
    some = track_seq_idx is not None and track_end_locs is not None and track_end_locs.numel() > 0
    tracked = told[track_end_locs.long()].unsqueeze(0) if some and track_end_locs is not None else None
    return told[: x.shape[1] : chunk_size].unsqueeze(0), pool.to(state_dtype), tracked


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    *,
    dt_bias: Tensor,
    out: Tensor,
    state_batch_indices: Tensor,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    **more: Any,
) -> None:
    """A decode, x [B, heads, V], or a verify, x [B, T, heads, V]. What is of a head comes spread over its columns."""
    refuse("selective_state_update", more, z=(None,), dt_softplus=(True,), pad_slot_id=(-1,))
    tokens = x.shape[1] if x.dim() == 4 else 1
    parts = (each.reshape(-1, *each.shape[-2:]) for each in (x, B, C))
    (values, keys, queries), steps = parts, dt.reshape(-1, *dt.shape[-2:])[..., 0]
    written = out.view(-1, *out.shape[-2:])
    step = _mamba(written, values, steps, A[:, 0, 0], keys, queries, D[:, 0], dt_bias[:, 0])
    ends = range(0, values.shape[0] + 1, tokens)
    kept = (intermediate_states_buffer, intermediate_state_indices, retrieve_parent_token)
    _walk(state, state_batch_indices, ends, step, *kept, update=not disable_state_update)


def scatter_states(
    dst: Tensor,
    src: Tensor,
    dst_indices_raw: Tensor,
    step_indices_raw: Tensor,
    src_indices_raw: Tensor | None = None,
) -> None:
    """After a verify: the state behind the last token that was accepted becomes a request's own. dst: [layers, slots,
    ...]; src: [layers, rows, steps, ...]; a negative step or slot moves nothing."""
    steps, slots = step_indices_raw.long(), dst_indices_raw.long()
    rows = torch.arange(steps.numel()) if src_indices_raw is None else src_indices_raw.long()
    some = (steps >= 0) & (slots >= 0)
    dst[:, slots[some]] = src[:, rows[some], steps[some]]


def fused_qkvzba_split_reshape_cat(
    mixed_qkvz: Tensor, mixed_ba: Tensor, num_heads_qk: int, num_heads_v: int, head_qk: int, head_v: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A layer's projections, of each key head its q, k, v and z, and b and a, as all q, k and v beside each other [T,
    width], z [T, heads, V], b and a [T, heads]."""
    tokens, wide = len(mixed_qkvz), num_heads_v // num_heads_qk
    each = torch.split(mixed_qkvz.view(tokens, num_heads_qk, -1), [head_qk, head_qk, wide * head_v, wide * head_v], 2)
    q, k, v, z = (part.reshape(tokens, -1) for part in each)
    b, a = (part.reshape(tokens, -1) for part in torch.split(mixed_ba.view(tokens, num_heads_qk, -1), wide, 2))
    return torch.cat((q, k, v), 1), z.view(tokens, num_heads_v, head_v), b, a


def launch_fused_gate_sigmoid_mul(
    hidden_states: Tensor, gate_weight: Tensor, shared_output: Tensor, output: Tensor, *, do_add: bool
) -> None:
    """The share of an expert that all tokens have, weighed by each token's gate, put into ``output`` or added there.
    All [T, width], the weight [width]."""
    gate = (hidden_states.float() @ gate_weight.float()).sigmoid().unsqueeze(1)
    output.copy_(gate * shared_output.float() + (output.float() if do_add else 0.0))
