"""The draft tree of the first wrong step, with the path that the verify accepted."""

from markupsafe import Markup

from specdebug.report.html import svg
from specdebug.verdict.outcome import Outcome

MAX_NODES = 24
"""Nodes drawn, the first ones, beside those that were accepted: a tree has parents before their children."""
_LEFT, _TOP, _WIDE, _HIGH, _BOX = 20.0, 34.0, 126.0, 28.0, 84.0


def tree_plot(outcome: Outcome) -> Markup | None:
    """The tree that was told with the first violation, or another of its step; None where none was."""
    step = outcome.violations[0].step if outcome.violations else None
    tree = next((one.data["tree"] for one in outcome.violations if one.step == step and "tree" in one.data), None)
    if tree is None:
        return None
    total = len(tree["tokens"])
    drawn = [node for node in range(total) if node < MAX_NODES or node in tree["accepted"]]
    tokens = [tree["tokens"][node] for node in drawn]
    parents = [drawn.index(tree["parents"][node]) if node else -1 for node in drawn]
    accepted = [drawn.index(node) for node in tree["accepted"]]
    depths, rows = _places(parents)
    more = f"; {len(drawn)} drawn" if total > len(drawn) else ""
    title = f"request {tree['rid']}, step {step}: {len(accepted)} of {total} nodes accepted{more}"
    parts = [svg.text(_LEFT, _TOP - 16, title, class_="title")]
    at = [(_LEFT + _WIDE * depth, _TOP + _HIGH * row) for depth, row in zip(depths, rows, strict=True)]
    for node, parent in enumerate(parents):
        if parent >= 0:
            (x, y), (left, top) = at[node], at[parent]
            points = [(left + _BOX, top + 10), (left + _BOX + 14, top + 10), (x - 14, y + 10), (x, y + 10)]
            parts.append(svg.polyline(points, class_=_style("branch", node in accepted)))
    for node, (token, (x, y)) in enumerate(zip(tokens, at, strict=True)):
        tip = f"node {node}: token {token}{', accepted' if node in accepted else ''}"
        parts.append(svg.rect(x, y, _BOX, 20, rx=5, class_=_style("node", node in accepted), data_tip=tip))
        words = _style("name", node in accepted)
        parts.append(svg.text(x + _BOX / 2, y + 14, str(token), class_=words, text_anchor="middle", data_tip=tip))
    path = ", ".join(str(tokens[node]) for node in accepted)
    width = max(svg.WIDTH, _LEFT + _WIDE * (max(depths) + 1))
    return svg.drawing(_TOP + _HIGH * (max(rows) + 1), f"{title}; tokens {path}", *parts, width=width)


def _places(parents: list[int]) -> tuple[list[int], list[int]]:
    """Of each node its depth, and its row: that of its first child, or a new one."""
    depths, rows, used = [0] * len(parents), [0] * len(parents), 0
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(node)
            depths[node] = depths[parent] + 1
    waiting = [(0, 0)]
    while waiting:
        node, place = waiting.pop()
        used += place > 0  # the first child stays in its parent's row
        rows[node] = used
        waiting += reversed([(child, order) for order, child in enumerate(children[node])])
    return depths, rows


def _style(kind: str, accepted: bool) -> str:
    return f"{kind} accepted" if accepted else kind
