"""One step of the engine as a row of boxes: where the first wrong thing was seen, and where its consequences were."""

from collections.abc import Sequence

from markupsafe import Markup

from specdebug.report.html import svg
from specdebug.verdict.outcome import Outcome, Violation

STAGES = ("prefill", "draft", "verify", "accept", "extend", "pools")
_BY_PREFIX = {
    "target_prefill": "prefill",
    "draft_prefill": "prefill",
    "draft_extend": "extend",
    "mtp_extend": "extend",
    "draft": "draft",
    "mtp_draft": "draft",
    "tree": "draft",
    "target": "verify",
    "target_decode": "verify",
    "verify": "verify",
    "accept": "accept",
    "sampler": "accept",
    "commit": "accept",
    "kv_pool": "pools",
    "move_kv_cache": "pools",
    "prefix_cache": "pools",
}
"""By the first word of a site's name; the graphs' sites are those of what the graph holds."""
_BY_KIND = {"pools": "pools", "accept-drop": "accept", "sampling": "accept"}
MAX_ARROWS = 5
MAX_NAME = 22
"""Characters of a site's name below a box; the tip has all of it."""
_WIDTH, _GAP, _TOP, _BOTTOM, _HEIGHT, _RAISED = 124.0, 26.0, 76.0, 124.0, 168, 66.0


def stage_of(violation: Violation) -> str | None:
    """The stage that a violation was seen in; None where its site tells of none."""
    prefix = violation.site.split(".")[0].removesuffix("_graph")
    return _BY_KIND.get(violation.kind) or _BY_PREFIX.get({"mtp": "mtp_draft"}.get(prefix, prefix))


def stage_row(outcome: Outcome) -> Markup | None:
    """The boxes, with the first violation marked and later ones as arrows from it; None where its site has no stage."""
    if not outcome.violations or stage_of(outcome.violations[0]) is None:
        return None
    placed = [(stage, one) for one in outcome.violations if (stage := stage_of(one)) is not None]
    (first, origin), seen = placed[0], dict.fromkeys(stage for stage, _ in placed)
    later = [stage for stage in seen if stage != first][:MAX_ARROWS]
    parts = [_box(stage, [one for at, one in placed if at == stage], stage == first) for stage in STAGES]
    parts += [_arrow(first, stage, height) for height, stage in enumerate(later)]
    at = "" if origin.step is None else f" at step {origin.step}"
    label = f"First wrong in {first}{at}: {origin.signature}; then in {', '.join(later) or 'no other stage'}"
    return svg.drawing(_HEIGHT, label, *parts) if later else svg.drawing(_HEIGHT - _RAISED, label, _raised(parts))


def _raised(parts: Sequence[Markup]) -> Markup:
    """Moved into the room that arrows would take."""
    return svg.element("g", *parts, transform=f"translate(0 -{svg.number(_RAISED)})")


def _left(stage: str) -> float:
    return 20 + STAGES.index(stage) * (_WIDTH + _GAP)


def _middle(stage: str) -> float:
    return _left(stage) + _WIDTH / 2


def _box(stage: str, found: Sequence[Violation], first: bool) -> Markup:
    tips = "\n".join(f"{one.signature}{'' if one.step is None else f' at step {one.step}'}" for one in found)
    state = "first" if first else "later" if found else "clean"
    parts = [
        svg.rect(_left(stage), _TOP, _WIDTH, _BOTTOM - _TOP, rx=6, class_=f"stage {state}", data_tip=tips or None),
        svg.text(_middle(stage), _TOP + 29, stage, class_="name", text_anchor="middle"),
    ]
    if found:
        site = found[0].site or found[0].kind
        shown = site if len(site) <= MAX_NAME else site[: MAX_NAME - 1] + "\N{HORIZONTAL ELLIPSIS}"
        said, style = ("first wrong", "finding") if first else ("seen later", "title")
        parts.append(svg.text(_middle(stage), _BOTTOM + 18, said, class_=style, text_anchor="middle"))
        parts.append(svg.text(_middle(stage), _BOTTOM + 34, shown, text_anchor="middle", data_tip=tips))
    return svg.join(parts)


def _arrow(first: str, stage: str, place: int) -> Markup:
    """Up from the first box, across, and down onto a later one."""
    start, end, over = _middle(first), _middle(stage), _TOP - 16 - 11 * place
    start += (6 if end > start else -6) * (place + 1)
    points = [(start, _TOP), (start, over), (end, over), (end, _TOP - 7)]
    head = [(end - 5, _TOP - 8), (end + 5, _TOP - 8), (end, _TOP)]
    return svg.join((svg.polyline(points, class_="leads"), svg.polyline(head, "polygon", class_="leads-to")))
