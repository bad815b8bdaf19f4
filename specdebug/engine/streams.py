"""The law of random streams: a request that samples draws from a generator of its own.

Draws from one that others use are as random, so no test of odds sees them; but they depend on who else is served.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from specdebug.engine.textbook.request import Request


def check_streams(requests: Iterable[Request]) -> list[str]:
    """The law ``streams``, of requests with a temperature: each that has a token has a generator of its own."""
    problems: list[str] = []
    owners: dict[torch.Generator, str] = {}
    for request in requests:
        if request.sampling.greedy or not request.output_ids:
            continue
        if request.generator is None:
            problems.append(f"streams: {request.rid} has sampled, and has no generator of its own")
        elif (owner := owners.setdefault(request.generator, request.rid)) != request.rid:
            problems.append(f"streams: {request.rid} and {owner} draw from one generator")
    return problems
