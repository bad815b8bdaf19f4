"""The draft loop against plain recursion over a scripted model that tells paths apart."""

from dataclasses import dataclass, field

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.config import SpeculativeConfig
from specdebug.engine.memory.arena import FillPolicy
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.textbook.attention.executor import TorchAttention
from specdebug.engine.textbook.attention.planner import RaggedMetadata
from specdebug.engine.textbook.memory.mha_pool import MHAPool
from specdebug.engine.textbook.speculative.draft import DraftInputs, DraftLoop
from specdebug.engine.textbook.speculative.tree import DraftCandidates, top_k_probs
from specdebug.events import Observers
from tests.engine.textbook.speculative.trees import Shape, parent_of, paths_by_links, shapes

Path = tuple[int, ...]
OFFSET = 100
"""Target id of draft id i is i + OFFSET: mapped never or twice, an id falls outside its range."""


@dataclass
class ScriptedDraft:
    """Its hidden state is the number of the path that led to it, its logits any function of that path.

    The path of a row begins with the request's number. Whatever it is called with is kept.
    """

    vocab_size: int
    logits_of: dict[Path, Tensor]
    paths: list[Path]
    positions: list[list[int]] = field(default_factory=list)
    num_layers: int = 1
    num_heads: int = 1
    num_kv_heads: int = 1
    head_dim: int = 1
    hidden_size: int = 1
    target_feature_size: int = 1
    aux_layers: tuple[int, ...] = ()

    def project(self, target_features: Tensor) -> Tensor:
        return target_features

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        assert bool(((draft_ids >= 0) & (draft_ids < self.vocab_size)).all()), "mapped twice"
        return draft_ids + OFFSET

    def forward(self, input_ids: Tensor, positions: Tensor, hidden: Tensor, attn: LayerAttention) -> Tensor:
        draft_ids = input_ids - OFFSET
        assert bool(((draft_ids >= 0) & (draft_ids < self.vocab_size)).all()), "not mapped"
        self.positions.append(positions.tolist())
        rows = []
        for number, token in zip(hidden[:, 0].tolist(), draft_ids.tolist(), strict=True):
            self.paths.append((*self.paths[int(number)], token))
            rows.append(len(self.paths) - 1)
        out = torch.tensor(rows, dtype=torch.float32).unsqueeze(1)
        attn(0, out.unsqueeze(2), out.unsqueeze(2), out.unsqueeze(2))
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.stack([self.script(self.paths[int(n)]) for n in hidden[:, 0].tolist()])

    def script(self, path: Path) -> Tensor:
        if path not in self.logits_of:
            generator = torch.Generator().manual_seed(hash(path) & 0x7FFFFFFF)
            self.logits_of[path] = torch.randn(self.vocab_size, generator=generator) * 1.5
        return self.logits_of[path]


@dataclass
class Rig:
    """A loop over a scripted model, a pool to write to, and plans under which a row attends its own slot."""

    shape: Shape
    batch: int
    model: ScriptedDraft

    def __post_init__(self) -> None:
        rows, steps = self.batch * self.shape.topk, self.shape.num_steps
        sizes = {"num_slots": rows * steps, "page_size": 1, "dtype": torch.float32, "fill": FillPolicy("nan")}
        self.pool = MHAPool(num_layers=1, num_kv_heads=1, head_dim=1, **sizes)
        self.slots = (torch.randperm(rows * steps, generator=torch.Generator().manual_seed(0)) + 1).view(rows, steps)
        self.seq_lens = torch.arange(self.batch) * 7 + 5

    def run(self) -> DraftCandidates:
        shape, model = self.shape, self.model
        spec = SpeculativeConfig(eagle_topk=shape.topk, num_steps=shape.num_steps, num_draft_tokens=shape.tree_size)
        loop = DraftLoop(model, self.pool, spec, target_vocab_size=model.vocab_size + OFFSET, observers=Observers())
        first = torch.stack([model.script((b,)) for b in range(self.batch)])
        topk_p, topk_index = top_k_probs(first, shape.topk)
        rows = self.batch * shape.topk
        ends = torch.arange(rows + 1, dtype=torch.int32)
        plans = [
            RaggedMetadata(ends, self.slots[:, step].to(torch.int32).contiguous(), ends, q_len=1)
            for step in range(shape.num_steps - 1)
        ]
        inputs = DraftInputs(
            topk_p=topk_p,
            topk_index=topk_index,
            hidden_states=torch.arange(self.batch, dtype=torch.float32).unsqueeze(1),
            req_pool_indices=torch.arange(1, self.batch + 1),
            seq_lens=self.seq_lens,
            positions=self.seq_lens.repeat_interleave(shape.topk),
            out_cache_loc=self.slots,
        )
        attentions = [TorchAttention(plan, self.pool, loc) for plan, loc in zip(plans, loop.locs(inputs), strict=True)]
        return loop.run(inputs, attentions)


def scripted(vocab: int, batch: int, logits_of: dict[Path, Tensor] | None = None) -> ScriptedDraft:
    return ScriptedDraft(vocab, logits_of if logits_of is not None else {}, [(b,) for b in range(batch)])


