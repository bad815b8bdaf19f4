"""Workloads drawn from a seeded stream: a few groups of requests, of kinds that have found bugs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from specdebug.base.trial import stream
from specdebug.targets.options import TargetOptions

Plain = dict[str, Any]

OFFSETS = (0, 64)
"""Where documents begin that come back from workload to workload."""
LONGEST_PROMPT, MOST_NEW = 40, 48
"""Tokens. With large pages documents are a page longer, or none of them would ever be found in the cache."""


def groups(rng: random.Random, more: int) -> list[Plain]:
    """Three to five groups, some of which wait for an earlier one. Documents are ``more`` tokens longer than usual."""
    groups: list[Plain] = []
    for place, kind in enumerate(rng.sample(KINDS, rng.randint(3, 5))):
        arrive: Plain = {"step": rng.randint(0, 6), "every": rng.randint(0, 2), "jitter": rng.randint(0, 3)}
        if place and rng.random() < 0.3:
            arrive["after"] = f"g{rng.randrange(place)}"
        groups.append({"id": f"g{place}", "max_new_tokens": [4, MOST_NEW], **kind(rng, more), "arrive": arrive})
    return groups


def _slice(rng: random.Random) -> Plain:
    return {"corpus": "stdlib", "tokens": [4, rng.randint(8, LONGEST_PROMPT)]}


STOP_STRINGS = ("return", "self.", " in ", "):\n", "e_", "\n\n", "==", "import", "th", '""')
"""Parts of source code, within a token and across several."""


def _greedy(rng: random.Random, more: int) -> Plain:
    return {"requests": rng.randint(1, 3), "prompt": _slice(rng)}


def _sampled(rng: random.Random, more: int) -> Plain:
    how = rng.choice(({}, {"top_k": 20}, {"top_p": 0.9}, {"top_k": 8, "top_p": 0.8}))
    return _greedy(rng, more) | {"temperature": rng.choice((0.3, 0.8, 1.5)), **how}


def _document(rng: random.Random, more: int) -> Plain:
    """A prompt that other requests, of this workload and of others, begin with."""
    prompt = {"corpus": "stdlib", "tokens": [more + 16, more + LONGEST_PROMPT], "offset": rng.choice(OFFSETS)}
    return {"requests": rng.randint(1, 2), "prompt": prompt}


def _plain(rng: random.Random, more: int) -> Plain:
    """Without drafts: what it leaves in the cache has no draft KV."""
    return _document(rng, more) | {"speculative": False, "temperature": rng.choice((0.0, 0.8))}


def _shared(rng: random.Random, more: int) -> Plain:
    prefix = {"corpus": "stdlib", "tokens": rng.randint(8, 24)}
    suffix = {"corpus": "stdlib", "tokens": [1, 12]}
    return {"requests": rng.randint(2, 3), "prompt": {"shared_prefix": prefix, "suffix": suffix}}


def _turns(rng: random.Random, more: int) -> Plain:
    return {
        "turns": {"clients": rng.randint(1, 2), "rounds": 2, "input_tokens": [4, 16]},
        "max_new_tokens": [4, 16],
    }


def _aborted(rng: random.Random, more: int) -> Plain:
    requests = rng.randint(1, 3)
    some = rng.sample(range(requests), rng.randint(1, requests))
    return _greedy(rng, more) | {"requests": requests, "abort": {"after_steps": rng.randint(0, 8), "requests": some}}


def _stopped(rng: random.Random, more: int) -> Plain:
    """With stop tokens or stop strings among the most common ones: a request may end within what a verify accepts."""
    if rng.random() < 0.5:
        return _greedy(rng, more) | {"stop_token_ids": sorted(rng.sample(range(512), 48))}
    return _greedy(rng, more) | {"stop": rng.sample(STOP_STRINGS, 3)}


KINDS: tuple[Callable[[random.Random, int], Plain], ...] = (
    _greedy,
    _sampled,
    _document,
    _plain,
    _shared,
    _turns,
    _aborted,
    _stopped,
)


ARM = "drawn"
TOGETHER = 4
"""Scenarios in a row that have one engine."""


def drawn(seed: int, number: int, options: TargetOptions) -> Plain:
    """Scenario ``number`` of a seed, as a file says it."""
    rng = stream(seed, "hunt", "workload", number)
    engine, page = options.drawn(seed, number // TOGETHER, LONGEST_PROMPT + MOST_NEW)
    return {
        "name": f"hunt-{seed}-{number}",
        "description": f"Scenario {number} of the hunt of seed {seed}.",
        "seed": rng.getrandbits(31),
        "engine": engine,
        "workload": groups(rng, page if page > LONGEST_PROMPT else 0),
        "arms": {ARM: {}},
        "limits": {"max_steps": 3000, "timeout_s": 300},
    }
