"""Twins of the plumbing kernels do on the device, byte for byte, what their references do on a CPU."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.kernels import accept, cache_locs, kv_cache, kv_indices, trees
from specdebug.engine.kernels.pointer import flat_storage
from specdebug.engine.memory.arena import Arena, ArenaLayout, FillPolicy
from tests.engine.kernels.cases_v1 import UPSTREAM, DraftCase, draft_cases
from tests.engine.textbook.speculative.trees import Shape, candidate_trees, parent_of
from tests.engine.texts import chi_square_p_value
from tests.interpreter import float_types

pytest.importorskip("triton")

from triton.runtime.interpreter import interpreter_builder

from specdebug.engine.kernels.triton import accept as accept_twins
from specdebug.engine.kernels.triton import cache_locs as cache_locs_twins
from specdebug.engine.kernels.triton import kv_cache as kv_cache_twins

CPU = torch.device("cpu")
INT32, INT64 = torch.int32, torch.int64


def twin_arenas(device: torch.device, **buffers: tuple[tuple[int, ...], torch.dtype]) -> tuple[Arena, Arena]:
    """Two arenas of these buffers in this order, on the CPU and on ``device``, both full of the same garbage."""
    layout = ArenaLayout(guards=True)
    for name, (shape, dtype) in buffers.items():
        layout.add(name, shape, dtype)
    here, there = (layout.build(FillPolicy("garbage", 7), place) for place in (torch.device("cpu"), device))
    return here, there


def memory(view: Tensor) -> Tensor:
    """Every byte of the allocation behind ``view``, guards included."""
    return flat_storage(view).view(torch.uint8).cpu()


@contextmanager
def guarded_outputs() -> Iterator[None]:
    """Tensors made meanwhile by ``torch.empty`` hold garbage and lie between guards, which must be whole at the end."""
    arenas: list[Arena] = []
    plain = torch.empty

    def guarded(shape: int | tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        layout = ArenaLayout(guards=True)
        layout.add("before", (1,), torch.uint8)
        layout.add("output", (shape,) if isinstance(shape, int) else tuple(shape), dtype)
        with mock.patch.object(torch, "empty", plain):
            arenas.append(layout.build(FillPolicy("garbage", len(arenas)), device))
        return arenas[-1]["output"]

    with mock.patch.object(torch, "empty", guarded):
        yield
    assert [violation for arena in arenas for violation in arena.check_guards()] == []


@dataclass(frozen=True)
class Call:
    """A call of a kernel. ``arguments``: tensors on the CPU, sizes, and functions that take a buffer out of an arena.
    ``buffers``: of the arena. ``tiles``: constants of the twin's module, so small that a row has many. ``sound``: no
    buffer is overrun; None: it may be. ``returned``: the twin writes to the buffers what the reference returns."""

    kernel: Callable[..., Any]
    arguments: tuple[Any, ...]
    buffers: Mapping[str, tuple[tuple[int, ...], torch.dtype]] = field(default_factory=dict)
    tiles: Mapping[str, int] = field(default_factory=dict)
    sound: bool | None = True
    returned: bool = False

    def run(self, kernel: Callable[..., Any], arena: Arena, device: torch.device) -> Any:
        return kernel(*(_placed(each, arena, device) for each in self.arguments))


def _placed(argument: Any, arena: Arena, device: torch.device) -> Any:
    """An argument on the device, with all of the memory around it."""
    if isinstance(argument, Tensor):
        whole = flat_storage(argument).to(device, copy=True)
        return whole.as_strided(argument.shape, argument.stride(), argument.storage_offset())
    return argument(arena) if callable(argument) else argument


def held(name: str) -> Callable[[Arena], Tensor]:
    return lambda arena: arena[name]


def check(call: Call, device: torch.device) -> None:
    here, there = twin_arenas(device, **call.buffers) if call.buffers else (None, None)
    expected = call.run(call.kernel, here, CPU)
    twins = import_module(call.kernel.__module__.replace(".kernels.", ".kernels.triton."))
    with mock.patch.multiple(twins, **call.tiles) if call.tiles else nullcontext(), guarded_outputs():
        found = call.run(getattr(twins, call.kernel.__name__), there, device)
        same(found, expected)
    if call.returned:
        assert [each.data_ptr() for each in found] == [there[name].data_ptr() for name in call.buffers]
    for name in [] if call.returned else call.buffers:
        assert torch.equal(memory(there[name]), memory(here[name])), name
    if here is not None:
        damage = here.check_guards()
        assert there.check_guards() == damage
        assert call.sound is None or (damage == []) is call.sound


def same(found: Any, expected: Any) -> None:
    if expected is None or isinstance(expected, Tensor):
        found, expected = (found,), (expected,)
    for number, (left, right) in enumerate(zip(found, expected, strict=True)):
        if right is None:
            assert left is None, number
        else:
            assert (left.dtype, left.shape) == (right.dtype, right.shape), number
            assert torch.equal(left.cpu(), right), number


# --- trees ---

TREES = [Shape(2, 1, 2), Shape(4, 1, 4), Shape(2, 3, 5), Shape(3, 3, 9), Shape(4, 4, 17), Shape(2, 5, 19)]


def closed_tree(draw: st.DrawFn) -> Call:
    shape = draw(st.sampled_from(TREES))
    candidates, _ = draw(candidate_trees(shape, batch=2, vocab=3))
    return Call(trees.build_tree, (candidates.parent_list, candidates.top_scores_index, shape.topk))


def open_tree(draw: st.DrawFn) -> Call:
    """Also parents after their children and beyond the last node, which links send in circles."""
    shape = draw(st.sampled_from(TREES))
    candidates, _ = draw(candidate_trees(shape, batch=1, vocab=3))
    size, last = shape.tree_size - 1, shape.num_candidates - 1
    chosen = draw(st.lists(st.integers(0, last), min_size=size, max_size=size, unique=True))
    groups = candidates.parent_list
    if draw(st.booleans()):
        count = groups.shape[1]
        groups = torch.tensor([draw(st.lists(st.integers(-1, last), min_size=count, max_size=count))])
    return Call(trees.build_tree, (groups.view(1, -1).to(INT64), torch.tensor([sorted(chosen)]), shape.topk))


def tree_mask(draw: st.DrawFn) -> Call:
    """With bits to spare, and with too few: those that do not fit land behind. One tree may serve all requests."""
    lengths = draw(st.lists(st.integers(0, 30), min_size=1, max_size=3))
    nodes, spare, shared = (
        draw(st.sampled_from([1, 3, 6])),
        draw(st.sampled_from([0, 7, -5, -100])),
        draw(st.booleans()),
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    mask = torch.randint(0, 2, (1 if shared else len(lengths), nodes, nodes), generator=generator).bool()
    total = sum((length + nodes) * nodes for length in lengths)
    return Call(
        trees.flat_tree_mask,
        (mask.expand(len(lengths), -1, -1), torch.tensor(lengths), held("custom_mask")),
        {"custom_mask": ((max(total + spare, 1),), torch.bool), "victim": ((400,), torch.bool)},
        {"_TILE": 8, "_MAX_PROGRAMS": 2},
        sound=True if spare >= 0 else None,
    )


def packed_mask(draw: st.DrawFn) -> Call:
    lengths, q_len = draw(st.sampled_from([([1], 1), ([7, 0, 9], 3), ([5, 64, 1, 33], 8), ([300, 2, 777], 13)]))
    sizes = torch.tensor(lengths) * q_len
    kv_indptr = torch.tensor([0, *lengths]).cumsum(0).to(INT32)
    bits = torch.rand(int(sizes.sum()) + 11, generator=torch.Generator().manual_seed(len(lengths))) < 0.5
    size = trees.packed_size(bits.numel(), len(lengths))
    return Call(
        trees.pack_mask,
        (bits, sizes.cumsum(0) - sizes, kv_indptr, q_len, held("packed"), held("packed_indptr")),
        {"packed": ((size,), torch.uint8), "packed_indptr": ((len(lengths),), INT32)},
    )


TREES_AND_MASKS = [closed_tree, open_tree, tree_mask, packed_mask]

# --- accept and commit ---

WALKED = [Shape(1, 3, 4), Shape(2, 1, 2), Shape(3, 2, 5), Shape(2, 4, 11)]
VOCAB = 11
SMALL = Shape(2, 2, 4)


def links_of(shape: Shape, parents: Tensor, chosen: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """tokens, next_token and next_sibling; a chain's links are one row for all requests."""
    from specdebug.engine.textbook.speculative.tree import DraftCandidates

    zeros = torch.zeros(len(tokens), dtype=INT64)
    tree = shape.builder().build(DraftCandidates(parents, chosen, tokens), zeros, zeros)
    return tree.tokens, tree.retrieve_next_token, tree.retrieve_next_sibling


