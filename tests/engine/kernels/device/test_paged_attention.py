"""The paged-attention kernel against dense attention in float64.

Slots nobody attends hold NaN, and lists end in numbers that are no slot: reading one of either would show, or crash.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")

from specdebug.engine.kernels.triton.merging import merge_splits
from specdebug.engine.kernels.triton.paged_attention import Merge, Sequences, attend, count_tiles
from tests.interpreter import float_types

KV_HEADS = 2
Flavour = tuple[torch.dtype, int, int]
"""dtype, head_dim and query heads per key head."""
NO_SLOT = 2**30
FLAVOURS = [(dtype, *shape) for dtype, shape in zip(float_types(), ((32, 1), (24, 3), (64, 2)), strict=False)]
FLAVOUR_IDS = [f"{str(dtype)[6:]}-{dim}-{group}" for dtype, dim, group in FLAVOURS]
LENGTHS = st.lists(st.sampled_from([0, 1, 5, 31, 32, 33, 64, 65, 130]), min_size=1, max_size=2)
SPLITS = st.sampled_from([None, 1, 2, 3])
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)  # interpreted, a smaller example takes minutes to find


def capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


@dataclass
class Batch:
    """What a kernel is given, on its device, and the same in float64 for the reference."""

    q: Tensor
    k: Tensor
    v: Tensor
    sequences: Sequences
    slots: list[Tensor]  # of each sequence, on the CPU
    q_lens: list[int]
    seen: list[Tensor]  # bool [q_len, length] of each sequence

    @property
    def rows(self) -> list[slice]:
        """Of each sequence's queries in q."""
        ends = torch.tensor(self.q_lens).cumsum(0).tolist()
        return [slice(end - count, end) for end, count in zip(ends, self.q_lens, strict=True)]

    def run(self, splits: int | None = None) -> Tensor:
        """[n, Hq, D], directly or as the merge of ``splits`` parts, by the last program of each tile if it can."""
        out = torch.full(self.q.shape, 7.0, dtype=self.q.dtype, device=self.q.device)
        if splits is None:
            attend(self.q, self.k, self.v, self.sequences, out)
            return out
        if self.sequences.q_len is None:
            partial, lse = self.parts(splits)
            merge_splits(partial, lse, out)
            return out
        n, heads, dim = self.q.shape
        partial = torch.full((n, heads, splits, dim), float("nan"), device=self.q.device)
        lse = torch.full((n, heads, splits), float("nan"), device=self.q.device)
        tiles = count_tiles(self.sequences, self.q, self.k)
        tickets = torch.zeros(tiles + 1, dtype=torch.int32, device=self.q.device)
        tickets[tiles:].fill_(7)
        merge = Merge(out, tickets)
        for _ in range(2):  # the first leaves the tickets to the second as it found them
            attend(self.q, self.k, self.v, self.sequences, partial, lse, splits=splits, merge=merge)
        if not capturing():
            assert tickets.tolist() == [0] * tiles + [7]
        return out

    def parts(self, splits: int) -> tuple[Tensor, Tensor]:
        """[n, Hq, splits, D] and [n, Hq, splits]; NaN where nothing was written."""
        n, heads, dim = self.q.shape
        partial = torch.full((n, heads, splits, dim), float("nan"), device=self.q.device)
        lse = torch.full((n, heads, splits), float("nan"), device=self.q.device)
        attend(self.q, self.k, self.v, self.sequences, partial, lse, splits=splits)
        return partial, lse

    def expected(self) -> tuple[Tensor, Tensor]:
        """float64 [n, Hq, D] and log-sum-exp [n, Hq]."""
        q, k, v = (tensor.cpu().double() for tensor in (self.q, self.k, self.v))
        group = q.shape[1] // KV_HEADS
        outs, logs = [], []
        for rows, slots, seen in zip(self.rows, self.slots, self.seen, strict=True):
            keys, values = (tensor[slots].repeat_interleave(group, 1) for tensor in (k, v))
            scores = torch.einsum("nhd,mhd->hnm", q[rows], keys) / q.shape[2] ** 0.5
            scores = scores.masked_fill(~seen, float("-inf"))
            weights = torch.softmax(scores, dim=-1).masked_fill(~seen.any(1, keepdim=True), 0.0)
            outs.append(torch.einsum("hnm,mhd->nhd", weights, values))
            logs.append(torch.logsumexp(scores, dim=-1).T)
        return torch.cat(outs), torch.cat(logs)

    def check(self, found: Tensor) -> None:
        near = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}[self.q.dtype]
        assert found.dtype == self.q.dtype
        torch.testing.assert_close(found.cpu().double(), self.expected()[0], atol=near, rtol=near)


