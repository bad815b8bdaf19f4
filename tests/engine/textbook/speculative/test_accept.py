"""Acceptance: greedy against a plain walk, sampling against the distribution it must reproduce; what a commit moves."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug import async_probe
from specdebug.engine.memory.arena import FillPolicy, Scratch
from specdebug.engine.textbook.memory.mha_pool import MHAPool
from specdebug.engine.textbook.speculative.accept import (
    Acceptance,
    accept_greedy,
    accept_sampling,
    compact_accept_to_front,
    get_src_tgt_cache_loc,
)
from specdebug.engine.textbook.speculative.tree import DraftCandidates, VerifyTree
from specdebug.engine.workers.v1 import truncate
from tests.engine.textbook.speculative.trees import Shape, candidate_trees, shapes
from tests.engine.texts import chi_square_p_value

VOCAB = 12
CREDIBLE = 1e-3
"""Draws are seeded: a test that passes keeps passing, and a wrong distribution is off by many orders."""


def walk(parents: list[int], tokens: list[int], wanted: list[int], num_steps: int) -> list[int]:
    """The nodes greedy acceptance takes, root first: always the first child that the target wants."""
    path = [0]
    while len(path) <= num_steps:
        children = [n for n, p in enumerate(parents) if p == path[-1] and tokens[n] == wanted[path[-1]]]
        if not children:
            break
        path.append(children[0])
    return path


def unpack(acceptance: Acceptance, tree_size: int, row: int) -> tuple[list[int], list[int]]:
    """(accepted nodes, emitted tokens) of one request; checks what holds for every acceptance."""
    index = acceptance.accept_index[row].tolist()
    count = int(acceptance.num_correct_drafts[row]) + 1
    assert index[count:] == [-1] * (len(index) - count)
    nodes = [flat - row * tree_size for flat in index[:count]]
    assert nodes == sorted(set(nodes))
    assert nodes[0] == 0
    assert nodes[-1] < tree_size
    predict = acceptance.predict[row * tree_size : (row + 1) * tree_size].tolist()
    assert all(predict[node] == 0 for node in range(tree_size) if node not in nodes)
    return nodes, [predict[node] for node in nodes]


@settings(max_examples=150, derandomize=True)
@given(st.data())
def test_greedy_follows_the_targets_choice(data: st.DataObject) -> None:
    shape = data.draw(shapes(min_topk=2))
    candidates, parents = data.draw(candidate_trees(shape, batch=2, vocab=3))
    tree = shape.builder().build(candidates, torch.tensor([0, 1]), torch.tensor([5, 9]))
    wanted = torch.tensor([[data.draw(st.integers(0, 2)) for _ in range(shape.tree_size)] for _ in range(2)])
    acceptance = accept_greedy(tree, wanted, shape.num_steps)
    assert acceptance.predict.dtype == acceptance.accept_index.dtype == torch.int32
    assert tuple(acceptance.accept_index.shape) == (2, shape.num_steps + 1)
    for b in range(2):
        path = walk(parents[b], tree.tokens[b].tolist(), wanted[b].tolist(), shape.num_steps)
        nodes, emitted = unpack(acceptance, shape.tree_size, b)
        assert nodes == path
        assert emitted == wanted[b, path].tolist()
        assert emitted[:-1] == tree.tokens[b, path[1:]].tolist(), "an accepted draft is what was emitted"


@settings(max_examples=60, derandomize=True)
@given(st.data())
def test_sampling_from_one_hot_targets_is_greedy(data: st.DataObject) -> None:
    """How a greedy request is served in a batch with sampled ones: all mass on the argmax, every coin 0."""
    shape = data.draw(shapes(min_topk=2))
    candidates, _ = data.draw(candidate_trees(shape, batch=2, vocab=3))
    tree = shape.builder().build(candidates, torch.tensor([0, 1]), torch.tensor([5, 9]))
    wanted = torch.tensor([[data.draw(st.integers(0, 2)) for _ in range(shape.tree_size)] for _ in range(2)])
    probs = torch.nn.functional.one_hot(wanted, 3).float()
    coins = torch.zeros(2, shape.num_steps + 2)
    thresholds = data.draw(st.sampled_from([{}, {"threshold_single": 0.3, "threshold_acc": 0.4}]))
    sampled = accept_sampling(tree, probs, coins, shape.num_steps, **thresholds)
    greedy = accept_greedy(tree, wanted, shape.num_steps)
    assert torch.equal(sampled.predict, greedy.predict)
    assert torch.equal(sampled.accept_index, greedy.accept_index)
    assert torch.equal(sampled.num_correct_drafts, greedy.num_correct_drafts)


# What follows draws from one small tree: two children below the root, two below the first, a chain below those.
#
#        0 ── 1 (token 4) ── 3 (token 1) ── 5 (token 2)
#        │    └── 4 (token 9)
#        └─── 2 (token 7)
TREE_TOKENS = [3, 4, 7, 1, 9, 2]
TREE_PARENTS = [-1, 0, 0, 1, 1, 3]
STEPS = 3


def small_tree(batch: int) -> VerifyTree:
    # candidates of topk 2: 0, 1 roots; 2, 3 below root 0; then below candidate 2
    shape = Shape(2, STEPS, 6)
    candidates = DraftCandidates(
        torch.tensor([[-1, 0, 1, 2, 3]]).expand(batch, -1),
        torch.tensor([[0, 1, 2, 3, 6]]).expand(batch, -1),
        torch.tensor([TREE_TOKENS[1:]]).expand(batch, -1),
    )
    zeros = torch.zeros(batch, dtype=torch.int64)
    return shape.builder().build(candidates, zeros + TREE_TOKENS[0], zeros)


def target_rows(seed: int = 17) -> Tensor:
    """A distribution for each node, drafts neither likely nor unlikely: float32 [6, VOCAB]."""
    logits = 0.7 * torch.randn(len(TREE_TOKENS), VOCAB, generator=torch.Generator().manual_seed(seed))
    for node, parent in enumerate(TREE_PARENTS):
        if parent >= 0:
            logits[parent, TREE_TOKENS[node]] += 1.5
    return torch.softmax(logits, dim=-1)


def draw(probs: Tensor, count: int = 8000, **thresholds: float) -> list[tuple[list[int], list[int]]]:
    """``count`` acceptances of the small tree: accepted nodes and emitted tokens of each."""
    coins = torch.rand(count, STEPS + 2, generator=torch.Generator().manual_seed(1))
    acceptance = accept_sampling(small_tree(count), probs.expand(count, -1, -1), coins, STEPS, **thresholds)
    return [unpack(acceptance, len(TREE_TOKENS), row) for row in range(count)]


def children(node: int) -> dict[int, int]:
    """Token -> child."""
    return {TREE_TOKENS[n]: n for n, p in enumerate(TREE_PARENTS) if p == node}


def as_mapping(row: Tensor) -> dict[object, float]:
    return dict(enumerate(row.tolist()))


@pytest.fixture(scope="module")
def exact_draws() -> list[tuple[list[int], list[int]]]:
    return draw(target_rows(), 20_000)


def test_each_emitted_token_has_the_targets_distribution(exact_draws) -> None:
    """Given that a node was reached, the token after it is drawn from the target's row, siblings or not."""
    probs = target_rows()
    after: dict[int, Counter[object]] = {node: Counter() for node in range(len(TREE_TOKENS))}
    for nodes, emitted in exact_draws:
        for node, token in zip(nodes, emitted, strict=True):
            after[node][token] += 1
    for node, counts in after.items():
        assert sum(counts.values()) > 300, f"node {node} is hardly ever reached"
        assert chi_square_p_value(counts, as_mapping(probs[node])) > CREDIBLE, f"after node {node}"