def small_tree(batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens 4 and 7 below the root, 2 below the first."""
    rows = ([-1, 0, 1], [0, 1, 2], [4, 7, 2])
    return links_of(SMALL, *(torch.tensor([row]).expand(batch, -1) for row in rows))


def drawn_tree(draw: st.DrawFn, vocab: int) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
    """A batch of trees and their num_steps; paths may be longer than that."""
    shape = draw(st.sampled_from(WALKED))
    candidates, _ = draw(candidate_trees(shape, batch=draw(st.integers(1, 2)), vocab=vocab))
    links = links_of(shape, candidates.parent_list, candidates.top_scores_index, candidates.draft_tokens)
    return links, max(shape.num_steps - draw(st.integers(0, 1)), 1)


def greedy_walk(draw: st.DrawFn) -> Call:
    links, num_steps = drawn_tree(draw, vocab=3)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    return Call(accept.walk_greedy, (*links, torch.randint(0, 3, links[0].shape, generator=generator), num_steps))


def exact_probs(shape: tuple[int, ...], seed: int) -> Tensor:
    """Rows of multiples of 1/64 that add up to 1, with some zeros among them: sums are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    liking = torch.rand(shape, generator=generator).pow(3).view(-1, shape[-1])
    balls = torch.multinomial(liking, 64, replacement=True, generator=generator)
    counts = torch.zeros_like(liking).scatter_add_(1, balls, torch.ones(balls.shape))
    return (counts / 64).view(shape)


def sampled_walk(draw: st.DrawFn) -> Call:
    """Coins fall on boundaries as often as between them; probabilities may repeat one row in memory."""
    links, num_steps = drawn_tree(draw, VOCAB)
    seed, shared = draw(st.integers(0, 999)), draw(st.booleans())
    batch, nodes = links[0].shape
    probs = exact_probs((1 if shared else batch, nodes, VOCAB), seed).expand(batch, -1, -1)
    coins = torch.randint(0, 128, (batch, num_steps + 2), generator=torch.Generator().manual_seed(seed)) / 128
    thresholds = draw(st.sampled_from([(1.0, 1.0), (1.0, 1.0), (0.5, 0.5)]))
    tile = {"_VOCAB_TILE": draw(st.sampled_from([4, 4096]))}
    return Call(accept.walk_sampling, (*links, probs, coins, num_steps, *thresholds), tiles=tile)


def walk_without_a_distribution(draw: st.DrawFn) -> Call:
    """Drafts that hold all mass stay candidates when a coin passes them; rows of NaN, zeros and infinities."""
    content = draw(st.sampled_from(["short", "nan", "one nan", "zeros", "inf"]))
    probs = torch.full((1, 4, VOCAB), 0.125)
    if content == "one nan":
        probs[:, :, 5] = float("nan")
    else:
        probs.fill_({"short": 0.0, "nan": float("nan"), "zeros": 0.0, "inf": float("inf")}[content])
    coins = torch.full((1, 4), draw(st.sampled_from([0.0, 0.5])))
    if content == "short":
        probs[0, 0, 4], probs[0, 0, 7] = 0.25, 0.5
        coins = torch.tensor([[0.9, 0.9, 0.9, draw(st.sampled_from([0.0, 0.25, 0.999999]))]])
    tile = {"_VOCAB_TILE": draw(st.sampled_from([4, 4096]))}
    return Call(accept.walk_sampling, (*small_tree(), probs, coins, 2, 1.0, 1.0), tiles=tile)


def accepted(draw: st.DrawFn) -> tuple[Tensor, int]:
    """accept_index int32 [B, S+1], nodes ascending from the root, and tree_size, smaller and larger than a path."""
    tree_size, num_steps = draw(st.sampled_from([(2, 5), (9, 3), (4, 3), (6, 1)]))
    index = []
    for b in range(draw(st.integers(1, 3))):
        drafts = draw(st.sets(st.integers(1, tree_size - 1), max_size=min(num_steps, tree_size - 1)))
        path = [b * tree_size + node for node in (0, *sorted(drafts))]
        index.append(path + [-1] * (num_steps + 1 - len(path)))
    return torch.tensor(index, dtype=INT32), tree_size


def commit_plan(draw: st.DrawFn) -> Call:
    """Entries that were not accepted keep what the buffers hold."""
    index, tree_size = accepted(draw)
    slots = (
        torch.randperm(len(index) * tree_size, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))) + 1
    )
    shape = (tuple(index.shape), INT64)
    arguments = (index, slots, tree_size, held("src_loc"), held("tgt_loc"))
    return Call(accept.accepted_locs, arguments, {"src_loc": shape, "tgt_loc": shape}, returned=True)


