"""The abilities of targets: what can be seen of an engine that serves, in words for reports."""

from typing import TypeAlias

DEFAULT = "embedded"

Ability: TypeAlias = str  # a key of :data:`SHOWN`

SHOWN: dict[Ability, str] = {
    "steps": "what a step decides",
    "kv": "keys and values of a request",
    "draft": "what a draft model does",
    "draft_kv": "keys and values of a draft",
    "drafts": "what a request stores for its next draft, and its trees",
    "decisions": "what a verify decides by",
    "graphs": "which forwards ran as graphs",
    "probes": "what passes probe sites",
    "guards": "guard regions around buffers",
    "pools": "the books of the memory pools",
    "accept_lengths": "how many tokens each verify accepts",
    "cached_tokens": "how much of a prompt came from the cache",
    "cache_flush": "a prompt served with an empty cache",
    "reverts": "its own source with a fix reverted",
    "faults": "what a fault does inside it",
    "tokens": "which tokens it emits",
    "plain": "what its model says without drafts",
    "logits": "the logits of its model",
    "logprobs": "log probabilities of its tokens",
    "set_back": "a running request set back to wait",
    "alive": "that it answers between requests",
    "counts": "what it counts of each request",
    "failures": "what it or its log says of failures",
}
"""The abilities in words that follow "this target cannot show"."""

OF_SERVERS: frozenset[Ability] = frozenset({"alive", "counts", "failures"})
"""Abilities that an engine in the worker's own process has no need of: it is alive if the worker is."""

INSIDE: frozenset[Ability] = frozenset({"pools", "kv", "draft", "draft_kv", "drafts", "decisions"})
"""Abilities for which an engine that runs elsewhere has to be prepared when it is started."""
