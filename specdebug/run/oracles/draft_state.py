"""Draft state and drafted trees: what a request stores for its next draft, and what is drafted from it.

What each step stores and drafts is copied, and compared at once when the request ends, with a causal draft that has
read the whole text. A choice that is narrow for the engine's dtype may go either way, and is taken to have gone the
engine's.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdebug.events import Aborting, AfterStep, Decided, DraftForward, Event, Finishing, Going, Prefilled
from specdebug.reference.drafting import Branches, DraftedText, Grown, Guide, TreeShape
from specdebug.run.oracles.base import Bench, Oracle
from specdebug.run.oracles.kv import all_zero
from specdebug.run.oracles.trees import TreesByMask, read_masks
from specdebug.targets.base import StoredDrafts
from specdebug.targets.requests import NotShown
from specdebug.verdict.outcome import Violation

HIDDEN_TOLERANCE = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
"""By the engine's dtype: how far the stored hidden state may be off, relative to its norm.

Measured on the shipped target with both heads, five pieces of source code of 45 to 200 tokens and 40 tokens more each,
trees of 1, 2 and 3 branches: at most 1e-2 in bfloat16, 1.1e-3 in float16 and 1.4e-6 in float32. The state of another
position or request is off by a good part of its norm.
"""

DRAFT_MARGIN = {"float32": 1e-4, "float16": 3e-3, "bfloat16": 2.5e-2}
"""By the engine's dtype: how far the log-probability of a draft may be off, as a part of the largest of its logits.

It is more than twice what one was measured to be off by, as above, because of two one may rise while the other falls:
at most 7e-3 in bfloat16, 1e-3 in float16 and 1e-6 in float32, at every forward of the draft loop. A path's score may be
off by that much for every level.
"""

MOST_LIKELY = 8  # drafts of each branch whose log-probability is compared, at every forward of the draft loop

AT_ONCE = 32  # steps that are compared together; bounds the memory that attention over a long text needs


@dataclass(frozen=True)
class _Forward:
    """A forward of the draft loop, a row for each branch of each request of the batch: what it read, int64 [B·K], and
    the most likely drafts, int64 [B·K, N], with their log-probabilities."""

    tokens: Tensor
    parents: Tensor
    likely: Tensor
    logs: Tensor


class _Tree(NamedTuple):
    """The trees of a batch, as ``Decided`` has them: kept for a request's life, which its logits are too large for."""

    tokens: Tensor
    mask: Tensor


@dataclass(frozen=True)
class _Kept:
    """A row of what a batch stored in ``step`` at ``length`` positions, and the tree that ``drafted_in`` drafted, by
    ``forwards`` where these could be listened to."""

    step: int
    length: int
    row: int
    state: StoredDrafts
    tree: _Tree | None = None
    drafted_in: int = 0
    forwards: Sequence[_Forward] = ()


@dataclass
class _Life:
    """A request since its last admission, or since another mended what it reads."""

    request: Any
    stored_in: int
    zeroed: Tensor | None
    kept: list[_Kept] = field(default_factory=list)


@dataclass(frozen=True)
class _Wrong:
    tensor: str
    told: str
    data: dict[str, Any] = field(default_factory=dict)