def compaction(draw: st.DrawFn) -> Call:
    index, tree_size = accepted(draw)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    count = len(index) * tree_size
    predict = torch.randint(0, 2**31 - 1, (count,), generator=generator, dtype=INT32)
    correct = (index >= 0).sum(dim=1, dtype=INT32) - 1
    features = torch.randn(count, 30, generator=generator).to(draw(st.sampled_from(float_types())))[:, 3:23]
    tile = {"_MAX_TILE": draw(st.sampled_from([8, 2048]))}
    return Call(accept.compact, (index, predict, correct, features, tree_size), tiles=tile)


WALKS_AND_COMMITS = [greedy_walk, sampled_walk, walk_without_a_distribution, commit_plan, compaction]

# --- slots ---


def verify_slots(draw: st.DrawFn) -> Call:
    return Call(cache_locs.verify_cache_locs, (*row_cells(draw), draw(st.sampled_from([1, 4, 7]))))


def row_cells(draw: st.DrawFn, width: int = 24) -> tuple[Tensor, Tensor, Tensor]:
    """A table whose rows are further apart than they are long, rows and lengths. Cells past the end of a row are guard
    columns and the next row."""
    lengths = draw(st.lists(st.integers(0, width), min_size=1, max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    cells = torch.randperm((len(lengths) + 4) * (width + 3), generator=generator) + 1
    table = cells.to(INT32).view(-1, width + 3)[: len(lengths) + 1, :width]
    return table, torch.arange(len(lengths), 0, -1), torch.tensor(lengths)


@dataclass(frozen=True)
class Batch:
    """A table [5, 40] of strides 43 and 1, rows and lengths in it."""

    table: Tensor
    rows: Tensor
    lengths: Tensor

    @classmethod
    def drawn(cls, draw: st.DrawFn) -> Batch:
        generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        cells = torch.randint(-1000, 2**31 - 1, (5, 43), generator=generator, dtype=INT32)
        rows = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
        lengths = [draw(st.integers(0, 40)) for _ in rows]
        return cls(cells[:, :40], torch.tensor(rows), torch.tensor(lengths))


SMALL_TILES = {"_TILE": 8, "_MAX_PROGRAMS": 2}
"""Rows of many tiles and more tiles than programs, at sizes an interpreter can bear."""


def slots_in_a_row(draw: st.DrawFn) -> Call:
    """With ``missing`` elements too few in the list, the rest lands behind it."""
    batch, dtype = Batch.drawn(draw), draw(st.sampled_from([INT32, INT64]))
    missing, total = draw(st.sampled_from([0, 0, 3, 20])), int(batch.lengths.sum())
    kv_indptr = torch.cat([torch.zeros(1, dtype=INT64), batch.lengths.cumsum(0)])
    arguments = (batch.table, batch.rows, batch.lengths, kv_indptr.to(draw(st.sampled_from([INT32, INT64]))))
    buffers = {"kv_indices": ((max(total - missing, 1),), dtype), "victim": ((40,), dtype)}
    sound = missing == 0 or total <= 1
    return Call(kv_indices.create_kv_indices, (*arguments, held("kv_indices")), buffers, SMALL_TILES, sound)


def draft_lists(draw: st.DrawFn) -> Call:
    """Rows with elements to spare, and rows too narrow by some: overruns end up as if forwards ran in order."""
    batch, topk, forwards = Batch.drawn(draw), draw(st.sampled_from([1, 2, 4])), draw(st.integers(0, 4))
    dtype, spare = draw(st.sampled_from([INT32, INT64])), draw(st.sampled_from([0, 3, -1, -10, -50, -1000]))
    branches = len(batch.rows) * topk
    longest = topk * int(batch.lengths.sum()) + branches * forwards
    slots = 10**6 + torch.arange(branches * (forwards + 2)).view(branches, -1)
    return Call(
        kv_indices.generate_draft_decode_kv_indices,
        (batch.table, batch.rows, batch.lengths, slots, topk, held("kv_indices"), forwards),
        {"kv_indices": ((forwards + 1, max(longest + spare, 1)), dtype), "victim": ((longest,), dtype)},
        SMALL_TILES,
        sound=True if spare >= 0 else None,
    )


def page_tables(draw: st.DrawFn) -> Call:
    """Cells that belong to no request may hold anything: negative ones divide as torch divides them."""
    batch, page = Batch.drawn(draw), draw(st.sampled_from([1, 3, 16]))
    pages = min(draw(st.integers(0, 40)), 40 // page)
    tile = {"_TILE": draw(st.sampled_from([8, 1024]))}
    return Call(kv_indices.gather_page_table, (batch.table, batch.rows, pages, page), tiles=tile)


def expand_page_table(draw: st.DrawFn) -> Call:
    """Slots anywhere, of either sign. A row of too many pages runs into the next, which is written after it."""
    columns, rows, width = draw(st.sampled_from([1, 2, 5, 6])), draw(st.integers(1, 5)), draw(st.integers(1, 6))
    spread, generator = draw(st.sampled_from([3, 40])), torch.Generator().manual_seed(draw(st.integers(0, 99)))
    slots = torch.randint(-spread, spread, (rows, columns + 2), generator=generator)[:, :columns]
    return Call(
        kv_indices.set_expand_page_table,
        (slots, draw(st.sampled_from([1, 2, 3, 16])), held("expand_page_table")),
        {"expand_page_table": ((rows, width), INT32), "cache_seqlens": ((8,), INT32)},
        sound=True if columns <= width else None,
    )


SLOT_LISTS = [verify_slots, slots_in_a_row, draft_lists, page_tables, expand_page_table]

# --- rows ---

LAYERS, SLOTS, HEADS, DIM = 2, 12, 2, 16


def written_rows(draw: st.DrawFn) -> Call:
    """k and v are slices of one wider tensor, v's dimensions in another order; slots are one column of several."""
    dtype, slots = (
        draw(st.sampled_from(float_types())),
        draw(st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=5)),
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    fused = torch.randn(len(slots), 3 * HEADS, DIM, generator=generator).to(dtype)
    turned = fused.transpose(1, 2).contiguous().transpose(1, 2)
    index = torch.tensor([slots, slots], dtype=INT64).t().contiguous()[:, 0]
    rows = (fused[:, HEADS : 2 * HEADS], turned[:, 2 * HEADS :])
    places = (lambda arena: arena["pool"][1], lambda arena: arena["pool"][LAYERS + 1])
    pool = {"pool": ((2 * LAYERS, SLOTS, HEADS, DIM), dtype)}
    return Call(kv_cache.write_kv, (*places, index, *rows), pool, {"_MAX_TILE": draw(st.sampled_from([16, 2048]))})


def moved_rows(draw: st.DrawFn) -> Call:
    """All is read before anything is written; padding copies slot 0 to itself."""
    pair = st.tuples(st.integers(1, SLOTS - 1), st.integers(0, SLOTS - 1))
    pairs = draw(st.lists(pair, max_size=6, unique_by=lambda each: each[0])) + [(0, 0)] * draw(st.integers(0, 2))
    pool = {"pool": ((2 * LAYERS, SLOTS, HEADS, DIM), draw(st.sampled_from(float_types())))}
    moves = torch.tensor(pairs, dtype=INT64).view(-1, 2).unbind(1)
    return Call(kv_cache.move_kv, (held("pool"), *moves), pool, {"_MAX_TILE": draw(st.sampled_from([16, 2048]))})


def next_n_rows(draw: st.DrawFn) -> Call:
    """Lengths before the step, shorter and longer than there are layers, and what was accepted of three nodes."""
    lengths = draw(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    dtype, tile = draw(st.sampled_from(float_types())), {"_MAX_TILE": draw(st.sampled_from([8, 2048]))}
    batch, nodes, size, earlier, state = len(lengths), 3, 20, draw(st.integers(0, 3)), 5
    arguments = (
        torch.randint(0, 2**40, (batch * nodes,), generator=generator),
        torch.randn(batch * nodes, 30, generator=generator).to(dtype)[:, 3:23],
        torch.randint(0, 2**40, (state, earlier), generator=generator),
        torch.randn(state, earlier, size, generator=generator).to(dtype),
        torch.randint(0, state, (batch,), generator=generator),
        *torch.tensor(lengths).T.contiguous(),
    )
    return Call(kv_cache.mtp_rows, arguments, tiles=tile)


ROWS = [written_rows, moved_rows, next_n_rows]
CASES = [*TREES_AND_MASKS, *WALKS_AND_COMMITS, *SLOT_LISTS, *ROWS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@given(data=st.data())
@settings(max_examples=30)
def test_a_twin_does_what_its_reference_does(
    device: torch.device, case: Callable[[st.DrawFn], Call], data: st.DataObject
) -> None:
    check(case(data.draw), device)


@pytest.mark.parametrize(
    "shape", [Shape(8, 6, 256), Shape(64, 3, 72), pytest.param(Shape(16, 6, 1024), marks=pytest.mark.gpu)], ids=str
)
def test_the_largest_trees(device: torch.device, shape: Shape) -> None:
    """Interpreted, one as large as engines on a GPU take them would be half a minute."""
    rng = random.Random(5)
    topk, steps = shape.topk, shape.num_steps
    beams = list(range(-1, topk))
    for step in range(steps - 2):
        beams += [topk + topk * topk * step + c for c in rng.sample(range(topk * topk), topk)]
    chosen: set[int] = set()
    while len(chosen) < shape.tree_size - 1:
        candidate = rng.randrange(shape.num_candidates)
        if parent_of(candidate, beams, topk) in chosen | {-1}:
            chosen.add(candidate)
    check(Call(trees.build_tree, (torch.tensor([beams]), torch.tensor([sorted(chosen)]), topk)), device)


def test_walks_refuse_rows_with_gaps_between_elements(device: torch.device) -> None:
    gappy = torch.zeros(1, 8, dtype=INT64, device=device)[:, ::2]
    with pytest.raises(ValueError, match="rows must be contiguous"):
        accept_twins.walk_greedy(*(each.to(device) for each in small_tree()), gappy, 2)


@pytest.mark.gpu
def test_emitted_tokens_have_the_targets_distribution(device: torch.device) -> None:
    batch = 20_000
    generator = torch.Generator().manual_seed(1)
    probs = torch.softmax(torch.randn(1, 4, VOCAB, generator=generator), dim=-1)
    coins = torch.rand(batch, 4, generator=generator).to(device)
    links = [each.to(device) for each in small_tree(batch)]
    predict, accept_index, _ = accept_twins.walk_sampling(
        *links, probs.to(device).expand(batch, -1, -1), coins, 2, 1.0, 1.0
    )
    tokens, reached = predict.view(batch, 4).cpu(), accept_index.cpu()
    below = (reached[:, 1] % 4 == 1) & (reached[:, 1] >= 0)
    for seen, wanted in ((tokens[:, 0], probs[0, 0]), (tokens[below, 1], probs[0, 1])):
        assert chi_square_p_value(Counter[object](seen.tolist()), dict(enumerate(wanted.tolist()))) > 1e-3


@pytest.mark.gpu
def test_a_vocabulary_of_many_blocks(device: torch.device) -> None:
    """Counts over 2^24, so that every sum is exact in any order."""
    vocab, batch = 152_064, 4
    generator = torch.Generator().manual_seed(2)
    counts = torch.randint(0, 220, (batch, 4, vocab), generator=generator).float()
    counts[:, :, -1] += 2**24 - counts.sum(-1)
    coins = torch.rand(batch, 4, generator=generator)
    check(Call(accept.walk_sampling, (*small_tree(batch), counts / 2**24, coins, 2, 1.0, 1.0)), device)


@given(
    data=st.data(),
    topk=st.sampled_from([1, 2, 4]),
    steps=st.sampled_from([1, 3, 5]),
    page=st.sampled_from([1, 2, 3, 8]),
)
@settings(max_examples=40)
def test_draft_slots_and_duplicates(
    device: torch.device, data: st.DataObject, topk: int, steps: int, page: int
) -> None:
    """What there is to duplicate stands where the reference has it, once entries without use are left out."""
    table, rows, lengths = row_cells(data.draw)
    shape = {"topk": topk, "num_steps": steps, "page_size": page}
    expected = cache_locs.assign_draft_cache_locs(table, rows, lengths, **shape)
    there = [_placed(each, None, device) for each in (table, rows, lengths)]
    with guarded_outputs():
        slots, *copies = cache_locs_twins.assign_draft_cache_locs(*there, **shape)
        same(slots, expected.out_cache_loc)
        if expected.dup_src is None:
            assert copies == [None, None]
            return
        used = (torch.arange(page) < (lengths % page).view(-1, 1, 1).expand(-1, topk - 1, 1)).flatten()
        for found, wanted in zip(copies, expected[1:], strict=True):
            assert found.numel() == len(lengths) * (topk - 1) * page
            same(found.cpu()[used], wanted)
            assert not bool(found.cpu()[~used].any())


@contextmanager
def programs_in_order(seed: int) -> Iterator[None]:
    """Interpreted programs of every launch run in another order; compiled ones already do as they like."""
    rng, order = random.Random(seed), {}
    set_dim, set_index = interpreter_builder.set_grid_dim, interpreter_builder.set_grid_idx

    def launch(*grid: int) -> None:
        places = list(product(*map(range, grid)))
        order.clear()
        order.update(zip(places, rng.sample(places, len(places)), strict=True))
        set_dim(*grid)

    def begin(*place: int) -> Any:
        return set_index(*order[place])

    patched = partial(mock.patch.object, interpreter_builder)
    with patched("set_grid_dim", launch), patched("set_grid_idx", begin):
        yield


@given(case=draft_cases, seed=st.integers(0, 99))
@example(case=UPSTREAM, seed=0)
@example(case=UPSTREAM, seed=1)
@settings(max_examples=25)
def test_slots_and_branches_of_the_worker_v1_are_the_references_in_any_order(
    device: torch.device, case: DraftCase, seed: int
) -> None:
    table, rows, *rest = (
        each.to(device) for each in (case.table, case.rows, case.held_lens, case.offsets, case.out_cache_loc)
    )
    with programs_in_order(seed):
        cache_locs_twins.write_slots(table, rows, *rest)
        with guarded_outputs():
            lengths = case.seq_lens.to(device)
            found = cache_locs_twins.assign_draft_cache_locs(table, rows, lengths, **case.shape)
            assert found.out_cache_loc.tolist() == case.expected_branches()
    assert torch.equal(table.cpu(), case.expected_rows())


def test_more_slots_than_a_program_writes_are_all_written(device: torch.device) -> None:
    slots = torch.arange(1, 1001)
    places = (torch.tensor([2, 1]), torch.tensor([40, 7]), torch.tensor([0, 700, 1000]))
    with programs_in_order(5):
        call = Call(cache_locs.write_slots, (held("table"), *places, slots), {"table": ((3, 1100), INT32)})
        check(call, device)


def test_a_slot_outside_its_layer_lands_where_it_points(device: torch.device) -> None:
    """The first slot after layer 0 is slot 0 of layer 1: nothing on a device stands between them."""
    pool = torch.zeros(2 * LAYERS, SLOTS, HEADS, DIM, device=device)
    row = torch.ones(1, HEADS, DIM, device=device)
    kv_cache_twins.write_kv(pool[0], pool[LAYERS], torch.tensor([SLOTS], device=device), row, row)
    assert pool.flatten(2).any(-1).nonzero().tolist() == [[1, 0], [LAYERS + 1, 0]]


def test_every_guard_reports_its_first_last_and_number_of_damaged_bytes(device: torch.device) -> None:
    from specdebug.engine.kernels.triton.guards import look_at_guards

    memory = torch.full((400,), 7, dtype=torch.uint8, device=device)
    starts, stops = torch.tensor([3, 100, 300], device=device), torch.tensor([60, 111, 400], device=device)
    seen = torch.zeros((3, 3), dtype=INT64, device=device)
    memory[[0, 2, 60, 99, 111]] = 9  # next to regions, in none
    look_at_guards(memory, starts, stops, 7, 100, seen)
    assert seen.tolist() == [[0, 0, 0]] * 3
    memory[[3, 59, 105, 399]] = 0
    look_at_guards(memory, starts, stops, 7, 100, seen)
    assert seen.tolist() == [[0, 57, 2], [5, 6, 1], [99, 100, 1]]


@pytest.mark.gpu
def test_an_arena_on_a_gpu_leaves_what_it_saw_on_the_host() -> None:
    layout = ArenaLayout(guards=True)
    layout.add("first", (5,), torch.bool)
    layout.add("second", (3,), INT64)
    arena = layout.build(FillPolicy("garbage"), torch.device("cuda"))
    arena.watch_guards()
    torch.cuda.synchronize()
    assert arena.damage_seen() == []
    arena["first"].as_strided((7,), (1,), arena["first"].storage_offset())[5:] = False
    arena.watch_guards()
    torch.cuda.synchronize()
    (seen,) = arena.damage_seen()
    assert (seen.buffer, seen.victim, seen.first_byte, seen.overran, seen.damaged) == ("first", "second", 0, 2, 2)
    assert arena.damage_seen() == []
    assert [str(found) for found in arena.check_guards()] == [str(seen)]
    assert arena.check_guards() == []
