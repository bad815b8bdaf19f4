"""The public functions on a GPU: the twins' results, and nothing that waits for the device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from specdebug.engine.kernels.cache_locs import assign_draft_cache_locs, verify_cache_locs
from specdebug.engine.kernels.kv_indices import (
    create_kv_indices,
    gather_page_table,
    generate_draft_decode_kv_indices,
    set_expand_page_table,
)
from specdebug.engine.kernels.trees import build_tree, flat_tree_mask
from specdebug.engine.memory.arena import FillPolicy, Scratch
from specdebug.engine.textbook.memory.mha_pool import MHAPool
from specdebug.engine.textbook.speculative.accept import (
    Acceptance,
    accept_greedy,
    accept_sampling,
    compact_accept_to_front,
    compact_chain,
    get_src_tgt_cache_loc,
)
from specdebug.engine.textbook.speculative.tree import DraftCandidates, TreeBuilder

pytestmark = pytest.mark.gpu

BATCH, TOPK, STEPS, NODES, PAGE, VOCAB, WIDTH = 3, 4, 3, 9, 4, 50, 3000
LENGTHS = [1, 1111, 2500]
ACCEPTED = ("predict", "accept_index", "num_correct_drafts")
"""The tensors of an ``Acceptance`` that live on the device."""


def _case(device: torch.device) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    table = torch.randperm((BATCH + 1) * WIDTH, generator=generator).to(torch.int32).view(BATCH + 1, WIDTH)
    group = TOPK * TOPK
    beams = [*range(-1, TOPK), *(TOPK + c for c in (0, 5, 6, 15))]
    first, second = TOPK, TOPK + group  # the first continuation of either selection
    case = {
        "table": table,
        "rows": torch.tensor([3, 1, 2]),
        "lengths": torch.tensor(LENGTHS),
        "kv_indptr": torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32),
        "parent_list": torch.tensor([beams] * BATCH),
        "chosen": torch.tensor([[0, 1, 2, first, first + 1, first + 5, second, second + 4]] * BATCH),
        "draft_tokens": torch.randint(0, 4, (BATCH, NODES - 1), generator=generator),
        "bonus": torch.tensor([1, 2, 3]),
        "wanted": torch.randint(0, 4, (BATCH, NODES), generator=generator),
        "probs": torch.softmax(torch.randn(BATCH, NODES, VOCAB, generator=generator), dim=-1),
        "coins": torch.rand(BATCH, STEPS + 2, generator=generator),
        "features": torch.randn(BATCH * NODES, 40, generator=generator),
        "rows_to_write": torch.randn(BATCH * NODES, 6, 16, generator=generator),
    }
    return {name: tensor.to(device) for name, tensor in case.items()}


def _run(case: dict[str, Tensor], buffers: dict[str, Tensor], pool: MHAPool) -> dict[str, Tensor]:
    """Everything a step does between its forwards; called twice, so that the second call compiles nothing."""
    table, rows, lengths = case["table"], case["rows"], case["lengths"]
    draft = assign_draft_cache_locs(table, rows, lengths, topk=TOPK, num_steps=STEPS, page_size=PAGE)
    slots = verify_cache_locs(table, rows, lengths, NODES)
    create_kv_indices(table, rows, lengths, case["kv_indptr"], buffers["kv_indices"])
    generate_draft_decode_kv_indices(
        table, rows, lengths, draft.out_cache_loc, TOPK, buffers["draft.kv_indices"], STEPS - 1
    )
    set_expand_page_table(draft.out_cache_loc, PAGE, buffers["page_table"])
    builder = TreeBuilder(topk=TOPK, tree_size=NODES, device=table.device)
    candidates = DraftCandidates(case["parent_list"], case["chosen"], case["draft_tokens"])
    tree = builder.build(candidates, case["bonus"], lengths)
    starts = flat_tree_mask(tree.mask, lengths, buffers["mask"])
    greedy = accept_greedy(tree, case["wanted"], STEPS)
    sampled = accept_sampling(tree, case["probs"], case["coins"], STEPS)
    pool.write(1, slots, case["rows_to_write"][:, 2:4], case["rows_to_write"][:, 4:])
    scratch = Scratch(FillPolicy("zeros"), table.device)
    plan = get_src_tgt_cache_loc(greedy, slots, NODES, scratch)
    pool.move_kv_cache(plan.tgt_loc, plan.src_loc)
    if draft.dup_src is not None and draft.dup_tgt is not None:
        pool.move_kv_cache(draft.dup_tgt, draft.dup_src)
    compacted = compact_accept_to_front(greedy, case["features"], NODES)
    chain = compact_chain(greedy, case["features"])
    links = build_tree(case["parent_list"], case["chosen"], TOPK)
    found = {
        "slots": slots,
        "draft slots": draft.out_cache_loc,
        "pages": gather_page_table(table, rows, WIDTH // PAGE, PAGE),
        "mask starts": starts,
        "src": plan.src_loc,
        "tgt": plan.tgt_loc,
        "compacted": compacted.predict,
        "features": compacted.features,
        "lengths": compacted.accept_lengths,
        "chain": chain.predict,
        **{f"tree {name}": tensor for name, tensor in links._asdict().items()},
        **{f"greedy {name}": getattr(greedy, name) for name in ACCEPTED},
        **{f"sampled {name}": getattr(sampled, name) for name in ACCEPTED},
    }
    return found | buffers


def _buffers(device: torch.device) -> dict[str, Tensor]:
    total = sum(LENGTHS)
    draft_row = TOPK * (total + BATCH * STEPS)
    bits = NODES * (total + BATCH * NODES)
    return {
        "kv_indices": torch.zeros(total, dtype=torch.int32, device=device),
        "draft.kv_indices": torch.zeros((STEPS, draft_row), dtype=torch.int32, device=device),
        "page_table": torch.zeros((BATCH * TOPK, STEPS + 1), dtype=torch.int32, device=device),
        "mask": torch.zeros(bits, dtype=torch.bool, device=device),
    }


def _pool(device: torch.device) -> MHAPool:
    pool = MHAPool(
        num_layers=2,
        num_slots=(BATCH + 1) * WIDTH,
        page_size=PAGE,
        num_kv_heads=2,
        head_dim=16,
        dtype=torch.float32,
        fill=FillPolicy("zeros"),
        device=device,
    )
    for number, buffer in enumerate((*pool.k, *pool.v)):
        buffer.copy_(torch.arange(buffer.numel(), device=device).view(buffer.shape) % 9973 + number)
    return pool


@contextmanager
def _synchronising_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(scope="module")
def gpu() -> torch.device:
    return torch.device("cuda")


def test_a_step_gives_what_the_references_give_without_waiting(gpu: torch.device) -> None:
    cpu = torch.device("cpu")
    expected_pool, pool = _pool(cpu), _pool(gpu)
    expected = _run(_case(cpu), _buffers(cpu), expected_pool)
    case = _case(gpu)
    _run(case, _buffers(gpu), _pool(gpu))
    buffers = _buffers(gpu)
    torch.cuda.synchronize()
    with _synchronising_is_an_error():
        found = _run(case, buffers, pool)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name].cpu(), tensor), name
    for left, right in zip((*pool.k, *pool.v), (*expected_pool.k, *expected_pool.v), strict=True):
        assert torch.equal(left.cpu(), right)


def _captured(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def test_lists_written_in_a_graph_follow_lengths_that_change_after_capture(gpu: torch.device) -> None:
    """Grids depend on shapes only, so a replay may have any lengths."""
    case, buffers = _case(gpu), _buffers(gpu)
    slots = torch.arange(BATCH * TOPK * STEPS, device=gpu).view(-1, STEPS)

    def step() -> None:
        generate_draft_decode_kv_indices(
            case["table"], case["rows"], case["lengths"], slots, TOPK, buffers["draft.kv_indices"], STEPS - 1
        )

    lengths = case["lengths"].clone()
    case["lengths"].zero_()
    step()
    graph = _captured(step)
    case["lengths"].copy_(lengths)
    graph.replay()
    expected = _buffers(torch.device("cpu"))["draft.kv_indices"]
    there = _case(torch.device("cpu"))
    generate_draft_decode_kv_indices(
        there["table"], there["rows"], there["lengths"], slots.cpu(), TOPK, expected, STEPS - 1
    )
    for forward in range(STEPS - 1):
        used = TOPK * (sum(LENGTHS) + BATCH * (forward + 1))
        assert torch.equal(buffers["draft.kv_indices"][forward, :used].cpu(), expected[forward, :used])


def test_acceptances_feed_one_another_on_the_device(gpu: torch.device) -> None:
    """Coins still on the host are taken along."""
    case = _case(gpu)
    tree = TreeBuilder(topk=TOPK, tree_size=NODES, device=gpu).build(
        DraftCandidates(case["parent_list"], case["chosen"], case["draft_tokens"]), case["bonus"], case["lengths"]
    )
    acceptance = accept_sampling(tree, case["probs"], case["coins"].cpu(), STEPS)
    assert isinstance(acceptance, Acceptance)
    assert acceptance.predict.is_cuda
    assert torch.equal(acceptance.predict, accept_sampling(tree, case["probs"], case["coins"], STEPS).predict)
