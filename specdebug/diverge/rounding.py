"""Differences of runs that were compared by request, judged with the values in hand: rounding, or the divergence.

Values may differ by as much as another batch shape explains (:func:`tolerance`). In half precision two tokens are often
as likely as each other, and arms that batch otherwise may choose one each. A choice is excused if in both arms it is
right by what that very arm computed; after it the request has no counterpart in the other arm. Not excused are choices
of sampled requests (they depend on a coin) and tokens of draft heads with an own vocabulary."""

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdebug.base.assets import checkpoint_path
from specdebug.diverge.align import Difference, SharePlace, by_request, sites_of
from specdebug.diverge.recording import RecordedStep, Share, kept
from specdebug.reference.config import read_config
from specdebug.targets.options import EngineShape

AFTER = 8  # sites named that differed right after the first
WINDOW = 3000  # tensors kept at a time, to tell rounding from more
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""By an engine's dtype: how far rounding moves a number, as a part of it."""
ROUNDINGS = 16  # roundings of a layer: norms, q, k, v, rotations, attention, projections, residuals
LARGEST_LOGIT = 10.0
"""About that of a row. A logit that moves by a part of it moves its probability by that part times its size."""
PROBABILITIES = ("draft_extend.topk_p", "draft_graph.replay.topk_p", "draft.organize.scores", "sampler.*.probs")

Place = tuple[str, int]  # a site, and which of its calls in the step
Tensors = Mapping[Place, np.ndarray]  # a request's rows at places of one step of one arm
Pairs = Sequence[tuple[Share | None, Share | None]]  # parts of the first arm and of the second
Look = Callable[[Pairs], AbstractContextManager[tuple[Path, Path]]]
"""Runs both arms again and gives the folders in which they kept those parts."""

GROUNDS = {
    "sampler.next_token_ids": ("target_prefill.logits", "target_decode.logits"),
    "draft.select.choice": ("draft.organize.scores",),
    "draft.forward.input_ids": ("draft.forward.logits", "draft.select.choice"),
    "draft.organize.top_scores_index": ("draft.organize.scores",),
    "draft.organize.draft_tokens": ("draft.forward.logits", "draft.organize.top_scores_index"),
    "accept.predict": ("verify.logits",),
    "draft_extend.topk_index": ("draft_extend.logits",),
}
"""The site that hands over a choice, and those of the same step that hand over its grounds."""

DRAFTED = frozenset(
    {
        "draft.forward.input_ids",
        "draft.organize.top_scores_index",
        "draft.organize.draft_tokens",
        "tree.parents",
        "tree.retrieve_next_token",
        "tree.retrieve_next_sibling",
        "verify.input_ids",
    }
)
"""Sites of what the draft loop chose, and of what follows from that alone."""
DRAFT_LOGITS = "draft.forward.logits"  # their grounds. An engine that drafts within a CUDA graph need not show them.