def test_whole_paths_have_the_targets_joint_distribution(exact_draws) -> None:
    """The first two tokens together, where a second is emitted: the draws behind them are independent."""
    probs = target_rows()
    counts: Counter[object] = Counter()
    expected: dict[object, float] = {}
    for _, emitted in exact_draws:
        counts[tuple(emitted[:2])] += 1
    for first in range(VOCAB):
        child = children(0).get(first)
        if child is None:
            expected[(first,)] = float(probs[0, first])
            continue
        for second in range(VOCAB):
            expected[first, second] = float(probs[0, first] * probs[child, second])
    assert chi_square_p_value(counts, expected) > CREDIBLE


def test_coin_between_the_drafts_mass_and_one_never_leaves_the_target() -> None:
    """The drafts hold all mass, but their float sum may stay below a coin: no other token may come out."""
    probs = torch.zeros(1, 6, VOCAB)
    probs[0, 0, 4], probs[0, 0, 7] = 0.3, 0.69999
    probs[0, 1:, 0] = 1.0
    coins = torch.full((1, STEPS + 2), 0.999999)
    acceptance = accept_sampling(small_tree(1), probs, coins, STEPS)
    assert int(acceptance.predict[0]) in (4, 7)


def test_what_was_rejected_beside_the_last_accepted_draft_may_follow_it() -> None:
    """Only siblings below the last accepted node are ruled out for the bonus, not those next to it."""
    probs = torch.zeros(1, 6, VOCAB)
    probs[0, 0, 4], probs[0, 0, 7], probs[0, 0, 1] = 0.1, 0.8, 0.1
    probs[0, 2, 4] = 0.9
    probs[0, 2, 5] = 0.1
    acceptance = accept_sampling(small_tree(1), probs, torch.full((1, 3), 0.5), num_steps=1)
    assert acceptance.accept_index.tolist() == [[0, 2]]
    assert acceptance.predict.tolist() == [7, 0, 4, 0, 0, 0]


