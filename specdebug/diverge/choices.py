"""Choices that two arms made otherwise because of rounding, told from those that were made wrongly.

In half precision two tokens are often as likely as each other, to the last bit or nearly, and arms that batch otherwise
may choose one each. A choice is excused if in both arms it is right by what that very arm computed: the numbers it was
made from differ by rounding only (else they would have been the first to differ), and it holds the best of them. No
margin is needed, and a token changed after it was chosen is none of the best. After an excused choice the request has
no counterpart in the other arm.

Not excused are choices of sampled requests (they depend on a coin) and tokens of draft heads with an own vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

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
DRAFT_LOGITS = "draft.forward.logits"
"""Their grounds. An engine that drafts within a CUDA graph need not show them."""


def grounds(part: Share, step: RecordedStep) -> dict[Place, Share]:
    """The choice ``part`` and those shares of its request that decide it; empty for what is no choice."""
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

    ``arms``: in each, the tensors that :func:`grounds` names. ``topk``: branches of the draft tree.
    """
    site, nth = place
    if site not in GROUNDS or any(place not in arm for arm in arms):
        return False
    if site == "accept.predict":
        return _walks(arms)
    if site == "draft.organize.draft_tokens":
        return _trees(arms, topk)
    return all(_is_right(site, nth, arm, topk) for arm in arms)


def _is_right(site: str, nth: int, arm: Tensors, topk: int) -> bool:
    """True if a choice is right by what its own arm computed."""
    chosen = arm[site, nth]
    if site == "draft.forward.input_ids":
        return _branch_tokens(arm, nth, topk)
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


def _branch_tokens(arm: Tensors, nth: int, topk: int) -> bool:
    """Tokens of a forward are what the one before ranked, at the branches that were kept."""
    logits, choice = arm.get(("draft.forward.logits", nth - 1)), arm.get(("draft.select.choice", nth - 1))
    if logits is None or choice is None:
        return False
    tokens = arm["draft.forward.input_ids", nth].reshape(-1)
    return all(_ranked(logits, int(at), int(token), topk) for at, token in zip(choice[0], tokens, strict=True))


def _trees(arms: tuple[Tensors, Tensors], topk: int) -> bool:
    """True if all tokens but the roots are right. Roots were chosen in the step before: here they must be equal."""
    top = ("draft.organize.top_scores_index", 0)
    if any(top not in arm for arm in arms):
        return False
    one, other = (arm["draft.organize.draft_tokens", 0][0][arm[top][0] < topk].tolist() for arm in arms)
    return one == other and all(_tokens_of_tree(arm, topk) for arm in arms)


def _tokens_of_tree(arm: Tensors, topk: int) -> bool:
    chosen = arm["draft.organize.top_scores_index", 0]
    for at, token in zip(chosen[0].tolist(), arm["draft.organize.draft_tokens", 0][0].tolist(), strict=True):
        if at < topk:
            continue
        forward, place = divmod(at - topk, topk * topk)
        logits = arm.get(("draft.forward.logits", forward))
        if logits is None or not _ranked(logits, place, token, topk):
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