@dataclass(frozen=True)
class ValueDifference:
    """Two shares of a tensor that differ. ``index``: of the first element that does; its values ``left`` and ``right``.
    ``count``: elements that differ. ``gap``: the widest difference, as a part of the largest value of its row; infinite
    where one of the two is no finite number."""

    index: tuple[int, ...]
    left: Any
    right: Any
    count: int
    size: int
    gap: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON can say it: what is not finite as text."""
        plain = {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in vars(self).items()
        }
        return plain | {"index": list(self.index)}


@dataclass(frozen=True)
class Rounding:
    """Differences that another batch shape explains. ``widest``: as a part of a row's largest value. ``parted``:
    choices that rounding explains, after which their requests have no counterparts. ``unseen``: choices of the draft in
    half precision, of which there is no telling, for an arm does not show what it chose from; likewise."""

    shares: int = 0
    widest: float = 0.0
    first: Difference | None = None
    parted: tuple[Difference, ...] = ()
    unseen: tuple[Difference, ...] = ()


class Judgement(NamedTuple):
    """The first difference that is none of rounding, its values, the first at each site after it, and the rounding."""

    first: Difference | None
    values: ValueDifference | None
    after: tuple[Difference, ...]
    rounding: Rounding


def judge(
    left: Sequence[RecordedStep],
    right: Sequence[RecordedStep],
    look: Look,
    shape: EngineShape,
    unlike: Container[SharePlace] = (),
) -> Judgement:
    """Find the first difference between two arms that rounding does not explain. ``left``, ``right``: their steps, with
    a hash for each request's share. ``look`` gets at values. ``shape``: of both engines. ``unlike``: places not to
    compare."""
    model = read_config(checkpoint_path(shape.model))
    topk = 1 if shape.tree is None else shape.tree[0]
    found, rounding = list(by_request(left, right, unlike)), Rounding()
    if shape.dtype != "float32" and DRAFT_LOGITS not in sites_of(left) & sites_of(right):
        # after a request's first choice of the draft that differs, there is no telling
        unseen: dict[str | None, Difference] = {}
        told, found = found, []
        for each in told:
            if each.owner not in unseen and each.site in DRAFTED:
                unseen[each.owner] = each
            elif each.owner not in unseen:
                found.append(each)
        rounding = Rounding(unseen=tuple(unseen.values()))
    steps = {step.number: step for step in left}, {step.number: step for step in right}
    while found:
        window = found[: _within(found)]
        hard = next((n for n, each in enumerate(window) if not each.soft), len(window) - 1)
        window = window[: hard + 1]
        last, why = window[-1], [dict[Place, Share]() for _ in steps]
        if last.what == "value" and not last.soft and last.left is not None and last.right is not None:
            why = [grounds(part, side[part.step]) for part, side in zip((last.left, last.right), steps, strict=True)]
        pairs: list[tuple[Share | None, Share | None]] = [(e.left, e.right) for e in window if e.what == "value"]
        pairs += [(part, None) for part in why[0].values()] + [(None, part) for part in why[1].values()]
        with look(pairs) as folders:
            values = [compared(each, *folders) if each.what == "value" else None for each in window]
            one, other = (
                {place: rows for place, part in parts.items() if (rows := _rows(part, folder)) is not None}
                for parts, folder in zip(why, folders, strict=True)
            )
        for each, seen in zip(window, values, strict=True):
            if each.soft and seen is None:
                continue  # equal after all: the hashes of two zeros differ
            allowed = tolerance(each.site, shape.dtype, model.num_layers, model.hidden_size)
            if each.soft and seen is not None and seen.gap <= allowed:
                widest, first = max(rounding.widest, seen.gap), rounding.first or each
                rounding = dataclasses.replace(rounding, shares=rounding.shares + 1, widest=widest, first=first)
            elif each.right is not None and explained((each.site, each.right.nth), (one, other), topk):
                rounding = dataclasses.replace(rounding, parted=(*rounding.parted, each))
            else:
                return Judgement(each, seen, next_sites(found[found.index(each) :]), rounding)
        parted = {each.owner for each in rounding.parted}
        found = [each for each in found[len(window) :] if each.owner not in parted]
    return Judgement(None, None, (), rounding)


def _within(found: Sequence[Difference]) -> int:
    """How many differences, at least one, are of :data:`WINDOW` tensors at most."""
    tensors: set[tuple[int, int]] = set()
    for number, each in enumerate(found):
        tensors |= set() if each.right is None else {(each.right.step, each.right.call)}
        if len(tensors) > WINDOW:
            return number
    return len(found)


def compared(found: Difference, left: Path, right: Path) -> ValueDifference | None:
    """Compare the values that two arms kept of a place; None if they are equal, or one arm did not come that far."""
    assert found.left is not None
    assert found.right is not None
    one, other = _rows(found.left, left), _rows(found.right, right)
    return None if one is None or other is None else difference(one, other)


def next_sites(found: Sequence[Difference]) -> tuple[Difference, ...]:
    """The first difference at each site that follows the first difference's own."""
    firsts: dict[str, Difference] = {}
    for each in found:
        firsts.setdefault(each.site, each)
    return tuple(firsts.values())[1 : AFTER + 1]


