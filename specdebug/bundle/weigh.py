"""Weigh by the reference how narrow choices were: in a worker, since it takes torch and the models.

The reference is the dense model of the oracles, in float32. A token is as good as the best if its logit is no further
below than rounding moves logits in the engine's dtype (``lossless.TIE_MARGIN``, a part of the largest logit there). A
draft is as good as in the tree, or out of it, if no more log-probability than that decides it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specdebug.bundle.partings import Parting
from specdebug.targets.options import EngineShape
from specdebug.workers.wire import Sink

if TYPE_CHECKING:
    from specdebug.run.dense import DenseReference

TARGET = f"{__name__}:weigh"


def weigh(payload: Mapping[str, Any], sink: Sink) -> None:
    """Emit ``weighed`` for every parting, in order: the gap, what is allowed, and the token that is best there."""
    from specdebug.run.dense import DenseReference
    from specdebug.run.oracles.lossless import TIE_MARGIN

    shape: EngineShape = payload["shape"]
    reference = DenseReference(shape.model, shape.draft_model, shape.algorithm)
    for number, parting in enumerate(payload["partings"]):
        gap, size, preferred = _draft(reference, shape, parting) if parting.depth else _token(reference, parting)
        sink.emit("weighed", number=number, gap=gap, allowed=TIE_MARGIN[shape.dtype] * size, preferred=preferred)


def _token(reference: DenseReference, parting: Parting) -> tuple[float, float, int]:
    """The distance of the worse of the two tokens below the best."""
    gaps = []
    for token in (parting.recorded, parting.now):
        choices, gap, sizes = reference.judge([*parting.ids, token], len(parting.ids))  # type: ignore[list-item]
        gaps += gap
    return max(gaps), sizes[0], choices[0]


def _draft(reference: DenseReference, shape: EngineShape, parting: Parting) -> tuple[float, float, int]:
    """The amount by which the path that one trace accepted is in the tree, or is not.

    What was accepted beyond the end of an output was not given out, so its tokens are the reference's. Then it may as
    well be one of these that was narrow: by how far it is better than the second best.
    """
    from specdebug.reference.drafting import TreeShape, standing

    assert shape.tree is not None
    path = list(parting.path)
    if parting.depth > shape.tree[1]:  # no tree is so deep: the trace is not of this engine
        return float("inf"), 1.0, path[-1]
    unseen: list[tuple[float, float]] = []
    while len(path) < parting.depth:
        token, lead, size = reference.next_token([*parting.ids, *path])
        path.append(token)
        unseen.append((lead, size))
    found = standing(reference.drafted(parting.ids), len(parting.ids) - 1, path, TreeShape(*shape.tree))
    gap, size = min([(abs(found.slack), found.size), *unseen], key=lambda each: each[0] / each[1])
    return gap, size, path[-1]