def test_threshold_single_accepts_whatever_is_likely_enough() -> None:
    probs = target_rows()
    p4, p7 = float(probs[0, 4]), float(probs[0, 7])
    assert p4 < p7, "else the first sibling would always win"
    between = (p4 + p7) / 2
    results = draw(probs, threshold_single=between)
    assert sum(emitted[0] == 4 for _, emitted in results) / len(results) == pytest.approx(p4, abs=0.02)
    assert all(emitted[0] in (4, 7) for _, emitted in results), "the second is never turned down"


def test_threshold_acc_scales_what_a_coin_accepts() -> None:
    probs = target_rows()
    p4, p7 = float(probs[0, 4]), float(probs[0, 7])
    threshold = 0.8
    results = draw(probs, threshold_acc=threshold)
    accepted: Counter[int] = Counter(nodes[1] for nodes, _ in results if len(nodes) > 1)
    assert accepted[1] / len(results) == pytest.approx(p4 / threshold, abs=0.02)
    assert accepted[2] / len(results) == pytest.approx(min(p7 / threshold, 1 - p4 / threshold), abs=0.02)
    rest = Counter[object](emitted[0] for nodes, emitted in results if len(nodes) == 1)
    residual = probs[0].clone()
    residual[[4, 7]] = 0.0
    assert chi_square_p_value(rest, as_mapping(residual / residual.sum())) > CREDIBLE


def test_a_request_that_ends_accepts_no_node_beyond_its_last_token() -> None:
    index = torch.tensor([[0, 2, 3, -1], [4, 5, 7, 6], [8, -1, -1, -1]], dtype=torch.int32)
    whole = Acceptance(torch.arange(12, dtype=torch.int32), index, torch.tensor([2, 3, 0], dtype=torch.int32))
    part = truncate(whole, torch.tensor([3, 1, 1]))
    assert part.accept_index.tolist() == [[0, 2, 3, -1], [4, -1, -1, -1], [8, -1, -1, -1]]
    assert part.num_correct_drafts.tolist() == [2, 0, 0]
    assert (part.accept_index.dtype, part.num_correct_drafts.dtype) == (torch.int32, torch.int32)
    assert torch.equal(part.predict, whole.predict)


def test_nan_targets_end_the_walk_at_once() -> None:
    """No comparison holds: nothing is accepted, and what is emitted stays inside the vocabulary."""
    acceptance = accept_sampling(
        small_tree(1), torch.full((1, 6, VOCAB), float("nan")), torch.zeros(1, STEPS + 2), STEPS
    )
    assert acceptance.num_correct_drafts.tolist() == [0]
    assert 0 <= int(acceptance.predict[0]) < VOCAB


def test_check_probes_what_later_kernels_index_with(recording: None) -> None:
    good = Acceptance(
        torch.tensor([3, 0, 0, 5], dtype=torch.int32),
        torch.tensor([[0, -1], [2, 3]], dtype=torch.int32),
        torch.tensor([0, 1], dtype=torch.int32),
    )
    bad = Acceptance(good.predict + VOCAB, good.accept_index + 2, good.num_correct_drafts + 1)
    good.probe_indices(2, VOCAB)
    assert async_probe.drain() == []
    bad.probe_indices(2, VOCAB)
    sites = [violation.site for violation in async_probe.drain()]
    assert sites == ["accept.predict", "accept.accept_index", "accept.num_correct_drafts"]


GARBAGE = Scratch(FillPolicy("garbage", 3), torch.device("cpu"))


def acceptance_of(paths: list[list[int]], tree_size: int, num_steps: int) -> Acceptance:
    """Accepted nodes of each request; the token after node n of request b is 1000·(b + 1) + n."""
    predict = torch.zeros(len(paths) * tree_size, dtype=torch.int32)
    index = torch.full((len(paths), num_steps + 1), -1, dtype=torch.int32)
    for b, path in enumerate(paths):
        for rank, node in enumerate(path):
            index[b, rank] = b * tree_size + node
            predict[b * tree_size + node] = 1000 * (b + 1) + node
    counts = torch.tensor([len(path) - 1 for path in paths], dtype=torch.int32)
    return Acceptance(predict, index, counts)


