"""Pearson's chi-square test, enough of it to say that counts do not come from the stated probabilities."""

from __future__ import annotations

from collections.abc import Mapping

import torch

MIN_EXPECTED = 5.0
"""Cells expected to hold fewer counts are pooled: below this the statistic is not chi-square distributed."""


def chi_square_p_value(counts: Mapping[object, int], probabilities: Mapping[object, float]) -> float:
    """How likely counts at least this far off are, if outcomes have ``probabilities`` (which sum to 1).

    An outcome of probability zero that was counted gives 0.0.
    """
    total = sum(counts.values())
    if any(count and probabilities.get(outcome, 0.0) <= 0.0 for outcome, count in counts.items()):
        return 0.0
    cells, pooled_seen, pooled_expected = [], 0.0, 0.0
    for outcome, probability in probabilities.items():
        seen, expected = counts.get(outcome, 0), probability * total
        if expected >= MIN_EXPECTED:
            cells.append((seen, expected))
        else:
            pooled_seen, pooled_expected = pooled_seen + seen, pooled_expected + expected
    if pooled_expected >= MIN_EXPECTED or (pooled_expected > 0 and not cells):
        cells.append((pooled_seen, pooled_expected))
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    freedom = len(cells) - 1
    if freedom < 1:
        return 1.0
    return float(torch.special.gammaincc(torch.tensor(freedom / 2.0), torch.tensor(statistic / 2.0)))