def expand(model: ScriptedDraft, b: int, shape: Shape) -> dict[Path, float]:
    """Every candidate of request ``b`` by its path, with its score: K roots, then K² for each kept K."""
    scores: dict[Path, float] = {}
    beam: list[tuple[Path, float]] = [((b,), 1.0)]
    for _ in range(shape.num_steps):
        grown: list[tuple[Path, float]] = []
        for path, score in beam:
            probs = torch.softmax(model.script(path), dim=-1, dtype=torch.float32)
            best = sorted(range(model.vocab_size), key=lambda token: -float(probs[token]))[: shape.topk]
            grown += [((*path, token), score * float(probs[token])) for token in best]
        scores.update(grown)
        beam = sorted(grown, key=lambda item: -item[1])[: shape.topk]
    return scores


def chosen_paths(candidates: DraftCandidates, b: int, shape: Shape) -> list[Path]:
    """The path of each chosen candidate, in their order; fails unless its parent is chosen before it."""
    numbers = candidates.top_scores_index[b].tolist()
    tokens = [token - OFFSET for token in candidates.draft_tokens[b].tolist()]
    paths: dict[int, Path] = {-1: (b,)}
    for number, token in zip(numbers, tokens, strict=True):
        parent = parent_of(number, candidates.parent_list[b].tolist(), shape.topk)
        assert parent in paths, f"candidate {number} is chosen without its parent {parent}"
        paths[number] = (*paths[parent], token)
    return [paths[number] for number in numbers]


@settings(max_examples=120, derandomize=True)
@given(shape=shapes(min_topk=1, max_topk=4), vocab=st.integers(4, 9), batch=st.integers(1, 3))
def test_chooses_the_best_paths_of_a_beam_search(shape: Shape, vocab: int, batch: int) -> None:
    model = scripted(vocab, batch)
    rig = Rig(shape, batch, model)
    candidates = rig.run()
    for b in range(batch):
        scores = expand(model, b, shape)
        best = sorted(scores, key=lambda path: -scores[path])[: shape.tree_size - 1]
        assert sorted(chosen_paths(candidates, b, shape)) == sorted(best)


@settings(max_examples=60, derandomize=True)
@given(shape=shapes(min_topk=1, max_topk=4), batch=st.integers(1, 3))
def test_forward_i_runs_at_position_l_plus_i_and_writes_slot_column_i(shape: Shape, batch: int) -> None:
    model = scripted(6, batch)
    rig = Rig(shape, batch, model)
    rig.run()
    topk = shape.topk
    assert len(model.positions) == shape.num_steps - 1
    for step, positions in enumerate(model.positions):
        assert positions == [int(rig.seq_lens[b]) + step for b in range(batch) for _ in range(topk)]
        first = batch + step * batch * topk  # number of the first path this forward made
        written = rig.pool.k[0][rig.slots[:, step], 0, 0].tolist()
        assert written == list(range(first, first + batch * topk))
    untouched = rig.pool.k[0][rig.slots[:, shape.num_steps - 1]]
    assert bool(untouched.isnan().all()), "the last column is reserved and never written"


def tied_script(data: st.DataObject, shape: Shape, vocab: int) -> dict[Path, Tensor]:
    """Logits from {0, 1, certain}: siblings tie, and a child of probability 1.0 ties with its parent."""

    class Drawn(dict[Path, Tensor]):
        def __contains__(self, path: object) -> bool:
            return True

        def __missing__(self, path: Path) -> Tensor:
            logits = torch.tensor([float(data.draw(st.integers(0, 1))) for _ in range(vocab)])
            if data.draw(st.booleans()):
                logits[data.draw(st.integers(0, vocab - 1))] = 1e4  # softmax: exactly 1.0, the others 0.0
            self[path] = logits
            return logits

    return Drawn()


@settings(max_examples=120, derandomize=True)
@given(data=st.data(), shape=shapes(max_topk=4), vocab=st.integers(4, 6))
def test_ties_and_certainties_keep_the_tree_closed(data: st.DataObject, shape: Shape, vocab: int) -> None:
    model = scripted(vocab, 1, tied_script(data, shape, vocab))
    candidates = Rig(shape, 1, model).run()
    numbers = candidates.top_scores_index[0].tolist()
    assert numbers == sorted(set(numbers))
    assert 0 <= numbers[0] <= numbers[-1] < shape.num_candidates
    paths = chosen_paths(candidates, 0, shape)  # asserts closure
    assert len(set(paths)) == len(paths)
    bonus = torch.tensor([OFFSET])
    tree = shape.builder().build(candidates, bonus, torch.tensor([3]))
    reached = paths_by_links(tree, 0)
    tokens = tree.tokens[0].tolist()
    by_links = {node: tuple(tokens[n] - OFFSET for n in nodes[1:]) for node, nodes in reached.items()}
    assert [by_links[i + 1] for i in range(len(paths))] == [path[1:] for path in paths]