def _rows(part: Share, folder: Path) -> np.ndarray | None:
    whole = kept(folder, (part.step, part.call))
    return whole if whole is None or part.rows is None else whole[part.first_row : part.first_row + part.rows]


def tolerance(site: str, dtype: str, layers: int, width: int) -> float:
    """The gap that two values of a row may have, as a part of the row's largest, if only the batch's shape differs.

    Rounding errors are independent of each other, so their sum grows with the root of their number (Higham and Mary, A
    New Approach to Probabilistic Rounding Error Analysis, 2019). In half precision sums are taken in float32 and each
    operation rounds its result once; in float32 the terms of the sums are rounded, as many as the model is wide.

    ``dtype``: the engine's; a tensor may have a finer one than what it was computed from. Others have no tolerance.
    ``layers``, ``width``: of the target, and of its hidden states.
    """
    terms = width if dtype == "float32" else 1
    found = UNIT.get(dtype, 0.0) * math.sqrt(ROUNDINGS * layers * terms)
    sharp = any(fnmatch.fnmatchcase(site, pattern) for pattern in PROBABILITIES)
    return found * LARGEST_LOGIT if sharp else found


def difference(left: np.ndarray, right: np.ndarray) -> ValueDifference | None:
    """The difference of two arrays, of their shapes first; None if they hold the same (a NaN is the same as a NaN)."""
    if left.shape != right.shape:
        return ValueDifference((), list(left.shape), list(right.shape), 1, 1, float("inf"))
    differs = left != right
    if left.dtype.kind == "f":
        differs &= ~(np.isnan(left) & np.isnan(right))
        differs |= (np.signbit(left) != np.signbit(right)) & (left == right)  # zeros whose bits differ
    if not differs.any():
        return None
    index = tuple(map(int, np.unravel_index(int(differs.argmax()), differs.shape)))
    pair = left[index].item(), right[index].item()
    return ValueDifference(index, *pair, int(differs.sum()), differs.size, _gap(left, right))


def _gap(left: np.ndarray, right: np.ndarray) -> float:
    if left.dtype.kind != "f":
        return float("inf")
    rows = left.shape[0]
    a, b = (each.reshape(rows, -1).astype(np.float64) for each in (left, right))
    odd = ~(np.isfinite(a) & np.isfinite(b))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if (odd & ~same).any():
        return float("inf")
    a, b = (np.where(odd, 0.0, each) for each in (a, b))
    largest = np.maximum(np.abs(a), np.abs(b)).max(axis=1, initial=0.0)
    widest = np.abs(a - b).max(axis=1, initial=0.0)
    gaps = np.divide(widest, largest, out=np.zeros_like(widest), where=largest > 0)
    return float(gaps.max(initial=0.0))


def grounds(part: Share, step: RecordedStep) -> dict[Place, Share]:
    """The choice ``part`` and those shares of its request that decide it; empty for what is no choice."""
    site = part.descriptor.site
    return {
        (each.descriptor.site, each.nth): each
        for each in (step.parts() if site in GROUNDS else ())
        if each.owner == part.owner and each.descriptor.site in (site, *GROUNDS[site])
    }


def explained(place: Place, arms: tuple[Tensors, Tensors], topk: int) -> bool:
    """True if two arms' unequal choices at ``place`` are both right by what the arms computed. ``arms``: in each, the
    tensors that :func:`grounds` names. ``topk``: branches of the draft tree."""
    site, nth = place
    if site not in GROUNDS or any(place not in arm for arm in arms):
        return False
    if site == "accept.predict":
        return _walks(arms)
    if site == "draft.organize.draft_tokens":
        # roots were chosen in the step before: here they must be equal
        top = ("draft.organize.top_scores_index", 0)
        if any(top not in arm for arm in arms):
            return False
        one, other = (arm[place][0][arm[top][0] < topk].tolist() for arm in arms)
        return one == other and all(_is_tree(arm, topk) for arm in arms)
    return all(_is_right(site, nth, arm, topk) for arm in arms)


