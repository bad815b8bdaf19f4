"""How far two sound computations of the same number may lie apart.

Processors, BLAS kernels and thread counts sum in other orders. A sum of ``n`` products of size 1 is off by at most
``LAMBDA * sqrt(n)`` units of rounding, whatever its order, but for one case in ten million (Higham and Mary, "A new
approach to probabilistic rounding error analysis", 2019, with lambda 6), and the errors of a chain of sums add up. A
tolerance is derived here from the operation count, so that it does not hang on the machine where a test was written.
"""

from collections.abc import Mapping
from typing import Any

import torch

LAMBDA = 6.0
EXP = 5e-5
"""Relative, of an exponential: its argument of up to 200 is off by as many units of rounding, on either side."""
SIDES = 2  # what is compared with is rounded, too
UNIT = torch.finfo(torch.float32).eps / 2


def rounding(
    *sums: int, dtype: torch.dtype = torch.float32, size: float = 1.0, roundings: int = 1, times: int = 1
) -> dict[str, float]:
    """Return ``rtol`` and ``atol`` for what float32 arithmetic computed and stored in ``dtype``.

    Args:
        sums: how many numbers each sum on the longest way to a result adds up.
        dtype: of the result.
        size: magnitude of what is summed.
        roundings: how often a value on the way is rounded to ``dtype``.
        times: how often the chain of ``sums`` is gone through, as by a model's layers.
    """
    added = times * sum(n**0.5 for n in sums)
    return {
        "rtol": SIDES * roundings * torch.finfo(dtype).eps,
        "atol": SIDES * LAMBDA * UNIT * size * added,
    }


def layers_rounding(config: Mapping[str, Any], positions: int, times: int | None = None) -> dict[str, float]:
    """Return the tolerance for hidden states and logits of a decoder of that shape over ``positions`` tokens.

    Args:
        config: as a checkpoint's ``config.json`` has it.
        positions: keys that the last token attends.
        times: how often a decoder layer is gone through, once each layer unless given.
    """
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    # both norms, the products into and out of attention, scores, values, the products into and out of the MLP
    layer = (hidden, hidden, hidden, hidden, head, positions, hidden, inner)
    return rounding(*layer, times=times or config["num_hidden_layers"])