class DraftStateOracle(Oracle):
    """Compares what a request stored, and the trees drafted from it, with the reference's, step by step until one is
    wrong."""

    name = "draft_state"
    needs = frozenset({"kv", "draft", "drafts"})
    hears = (Prefilled, DraftForward, Decided, Going, Finishing, Aborting, AfterStep)
    of = ("drafts",)

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._lives: dict[str, _Life] = {}
        self._wrong: set[str] = set()
        self._shape: TreeShape | None = None
        self._decided: list[tuple[Decided, list[int]]] = []
        self._forwards: list[_Forward] = []

    def on(self, event: Event) -> None:
        match event:
            case Prefilled(request):
                self._begin(request)
            case DraftForward():
                self._keep_forward(event)
            case Decided():
                self._keep_decided(event)
            case Going(request):
                self._keep(request)
                self._compare(request)
            case Finishing(request):
                self._finish(request)
                self._end(request)
            case Aborting(request):
                self._end(request)
            case AfterStep(failed=failed):
                self._after_step(failed=failed)

    def _begin(self, request: Any) -> None:
        if not request.speculative or request.rid in self._wrong:
            return
        self._compare(request)  # what it stored before it was retracted
        self._lives[request.rid] = _Life(request, self.bench.step, self._zeroed(request))
        self._keep(request)

    @torch.no_grad()
    def _keep_forward(self, forward: DraftForward) -> None:
        if not forward.logits.is_cpu:
            return  # a GPU drafts ahead, and its graphs are replayed without a word
        if forward.step == 0:
            self._forwards = []
        logs, likely = forward.logits.float().log_softmax(-1).topk(min(MOST_LIKELY, forward.logits.shape[-1]))
        self._forwards.append(_Forward(forward.tokens.clone(), forward.parents.clone(), likely, logs))

    def _keep_decided(self, decision: Decided) -> None:
        forwards, self._forwards = self._forwards, []
        state = self.bench.session.draft_state(decision.requests)
        self._shape = TreeShape(decision.topk, decision.num_steps, decision.tokens.shape[1])
        self._decided.append((decision, [request.kv_len for request in decision.requests]))
        tree = _Tree(decision.tokens, decision.mask)
        for row, request in enumerate(decision.requests):
            life = self._lives.get(request.rid)
            if life is None:
                continue
            kept = _Kept(life.stored_in, request.kv_len, row, state, tree, self.bench.step, forwards)
            zeroed = self._zeroed(request)
            if zeroed is None or (life.zeroed is not None and torch.equal(zeroed, life.zeroed)):
                life.kept.append(kept)
                life.stored_in = self.bench.step
            else:  # another has mended what this one reads: it stored before that, and drafted after
                life.kept.append(replace(kept, tree=None, forwards=()))
                self._compare(request)
                if request.rid in self._lives:
                    self._lives[request.rid] = _Life(request, self.bench.step, zeroed)

    def _finish(self, request: Any) -> None:
        life = self._lives.get(request.rid)
        decided = life.kept[-1] if life is not None and life.kept and life.kept[-1].tree is not None else None
        # What was accepted beyond the end is not known, so neither is what should be stored behind it.
        if decided is not None and decided.length + request.accept_lengths[-1] == request.kv_len:
            self._keep(request)

    def _end(self, request: Any) -> None:
        self._compare(request)
        self._lives.pop(request.rid, None)

    def _after_step(self, *, failed: bool) -> None:
        decided, self._decided = self._decided, []
        for decision, lengths in decided:
            with self.bench.judging("drafted trees"):
                self._check_forms(decision, lengths)
        for life in list(self._lives.values()) if failed else ():
            with self.bench.judging(life.request.rid):
                self._compare(life.request)

    def _zeroed(self, request: Any) -> Tensor | None:
        """The positions whose draft KV was zeroed by policy; None where that is not the policy."""
        if not self.bench.settings.target.zero_fill:
            return None
        ours = tuple(side.cpu() for side in self.bench.session.draft_kv(request, 0, request.kv_len))
        return all_zero(ours).nonzero().flatten()

    def _keep(self, request: Any) -> None:
        life = self._lives.get(request.rid)
        if life is not None:
            with suppress(NotShown):  # nothing is stored where the context has no room for drafts
                state = self.bench.session.draft_state([request])
                life.kept.append(_Kept(life.stored_in, request.kv_len, 0, state))

    @torch.no_grad()
    def _compare(self, request: Any) -> None:
        """Compare what was kept of a request, and forget it; a request that is wrong is not looked at again."""
        life, reference = self._lives.get(request.rid), self.bench.reference
        if life is None or not life.kept or reference is None:
            return
        kept, life.kept = life.kept, []
        self.bench.looked(self.name)
        ids = list(request.all_ids)
        text = reference.drafted(ids[: max(each.length for each in kept) + 1], life.zeroed)
        for start in range(0, len(kept), AT_ONCE):
            found = self._first_wrong(text, ids, kept[start : start + AT_ONCE])
            if found is not None:
                self._condemn(request, *found)
                return

    def _first_wrong(
        self, text: DraftedText[Any], ids: list[int], kept: list[_Kept]
    ) -> tuple[_Kept, str, _Wrong] | None:
        """The first of these that is wrong, the site and what is wrong of it: a step drafts, and then stores."""
        outputs = text.outputs(torch.tensor([each.length for each in kept]))
        expected = text.stored(torch.tensor([each.length for each in kept]), outputs)
        shaped = [self._misshapen(each, expected.shape[1:]) for each in kept]
        fitting = next((index for index, wrong in enumerate(shaped) if wrong is not None), len(kept))
        states = self._states(text, ids, kept[:fitting], outputs[:fitting], expected[:fitting])
        states += shaped[fitting : fitting + 1]
        stored = next((index for index, wrong in enumerate(states) if wrong is not None), len(kept))
        trees = [index for index, each in enumerate(kept[:stored]) if each.tree is not None]
        if trees:
            drafted = [kept[index] for index in trees]
            for each, wrong in zip(drafted, self._trees(text, drafted, outputs[trees]), strict=True):
                if wrong is not None:
                    return each, "draft.forward.logits" if wrong.tensor == "logits" else "draft_tree", wrong
        found = states[stored] if stored < len(kept) else None
        return None if found is None else (kept[stored], "draft_state", found)

    def _misshapen(self, kept: _Kept, hidden: torch.Size) -> _Wrong | None:
        """What has another shape than what a request of this draft stores: then no number of it can be compared."""
        parts = {"hidden_states": list(hidden)}
        if kept.state.topk_index is not None and self._shape is not None:
            parts["topk_index"] = [self._shape.topk]
        for tensor, expected in parts.items():
            got = list(getattr(kept.state, tensor)[kept.row].shape)
            if got != expected:
                return _Wrong(tensor, f"shape {got}, expected {expected}", {"got": got, "expected": expected})
        return None

    def _states(
        self, text: DraftedText[Any], ids: list[int], kept: list[_Kept], outputs: Tensor, expected: Tensor
    ) -> list[_Wrong | None]:
        if not kept:
            return []
        dtype = self.bench.settings.target.dtype
        off = _off_by(_rows(kept, "hidden_states"), expected)
        drafts = [None] * len(kept) if kept[0].state.topk_index is None else self._drafts(text, kept, outputs)
        return [
            _wrong_number("seq_lens", int(each.state.seq_lens[each.row]), each.length)
            or _wrong_number("bonus", int(each.state.bonus[each.row]), ids[each.length])
            or (None if off[n] <= HIDDEN_TOLERANCE[dtype] else _wrong_state(float(off[n])))
            or drafts[n]
            for n, each in enumerate(kept)
        ]

    def _drafts(self, text: DraftedText[Any], kept: list[_Kept], outputs: Tensor) -> list[_Wrong | None]:
        index, dtype = _rows(kept, "topk_index"), self.bench.settings.target.dtype
        logits = text.logits(outputs)
        logs, allowed = logits.log_softmax(-1), DRAFT_MARGIN[dtype] * logits.abs().amax(-1, keepdim=True)
        known = (index >= 0) & (index < logs.shape[1])
        ours = logs.gather(1, index.clamp(0, logs.shape[1] - 1))
        best = logs.topk(index.shape[1], dim=1)
        distinct = index.sort(dim=1).values.diff(dim=1).ne(0).all(1, keepdim=True)
        right_index = known & distinct & (ours >= best.values[:, -1:] - allowed)
        stored = kept[0].state.topk_p is not None  # which an engine may leave out for chains
        top = _rows(kept, "topk_p") if stored else ours.exp()
        right_p = (top.log() - ours).abs() <= allowed
        return [
            _wrong_drafts("topk_index", right_index[n], index[n], best.indices[n])
            or _wrong_drafts("topk_p", right_p[n], top[n], ours[n].exp())
            for n in range(len(kept))
        ]

    def _trees(self, text: DraftedText[Any], kept: list[_Kept], outputs: Tensor) -> list[_Wrong | None]:
        assert self._shape is not None  # for the type checker: there is a tree, so it was told
        if self.bench.settings.target.dtype != "float32" and self.bench.settings.target.device != "cpu":
            return [None] * len(kept)  # how far half precision moves a GPU's paths was not measured
        trees = [(each.tree, each.row) for each in kept if each.tree is not None]  # all of them
        tokens = torch.stack([tree.tokens[row] for tree, row in trees]).cpu()
        shown = read_masks(torch.stack([tree.mask[row] for tree, row in trees]).cpu().numpy())
        margin, drafted = DRAFT_MARGIN[self.bench.settings.target.dtype], self._branches(kept)
        guide = Guide(tokens, torch.from_numpy(shown.parents), margin, drafted)
        grown = text.grow(torch.tensor([each.length for each in kept]), outputs, self._shape, guide)
        wrong = self._logits(text, kept, outputs, drafted)
        return [
            _other_tree(tokens[n], shown, n, grown) or _out_of_order(shown, n, grown) or wrong[n]
            for n in range(len(kept))
        ]

    def _branches(self, kept: list[_Kept]) -> Branches | None:
        """What the branches read that each tree was drafted in; None where there was no listener."""
        assert self._shape is not None  # for the type checker: there is a tree, so it was told
        forwards = self._shape.num_steps - 1
        if not forwards or any(len(each.forwards) - forwards not in (0, 1) for each in kept):
            return None
        tokens, parents = self._of_forwards(kept, "tokens"), self._of_forwards(kept, "parents")
        return Branches(tokens[:, -forwards:], parents[:, -forwards:])

    def _of_forwards(self, kept: list[_Kept], name: str) -> Tensor:
        """What each forward of each tree had, [n, S - 1, K, ...]."""
        assert self._shape is not None
        topk = self._shape.topk
        rows = [[getattr(each, name).unflatten(0, (-1, topk))[one.row] for each in one.forwards] for one in kept]
        return torch.stack([torch.stack(each) for each in rows])

    def _logits(
        self, text: DraftedText[Any], kept: list[_Kept], outputs: Tensor, drafted: Branches | None
    ) -> list[_Wrong | None]:
        """Return what is wrong of the logits that each tree was drafted by, None where nothing is or can be."""
        assert self._shape is not None
        if drafted is None:
            return [None] * len(kept)
        tokens, likely, logs = drafted.tokens, self._of_forwards(kept, "likely"), self._of_forwards(kept, "logs")
        known = (tokens >= 0) & (tokens < text.vocab_size)
        logits = text.follow(
            torch.tensor([each.length for each in kept]),
            outputs,
            tokens.clamp(0, text.vocab_size - 1),
            drafted.parents.clamp(0, self._shape.topk - 1),
        )
        if likely.shape[1] > logits.shape[1]:
            seeds = text.logits(outputs)[:, None, None].expand(-1, 1, self._shape.topk, -1)
            logits, known = torch.cat([seeds, logits], 1), torch.cat([known.new_ones(known[:, :1].shape), known], 1)
        theirs = logits.log_softmax(-1).gather(-1, likely)
        allowed = DRAFT_MARGIN[self.bench.settings.target.dtype] * logits.abs().amax(-1, keepdim=True)
        right = ((logs - theirs).abs() <= allowed) & known[..., None]
        return [_wrong_logits(right[n], likely[n], logs[n], theirs[n]) for n in range(len(kept))]

    def _check_forms(self, decision: Decided, lengths: Sequence[int]) -> None:
        """Report trees that do not hold together: these are looked at first, for the rest is read along the mask."""
        at = zip(decision.requests, lengths, strict=True)
        bonus = [request.output_ids[length - len(request.prompt_ids)] for request, length in at]
        for request, wrong in zip(decision.requests, _malformed(decision, lengths, bonus), strict=True):
            life = self._lives.get(request.rid)
            if wrong is not None and life is not None and life.kept:
                self._condemn(request, life.kept[-1], "draft_tree", wrong)

    def _condemn(self, request: Any, kept: _Kept, site: str, wrong: _Wrong) -> None:
        what = "what is stored for the next draft" if site == "draft_state" else "the tree drafted"
        step = kept.step if site == "draft_state" else kept.drafted_in
        data = {"rid": request.rid, "position": kept.length, "tensor": wrong.tensor, **wrong.data}
        detail = f"{request.rid}: {what} after {kept.length} positions has wrong {wrong.tensor}: {wrong.told}"
        self.bench.report(Violation("mismatch", site, step, detail, data=data))
        self._wrong.add(request.rid)
        del self._lives[request.rid]