def _is_right(site: str, nth: int, arm: Tensors, topk: int) -> bool:
    """True if a choice is right by what its own arm computed."""
    chosen = arm[site, nth]
    if site == "draft.forward.input_ids":  # what the forward before ranked, at the branches that were kept
        logits, choice = arm.get(("draft.forward.logits", nth - 1)), arm.get(("draft.select.choice", nth - 1))
        if logits is None or choice is None:
            return False
        tokens = zip(choice[0], chosen.reshape(-1), strict=True)
        return all(_ranked(logits, int(at), int(token), topk) for at, token in tokens)
    if site == "sampler.next_token_ids":
        logits = next((arm[ground, nth] for ground in GROUNDS[site] if (ground, nth) in arm), None)
        return logits is not None and len(logits) == chosen.size and _holds_best(logits, chosen.reshape(-1, 1))
    if site == "draft_extend.topk_index":
        return _holds_best(arm.get(("draft_extend.logits", nth)), chosen)
    scores = arm.get(("draft.organize.scores", 0))
    if site == "draft.select.choice" and scores is not None:
        first = topk + nth * topk * topk  # after the roots, each forward's
        scores = scores[:, first : first + topk * topk]
    return _holds_best(scores, chosen)


def _holds_best(scores: np.ndarray | None, chosen: np.ndarray) -> bool:
    """True if ``chosen`` [n, k] names k best of each row of ``scores`` [n, m]; of equals, whichever."""
    if scores is None or chosen.min(initial=0) < 0 or chosen.max(initial=0) >= scores.shape[1]:
        return False
    if any(len(set(row)) < len(row) for row in chosen.tolist()):
        return False
    taken = np.sort(np.take_along_axis(scores, chosen, 1), 1)
    return bool((taken == np.sort(scores, 1)[:, scores.shape[1] - chosen.shape[1] :]).all())


def _is_tree(arm: Tensors, topk: int) -> bool:
    """True if all tokens of a tree but the roots are right."""
    chosen = arm["draft.organize.top_scores_index", 0]
    for at, token in zip(chosen[0].tolist(), arm["draft.organize.draft_tokens", 0][0].tolist(), strict=True):
        forward, place = divmod(at - topk, topk * topk)
        logits = arm.get(("draft.forward.logits", forward))
        if at >= topk and (logits is None or not _ranked(logits, place, token, topk)):
            return False
    return True


def _ranked(logits: np.ndarray, at: int, token: int, topk: int) -> bool:
    """True if ``token`` has the rank, in the row of its branch, that its place among K·K candidates says."""
    row, rank = divmod(at, topk)
    if not (0 <= row < len(logits) and 0 <= token < logits.shape[1]):
        return False
    return float(logits[row, token]) == float(np.sort(logits[row])[-1 - rank])


def _walks(arms: tuple[Tensors, Tensors]) -> bool:
    """True if two walks (0 at nodes not accepted) have chosen the best where they part, and each where it goes then."""
    both = [arm["accept.predict", 0].reshape(-1) for arm in arms]
    logits = [arm.get(("verify.logits", 0)) for arm in arms]
    if len(both[0]) != len(both[1]) or not (both[0] != both[1]).any():
        return False
    parting = int((both[0] != both[1]).argmax())
    for tokens, rows in zip(both, logits, strict=True):
        if rows is None or len(rows) != len(tokens):
            return False
        if any(
            not _holds_best(rows[n : n + 1], np.array([[token]]))
            for n, token in enumerate(tokens.tolist())
            if n == parting or token
        ):
            return False
    return True