def make(
    device: torch.device,
    flavour: Flavour,
    lengths: list[int],
    q_lens: list[int],
    *,
    page_size: int = 0,
    uniform: bool = True,
    causal: bool = True,
    masked: bool = False,
    index: torch.dtype = torch.int32,
    seed: int = 0,
) -> Batch:
    """``page_size`` 0: packed lists. ``uniform``: all ``q_lens`` are the same and the kernel is told so."""
    dtype, dim, group = flavour
    generator = torch.Generator().manual_seed(seed)
    page = max(page_size, 1)
    counts = [-(-length // page) for length in lengths]
    order = torch.randperm(sum(counts) + 2, generator=generator)
    pages = list(order.split([*counts, 2]))[:-1]
    slots = [
        (one.unsqueeze(1) * page + torch.arange(page)).flatten()[:length]
        for one, length in zip(pages, lengths, strict=True)
    ]
    pool = torch.full((2, order.numel() * page, KV_HEADS, dim), float("nan"), dtype=dtype)
    live = torch.cat(slots)
    pool[:, live] = torch.randn((2, live.numel(), KV_HEADS, dim), generator=generator).to(dtype)
    fused = torch.randn((sum(q_lens), KV_HEADS * (group + 2), dim), generator=generator).to(dtype).to(device)
    if page_size:
        table = torch.full((len(lengths), max(counts) + 3), NO_SLOT, dtype=index)
        for b, one in enumerate(pages):
            table[b, : one.numel()] = one
        indices, extents = table.to(device)[:, : max(*counts, 1)], torch.tensor(lengths, dtype=torch.int32)
    else:
        indices = torch.cat([torch.tensor([NO_SLOT]), live, torch.full((70,), NO_SLOT)]).to(index).to(device)
        extents = torch.tensor([1, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32)
    seen = []
    for length, q_len in zip(lengths, q_lens, strict=True):
        one = torch.ones(q_len, length, dtype=torch.bool)
        if masked:
            one = torch.rand(one.shape, generator=generator) < 0.5
        elif causal:
            one = torch.arange(length) <= length - q_len + torch.arange(q_len).unsqueeze(1)
        seen.append(one)
    sequences = Sequences(indices, extents.to(device), page_size, q_lens[0] if uniform else None, causal=causal)
    if not uniform:
        indptr = torch.tensor([0, *q_lens]).cumsum(0).to(torch.int32)
        sequences = replace(sequences, qo_indptr=indptr.to(device))
    if masked:
        bits = torch.cat([torch.ones(3, dtype=torch.bool), *(one.flatten() for one in seen)])
        starts = torch.tensor([3, *(one.numel() for one in seen)]).cumsum(0)[:-1]
        sequences = replace(sequences, mask=bits.view(torch.uint8).to(device), mask_indptr=starts.to(device))
    return Batch(fused[:, : KV_HEADS * group], pool[0].to(device), pool[1].to(device), sequences, slots, q_lens, seen)


@pytest.mark.parametrize("flavour", FLAVOURS, ids=FLAVOUR_IDS)
@given(lengths=LENGTHS, q_len=st.integers(1, 5), kind=st.sampled_from(["causal", "all", "mask"]), data=st.data())
@settings(max_examples=12, phases=UNSHRUNK)
def test_packed_lists(device, flavour, lengths, q_len, kind, data):
    """Chains, prefixes and trees; index lists of either width; whole and in parts."""
    batch = make(
        device,
        flavour,
        lengths,
        [q_len] * len(lengths),
        causal=kind == "causal",
        masked=kind == "mask",
        index=data.draw(st.sampled_from([torch.int32, torch.int64])),
        seed=data.draw(st.integers(0, 999)),
    )
    batch.check(batch.run(data.draw(SPLITS)))


@pytest.mark.parametrize("flavour", FLAVOURS, ids=FLAVOUR_IDS)
@given(lengths=LENGTHS, q_len=st.integers(1, 5), page_size=st.sampled_from([1, 4, 6, 64]), data=st.data())
@settings(max_examples=8, phases=UNSHRUNK)
def test_page_tables(device, flavour, lengths, q_len, page_size, data):
    """Rows of a table are further apart than they are long."""
    q_lens = [q_len] * len(lengths)
    causal, seed = data.draw(st.booleans()), data.draw(st.integers(0, 999))
    batch = make(device, flavour, lengths, q_lens, page_size=page_size, causal=causal, seed=seed)
    batch.check(batch.run(data.draw(SPLITS)))


@pytest.mark.parametrize("flavour", FLAVOURS, ids=FLAVOUR_IDS)
@given(
    chunks=st.lists(st.tuples(st.sampled_from([0, 1, 31, 64, 70]), st.integers(0, 40)), min_size=1, max_size=2),
    page_size=st.sampled_from([0, 4]),
    seed=st.integers(0, 999),
)
@settings(max_examples=8, phases=UNSHRUNK)
def test_prefills(device, flavour, chunks, page_size, seed):
    """Causal chunks of different lengths after prefixes, some of them empty."""
    lengths, q_lens = [prefix + new for prefix, new in chunks], [new for _, new in chunks]
    batch = make(device, flavour, lengths, q_lens, page_size=page_size, uniform=False, seed=seed)
    batch.check(batch.run())


@given(
    lengths=LENGTHS, splits=st.sampled_from([1, 2, 4]), counts=st.none() | st.integers(-1, 9), seed=st.integers(0, 99)
)
@settings(max_examples=6, phases=UNSHRUNK)
def test_parts_carry_the_log_of_their_weights(device, lengths, splits, counts, seed):
    """Together they weigh what all keys weigh; a part without keys has -inf and is not written."""
    batch = make(device, (torch.float32, 32, 1), lengths, [2] * len(lengths), seed=seed)
    if counts is not None:
        given_counts = torch.full((len(lengths),), counts, dtype=torch.int32, device=device)
        batch.sequences = replace(batch.sequences, num_splits=given_counts)
        splits_used = min(max(counts, 1), splits)
    else:
        splits_used = splits
    partial, lse = batch.parts(splits)
    assert not bool(lse.isnan().any())
    assert bool((lse[:, :, splits_used:] == float("-inf")).all())
    assert torch.equal(partial.isnan().all(-1), lse == float("-inf"))
    expected = batch.expected()[1]
    torch.testing.assert_close(torch.logsumexp(lse.cpu().double(), -1), expected, atol=1e-5, rtol=1e-5)
    batch.check(batch.run(splits))


@pytest.mark.parametrize("splits", [None, 3])
@pytest.mark.parametrize("page_size", [0, 4])
@pytest.mark.parametrize(("kind", "position"), [("k", 0), ("v", 40), ("k", 89), ("all", 0)])
def test_a_nan_among_the_keys_is_seen_by_who_sees_it(device, splits, page_size, kind, position):
    """Also where every key is NaN and there is no largest score."""
    batch = make(device, (torch.float32, 32, 2), [90, 20], [2, 2], page_size=page_size)
    clean = batch.run(splits)
    slots = batch.slots[0] if kind == "all" else batch.slots[0][position : position + 1]
    for name, pool in (("k", batch.k), ("v", batch.v)):
        if kind in (name, "all"):
            pool[slots.to(device)] = float("nan")
    found = batch.run(splits)
    seers = batch.seen[0][:, position].to(device)
    assert bool(found[:2][seers].isnan().all())
    if kind == "k":
        assert torch.equal(found[:2][~seers], clean[:2][~seers])
    assert torch.equal(found[2:], clean[2:])


def test_a_query_that_sees_no_key_gets_zeros(device: torch.device) -> None:
    """No keys at all, a length below zero, more queries than keys, and a mask without a bit."""
    for page_size in (0, 4):
        batch = make(device, (torch.float32, 32, 1), [0, 3], [5, 5], page_size=page_size)
        for splits in (None, 2):
            out = batch.run(splits)
            batch.check(out)
            assert bool((out[:7] == 0).all())
            assert bool((out[7:] != 0).any(-1).all())
    batch.sequences = replace(batch.sequences, extents=torch.tensor([-3, 3], dtype=torch.int32, device=device))
    batch.check(batch.run())
    batch = make(device, (torch.float32, 32, 1), [40], [2], causal=False, masked=True)
    assert batch.sequences.mask is not None
    batch.sequences.mask.zero_()
    assert bool((batch.run() == 0).all())
    assert bool((batch.run(2) == 0).all())


@pytest.mark.gpu
def test_whoever_is_last_merges_to_the_same_bits(device: torch.device) -> None:
    """Programs end in another order every time; all rows and heads of an 8B target, lengths in 1 to 16 parts."""
    batch = make(device, (torch.bfloat16, 128, 4), [3000, 700, 40, 0], [5, 5, 5, 5])
    first = batch.run(16)
    batch.check(first)
    assert all(torch.equal(batch.run(16), first) for _ in range(50))


@pytest.mark.gpu
@pytest.mark.parametrize("masked", [False, True])
def test_a_captured_launch_attends_what_its_buffers_hold_at_replay(device: torch.device, masked: bool) -> None:
    """8B-shaped heads: captured on short sequences, replayed on long ones."""
    flavour = (torch.bfloat16, 128, 4)
    short = make(device, flavour, [9, 4], [4, 4], causal=not masked, masked=masked)
    long = make(device, flavour, [3000, 700], [4, 4], causal=not masked, masked=masked, seed=1)
    assert long.sequences.mask is None or short.sequences.mask is not None
    static = replace(
        long,
        sequences=replace(
            long.sequences,
            slots=torch.zeros_like(long.sequences.slots),
            extents=short.sequences.extents.clone(),
            mask=None if long.sequences.mask is None else torch.ones_like(long.sequences.mask),
            mask_indptr=None if short.sequences.mask_indptr is None else short.sequences.mask_indptr.clone(),
        ),
    )
    static.run(16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = static.run(16)
    for name in ("slots", "extents", "mask", "mask_indptr"):
        target, source = getattr(static.sequences, name), getattr(long.sequences, name)
        if target is not None:
            target.copy_(source)
    graph.replay()
    long.check(out)