def _rows(kept: Sequence[_Kept], name: str) -> Tensor:
    return torch.stack([getattr(each.state, name)[each.row] for each in kept]).cpu()


def _wrong_number(tensor: str, got: int, expected: int) -> _Wrong | None:
    data = {"got": got, "expected": expected}
    return None if got == expected else _Wrong(tensor, f"{got}, expected {expected}", data)


def _off_by(ours: Tensor, expected: Tensor) -> Tensor:
    """The distance of each row from what is expected, relative to that; what is NaN there is not known."""
    known = ~expected.isnan()
    apart, size = (torch.where(known, each, 0.0).flatten(1) for each in (ours.float() - expected, expected))
    off: Tensor = apart.norm(dim=1) / size.norm(dim=1).clamp_min(1e-6)
    return off


def _wrong_state(off: float) -> _Wrong:
    return _Wrong("hidden_states", f"off by {off:.2g} of its norm", {"off": off})


def _wrong_drafts(tensor: str, right: Tensor, got: Tensor, expected: Tensor) -> _Wrong | None:
    if bool(right.all()):
        return None
    ours, theirs = got.tolist(), expected.tolist()
    shown = ([float(f"{each:.4g}") for each in row] for row in (ours, theirs))
    return _Wrong(tensor, "{}, expected {}".format(*shown), {"got": ours, "expected": theirs})


