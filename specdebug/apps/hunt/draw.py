"""Scenarios drawn from a seed and a number, for an engine that has some options and lacks others: a few groups of
requests, of kinds that have found bugs. Several scenarios in a row share an engine, which starts one server."""

import random
from typing import Any

from specdebug.base.trial import stream
from specdebug.targets.options import TargetOptions

Plain = dict[str, Any]

ARM = "drawn"
TOGETHER = 4  # scenarios in a row that have one engine
OFFSETS = (0, 64)  # where documents begin that come back from workload to workload
LONGEST_PROMPT, MOST_NEW = 40, 48
"""Tokens. With large pages documents are a page longer, or none of them would ever be found in the cache."""
STOP_STRINGS = ("return", "self.", " in ", "):\n", "e_", "\n\n", "==", "import", "th", '""')
"""Parts of source code, within a token and across several."""
KINDS = ("greedy", "sampled", "document", "plain", "shared", "turns", "aborted", "stopped")


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


def groups(rng: random.Random, more: int) -> list[Plain]:
    """Three to five groups, some of which wait for an earlier one. Documents are ``more`` tokens longer than usual."""
    groups: list[Plain] = []
    for place, kind in enumerate(rng.sample(KINDS, rng.randint(3, 5))):
        arrive: Plain = {"step": rng.randint(0, 6), "every": rng.randint(0, 2), "jitter": rng.randint(0, 3)}
        if place and rng.random() < 0.3:
            arrive["after"] = f"g{rng.randrange(place)}"
        groups.append({"id": f"g{place}", "max_new_tokens": [4, MOST_NEW], **_group(kind, rng, more), "arrive": arrive})
    return groups


def _group(kind: str, rng: random.Random, more: int) -> Plain:

    def greedy() -> Plain:
        return {"requests": rng.randint(1, 3), "prompt": _slice(4, rng.randint(8, LONGEST_PROMPT))}

    match kind:
        case "greedy":
            return greedy()
        case "sampled":
            how = rng.choice(({}, {"top_k": 20}, {"top_p": 0.9}, {"top_k": 8, "top_p": 0.8}))
            return greedy() | {"temperature": rng.choice((0.3, 0.8, 1.5)), **how}
        case "document" | "plain":
            prompt = _slice(more + 16, more + LONGEST_PROMPT) | {"offset": rng.choice(OFFSETS)}
            document: Plain = {"requests": rng.randint(1, 2), "prompt": prompt}
            return document | ({"speculative": False, "temperature": rng.choice((0.0, 0.8))} if kind == "plain" else {})
        case "shared":
            prefix = {"corpus": "stdlib", "tokens": rng.randint(8, 24)}
            return {"requests": rng.randint(2, 3), "prompt": {"shared_prefix": prefix, "suffix": _slice(1, 12)}}
        case "turns":
            turns = {"clients": rng.randint(1, 2), "rounds": 2, "input_tokens": [4, 16]}
            return {"turns": turns, "max_new_tokens": [4, 16]}
        case "aborted":
            requests = rng.randint(1, 3)
            some = rng.sample(range(requests), rng.randint(1, requests))
            whole = greedy() | {"requests": requests}
            return whole | {"abort": {"after_steps": rng.randint(0, 8), "requests": some}}
    if rng.random() < 0.5:
        return greedy() | {"stop_token_ids": sorted(rng.sample(range(512), 48))}
    return greedy() | {"stop": rng.sample(STOP_STRINGS, 3)}


def _slice(least: int, most: int) -> Plain:
    return {"corpus": "stdlib", "tokens": [least, most]}
