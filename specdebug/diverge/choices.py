"""Choices that two arms made otherwise because of rounding, told from those that were made wrongly.

In half precision two tokens are often as likely as each other, to the last bit or nearly, and arms that batch otherwise
may choose one each. A choice is excused if in both arms it is right by what that very arm computed: the numbers it was
made from differ by rounding only (else they would have been the first to differ), and it holds the best of them. No
margin is needed, and a token changed after it was chosen is none of the best. What a request does after an excused
choice has no counterpart in the other arm.

Not excused are choices of sampled requests (they depend on a coin, too) and tokens of draft heads that have a
vocabulary of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from specdebug.diverge.stream import RecordedStep, Share

Place = tuple[str, int]
"""A site, and which of its calls in the step."""
Tensors = Mapping[Place, np.ndarray]
"""A request's rows at places of one step of one arm."""

GROUNDS = {
    "sampler.next_token_ids": ("target_prefill.logits", "target_decode.logits"),
    "draft.select.choice": ("draft.organize.scores",),
    "draft.forward.input_ids": ("draft.forward.logits", "draft.select.choice"),
    "draft.organize.top_scores_index": ("draft.organize.scores",),
    "draft.organize.draft_tokens": ("draft.forward.logits", "draft.organize.top_scores_index"),
    "accept.predict": ("verify.logits",),
    "draft_extend.topk_index": ("draft_extend.logits",),
}
"""Where a choice is handed over, and where what it is made from is, in the same step."""


def grounds(part: Share, step: RecordedStep) -> dict[Place, Share]:
    """The choice ``part`` and what its request came by that decides it; empty for what is no choice."""
    sites = (part.descriptor.site, *GROUNDS.get(part.descriptor.site, ()))
    if len(sites) == 1:
        return {}
    return {
        (each.descriptor.site, each.nth): each
        for each in step.parts()
        if each.owner == part.owner and each.descriptor.site in sites
    }


def explained(place: Place, arms: tuple[Tensors, Tensors], topk: int) -> bool:
    """True if two arms' unequal choices at ``place`` are both right by what the arms computed.

    Args:
        place: of the choice.
        arms: in each arm, the tensors that :func:`grounds` names.
        topk: branches of the draft tree.
    """
    site, nth = place
    if site not in GROUNDS or any(place not in arm for arm in arms):
        return False
    if site == "accept.predict":
        return _walks(arms)
    if site == "draft.organize.draft_tokens":
        return _same_roots(arms, topk) and all(_tokens_of_tree(arm, topk) for arm in arms)
    return all(_JUDGES[site](arm, nth, topk) for arm in arms)


def _holds_best(scores: np.ndarray, chosen: np.ndarray) -> bool:
    """True if ``chosen`` [n, k] names k best of each row of ``scores`` [n, m]; of equals, whichever."""
    if chosen.min(initial=0) < 0 or chosen.max(initial=0) >= scores.shape[1]:
        return False
    if any(len(set(row)) < len(row) for row in chosen.tolist()):
        return False
    taken = np.sort(np.take_along_axis(scores, chosen, 1), 1)
    return bool((taken == np.sort(scores, 1)[:, scores.shape[1] - chosen.shape[1] :]).all())


def _next_token(arm: Tensors, nth: int, topk: int) -> bool:
    logits = next((arm[site, nth] for site in GROUNDS["sampler.next_token_ids"] if (site, nth) in arm), None)
    chosen = arm["sampler.next_token_ids", nth].reshape(-1, 1)
    return logits is not None and len(logits) == len(chosen) and _holds_best(logits, chosen)


def _extended(arm: Tensors, nth: int, topk: int) -> bool:
    logits = arm.get(("draft_extend.logits", nth))
    return logits is not None and _holds_best(logits, arm["draft_extend.topk_index", nth])


def _kept_branches(arm: Tensors, nth: int, topk: int) -> bool:
    scores = arm.get(("draft.organize.scores", 0))
    if scores is None:
        return False
    first = topk + nth * topk * topk  # after the roots, each forward's
    return _holds_best(scores[:, first : first + topk * topk], arm["draft.select.choice", nth])


def _kept_candidates(arm: Tensors, nth: int, topk: int) -> bool:
    scores = arm.get(("draft.organize.scores", 0))
    return scores is not None and _holds_best(scores, arm["draft.organize.top_scores_index", nth])


def _branch_tokens(arm: Tensors, nth: int, topk: int) -> bool:
    """Tokens of a forward are what the one before ranked, at the branches that were kept."""
    logits, choice = arm.get(("draft.forward.logits", nth - 1)), arm.get(("draft.select.choice", nth - 1))
    if logits is None or choice is None:
        return False
    tokens = arm["draft.forward.input_ids", nth].reshape(-1)
    return all(_ranked(logits, int(at), int(token), topk) for at, token in zip(choice[0], tokens, strict=True))


def _tokens_of_tree(arm: Tensors, topk: int) -> bool:
    chosen = arm.get(("draft.organize.top_scores_index", 0))
    if chosen is None:
        return False
    for at, token in zip(chosen[0].tolist(), arm["draft.organize.draft_tokens", 0][0].tolist(), strict=True):
        if at < topk:
            continue
        forward, place = divmod(at - topk, topk * topk)
        logits = arm.get(("draft.forward.logits", forward))
        if logits is None or not _ranked(logits, place, token, topk):
            return False
    return True


def _same_roots(arms: tuple[Tensors, Tensors], topk: int) -> bool:
    """Roots were chosen in the step before: here nothing excuses that they differ."""
    roots: list[list[int]] = []
    for arm in arms:
        chosen = arm.get(("draft.organize.top_scores_index", 0))
        if chosen is None:
            return False
        roots.append(arm["draft.organize.draft_tokens", 0][0][chosen[0] < topk].tolist())
    return roots[0] == roots[1]


def _ranked(logits: np.ndarray, at: int, token: int, topk: int) -> bool:
    """True if ``token`` has the rank, in the row of its branch, that its place among K·K candidates says."""
    row, rank = divmod(at, topk)
    if not (0 <= row < len(logits) and 0 <= token < logits.shape[1]):
        return False
    return float(logits[row, token]) == float(np.sort(logits[row])[-1 - rank])


def _walks(arms: tuple[Tensors, Tensors]) -> bool:
    """Two walks through the tree: 0 at nodes not accepted, a node's parent before it. Where they part, both have chosen
    the best; where they go after that, each has."""
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


_JUDGES: Mapping[str, Callable[[Tensors, int, int], bool]] = {
    "sampler.next_token_ids": _next_token,
    "draft.select.choice": _kept_branches,
    "draft.forward.input_ids": _branch_tokens,
    "draft.organize.top_scores_index": _kept_candidates,
    "draft_extend.topk_index": _extended,
}