@st.composite
def commits(draw: st.DrawFn) -> tuple[list[list[int]], int, int, Tensor]:
    """Paths (root first, ascending), tree_size, num_steps, and distinct slots of every node: int64 [B·T].

    The tree may be smaller than the longest path could be, and larger.
    """
    num_steps = draw(st.integers(1, 5))
    tree_size = draw(st.integers(2, 9))
    paths = []
    for _ in range(draw(st.integers(1, 3))):
        drafts = draw(st.sets(st.integers(1, tree_size - 1), max_size=min(num_steps, tree_size - 1)))
        paths.append([0, *sorted(drafts)])
    count = len(paths) * tree_size
    slots = draw(st.permutations(range(1, count + 1)))
    return paths, tree_size, num_steps, torch.tensor(slots)


@settings(max_examples=150, derandomize=True)
@given(commits())
def test_plan_covers_the_accepted_and_nothing_else(commit: tuple[list[list[int]], int, int, Tensor]) -> None:
    """PR 26335: both buffers have S + 1 entries a request; all that is not accepted copies slot 0 to itself."""
    paths, tree_size, num_steps, slots = commit
    plan = get_src_tgt_cache_loc(acceptance_of(paths, tree_size, num_steps), slots, tree_size, GARBAGE)
    width = num_steps + 1
    assert plan.src_loc.dtype == plan.tgt_loc.dtype == torch.int64
    assert plan.src_loc.numel() == plan.tgt_loc.numel() == len(paths) * width
    for b, path in enumerate(paths):
        mine = slots[b * tree_size : (b + 1) * tree_size].tolist()
        pad = [0] * (width - len(path))
        assert plan.src_loc[b * width : (b + 1) * width].tolist() == [mine[n] for n in path] + pad
        assert plan.tgt_loc[b * width : (b + 1) * width].tolist() == mine[: len(path)] + pad


@settings(max_examples=100, derandomize=True)
@given(commits())
def test_moving_puts_accepted_kv_in_front_in_order(commit: tuple[list[list[int]], int, int, Tensor]) -> None:
    """Also when a device copies entry by entry, ascending: no entry reads what an earlier one has overwritten."""
    paths, tree_size, num_steps, slots = commit
    sizes = {"num_slots": slots.numel(), "page_size": 1, "dtype": torch.float32, "fill": FillPolicy("zeros")}
    pool = MHAPool(num_layers=2, num_kv_heads=1, head_dim=1, **sizes)
    content = torch.arange(slots.numel() + 1, dtype=torch.float32)
    for layer in range(2):
        pool.k[layer][:, 0, 0] = content + 100 * layer
        pool.v[layer][:, 0, 0] = content + 100 * layer + 50
    plan = get_src_tgt_cache_loc(acceptance_of(paths, tree_size, num_steps), slots, tree_size, GARBAGE)
    one_by_one = content.clone()
    for src, tgt in zip(plan.src_loc.tolist(), plan.tgt_loc.tolist(), strict=True):
        one_by_one[tgt] = one_by_one[src]
    pool.move_kv_cache(plan.tgt_loc, plan.src_loc)
    for layer in range(2):
        assert torch.equal(pool.k[layer][:, 0, 0], one_by_one + 100 * layer)
        assert torch.equal(pool.v[layer][:, 0, 0], one_by_one + 100 * layer + 50)
    for b, path in enumerate(paths):
        mine = slots[b * tree_size : (b + 1) * tree_size]
        assert one_by_one[mine[: len(path)]].tolist() == mine[path].tolist()
    assert one_by_one[0] == 0, "the padding slot keeps what it had"


@settings(max_examples=150, derandomize=True)
@given(commits())
def test_compaction_keeps_tokens_and_features_together(commit: tuple[list[list[int]], int, int, Tensor]) -> None:
    paths, tree_size, num_steps, _ = commit
    acceptance = acceptance_of(paths, tree_size, num_steps)
    features = torch.arange(len(paths) * tree_size, dtype=torch.float32).unsqueeze(1).repeat(1, 3)
    compacted = compact_accept_to_front(acceptance, features, tree_size)
    assert compacted.predict.dtype == torch.int64
    assert compacted.accept_lengths.tolist() == [len(path) for path in paths]
    for b, path in enumerate(paths):
        rows = slice(b * tree_size, (b + 1) * tree_size)
        rest = tree_size - len(path)
        assert compacted.predict[rows].tolist() == [1000 * (b + 1) + node for node in path] + [0] * rest
        expected = [b * tree_size + node for node in path] + [b * tree_size] * rest
        assert compacted.features[rows, 0].tolist() == expected
        assert torch.equal(compacted.features[rows, 0], compacted.features[rows, 2])