def _wrong_logits(right: Tensor, likely: Tensor, got: Tensor, expected: Tensor) -> _Wrong | None:
    if bool(right.all()):
        return None
    step, branch, n = (~right).nonzero()[0].tolist()
    token, ours, theirs = (each[step, branch, n].item() for each in (likely, got, expected))
    told = f"forward {step}, branch {branch}: log-probability {ours:.4g} of draft {token}, expected {theirs:.4g}"
    return _Wrong("logits", told, {"forward": step, "branch": branch, "draft": token, "got": ours, "expected": theirs})


def _wrong_node(tensor: str, got: np.ndarray, expected: np.ndarray) -> _Wrong:
    node = int(np.flatnonzero(got != expected)[0])
    ours, theirs = int(got[node]), int(expected[node])
    return _Wrong(tensor, f"{ours} at node {node}, expected {theirs}", {"node": node, "got": ours, "expected": theirs})


def _malformed(tree: Decided, lengths: Sequence[int], bonus: Sequence[int]) -> list[_Wrong | None]:
    """The contradictions of each tree to its own mask, its request's length or its newest token."""
    names = ("tokens", "positions", "mask", "retrieve_next_token", "retrieve_next_sibling")
    tokens, positions, masks, child, sibling = (getattr(tree, name).cpu().numpy() for name in names)
    shown = read_masks(masks)
    expected = (
        ("tokens", tokens, tokens.clip(0, tree.logits.shape[-1] - 1)),
        ("bonus", tokens[:, :1], np.array(bonus)[:, None]),
        ("positions", positions, np.array(lengths)[:, None] + shown.depths),
        ("links", child, shown.first_child),
        ("links", sibling, shown.next_sibling),
    )
    found = [None if valid else _Wrong("mask", "it is that of no tree") for valid in shown.valid]
    for name, ours, theirs in expected:
        for n in np.flatnonzero((ours != theirs).any(1)).tolist():
            found[n] = found[n] or _wrong_node(name, ours[n], theirs[n])
    return found


def _path(tokens: Tensor, parents: np.ndarray, node: int) -> list[int]:
    """The tokens from the root to a node, as far as its mask is that of a tree."""
    path: list[int] = []
    while node > 0:
        path.insert(0, int(tokens[node]))
        above = int(parents[node])
        node = above if above < node else 0  # the parents of no tree may lead in a circle
    return path


def _other_tree(tokens: Tensor, shown: TreesByMask, n: int, grown: Grown) -> _Wrong | None:
    """A node that the head does not draft, and a path of tokens that it drafts instead."""
    missing = set(range(1, len(tokens))) - set(grown.node[n].tolist())
    if not missing:
        return None
    node = min(missing)
    lacking = int((grown.node[n] < 0).nonzero()[0])
    path = [token for token in grown.paths[n, lacking].tolist() if token >= 0]
    got = _path(tokens, shown.parents[n], node)
    told = f"node {node} holds the path {got}, expected one for {path}"
    return _Wrong("tokens", told, {"node": node, "got": got, "expected": path})


def _out_of_order(shown: TreesByMask, n: int, grown: Grown) -> _Wrong | None:
    """A node whose next sibling is more likely than itself."""
    siblings = shown.next_sibling[n]
    for node in np.flatnonzero(siblings >= 0).tolist():
        after = int(siblings[node])
        if grown.scores[n, node] < grown.scores[n, after] - grown.allowed[n, node]:
            told = f"node {node} is tried before node {after}, which is more likely"
            return _Wrong("order", told, {"node": node, "got": node, "expected": after})
    return None
