"""Conservation laws of reuse: a request uses what is cached of its prompt, and what it has computed is cached.

Nothing else fails of a prefix that is computed again: the same tokens come out, only later. What the tree holds is told
here from copies of its nodes' tokens, compared one by one, and not by the tree's own search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specdebug.engine.config import EngineConfig
from specdebug.engine.textbook.memory.radix_cache import RadixCache, TreeNode, beyond
from specdebug.engine.textbook.request import Request, Status

_Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Path:
    """The slots from the root to the end of a node: ``length`` of them, of the first ``written`` with draft KV.

    tokens: int64 [length + beyond(lookahead)], those that the slots hold and those after them.
    """

    tokens: _Tokens
    length: int
    written: int


_ROOT = _Path(np.empty(0, dtype=np.int64), 0, 0)


class Reuse:
    """Watches from one look to the next that requests use what the tree holds, and leave there what they computed.

    Between looks an engine may make any number of steps, be flushed, and set requests back. A node of the last look
    that is still there was there all the time, with the same tokens and no less draft KV; that is all that is assumed.
    ``draft_kv``: there is any.
    """

    def __init__(self, config: EngineConfig, radix: RadixCache, *, lookahead: int, draft_kv: bool) -> None:
        """``lookahead``: tokens beyond a slot that what it holds depends on; an EAGLE head sees the next one."""
        spec = config.speculative
        self._radix = radix
        self._enabled = config.radix_cache
        self._page = config.page_size
        self._lookahead = lookahead
        self._beyond = beyond(lookahead)
        self._draft_kv = draft_kv
        self._recompute = draft_kv and spec is not None and spec.draft_kv_on_hit == "recompute"
        self._paths: dict[int, _Path] = {}
        """By serial of a node of the last look."""
        self._made = self._evicted = 0
        self._admitted: set[Request] = set()
        self._ended: set[Request] = set()

    def check(self, requests: Iterable[Request], holders: Iterable[Request]) -> list[str]:
        """The laws ``reuse`` and ``kept``, of what has happened since the last look. ``requests``: all that the engine
        knows; ``holders``: those of them that hold a row.

        reuse: a request that was admitted for the first time had no less from the tree than that held of its prompt.
        kept: the tree has the whole pages of what a holder computed of its prompt, and of all that a request computed
        which came to its end, with draft KV if it drafted; and no holder counts draft KV of its prefix as missing.
        """
        nodes = list(self._radix.nodes())
        if not self._enabled:
            return [f"kept: the prefix cache is off, and {len(nodes)} nodes are in its tree"] if nodes else []
        admitted, ended = self._news(requests)
        made, evicted, before = self._made, self._evicted, self._paths
        self._made, self._evicted = self._radix.made, self._radix.made - len(nodes)
        if admitted or ended or (made, evicted) != (self._made, self._evicted):  # else the tree is as it was
            self._paths = self._look(nodes)
        problems: list[str] = []
        if admitted:
            stayed = [path for serial, path in before.items() if serial in self._paths]
            for request in admitted:
                problems += self._used(request, stayed)
        if evicted == self._evicted:
            for request in ended:
                problems += self._left(request)
        for request in holders:
            problems += self._published(request)
        return problems

    def _news(self, requests: Iterable[Request]) -> tuple[list[Request], list[Request]]:
        """Requests first admitted since the last look, and those that have come to their end; aborted ones left out."""
        admitted, ended = self._admitted, self._ended
        known = [each for each in requests if each.status is not Status.WAITING or each.retractions]
        self._admitted, self._ended = set(known), {each for each in known if each.status is Status.FINISHED}
        served = [each for each in known if each.finish_reason != "abort"]
        came = [each for each in served if each not in admitted]
        return came, [each for each in served if each in self._ended and each not in ended]

    def _look(self, nodes: Sequence[TreeNode]) -> dict[int, _Path]:
        """The path to each node; parents come first. The tokens to one that was there before are kept as they were."""
        paths: dict[int, _Path] = {}
        for node in nodes:
            assert node.parent is not None
            above, known = paths.get(node.parent.serial, _ROOT), self._paths.get(node.serial)
            length = above.length + len(node.key) if known is None else known.length
            tokens = np.concatenate([above.tokens[: above.length], node.key.array]) if known is None else known.tokens
            written = length if node.draft_written and above.written == above.length else above.written
            paths[node.serial] = _Path(tokens, length, written)
        return paths

    def _used(self, request: Request, stayed: Iterable[_Path]) -> Iterator[str]:
        most = len(request.prompt_ids) if request.cache_limit is None else request.cache_limit + self._beyond
        tokens = np.asarray(request.prompt_ids[:most], dtype=np.int64)
        needs_draft = self._recompute and request.speculative
        shared = [(self._shared(path, tokens), path.written) for path in stayed]
        there = max((min(each) if needs_draft else each[0] for each in shared), default=0)
        if request.cached_tokens < there:
            yield f"reuse: {request.rid} had {request.cached_tokens} of the {there} positions cached of its prompt"

    def _left(self, request: Request) -> Iterator[str]:
        """The newest token of a request has no KV; all before it were computed, and those are cached whose draft KV
        depends on no later token."""
        tokens = np.asarray(request.all_ids, dtype=np.int64)
        due = self._whole_pages(len(tokens) - self._beyond)
        shared = [(self._shared(path, tokens), path.written) for path in self._paths.values()]
        there = max((each[0] for each in shared), default=0)
        drafted = max(map(min, shared), default=0)
        if there < due:
            yield f"kept: {request.rid} has ended, and the tree has {there} of the {due} positions it computed"
        elif self._draft_kv and request.speculative and drafted < due:
            said = f"has draft KV of {drafted} of the {due} positions it computed"
            yield f"kept: {request.rid} has ended, and the tree {said}"

    def _published(self, request: Request) -> Iterator[str]:
        due = self._whole_pages(min(request.kv_len, len(request.prompt_ids)) - self._beyond)
        if request.protected_len < due:
            shared = f"shares {request.protected_len} of the {due} positions it computed of its prompt"
            yield f"kept: {request.rid} {shared}"
        lacking = request.unwritten_draft_slots
        if lacking is not None and lacking.numel():
            yield f"kept: {request.rid} counts draft KV of {lacking.numel()} cached positions as missing"

    def _shared(self, path: _Path, tokens: _Tokens) -> int:
        """The leading slots of ``path``, in whole pages, that are a request's of these tokens, too."""
        most = min(path.length, min(len(path.tokens), len(tokens)) - self._beyond)
        if most <= 0:
            return 0
        compared = most + self._lookahead
        (differs,) = np.nonzero(path.tokens[:compared] != tokens[:compared])
        same = max(int(differs[0]) - self._lookahead, 0) if differs.size else most
        return self._whole_pages(same)

    def _whole_pages(self, positions: int) -> int:
        return max(positions, 0) // self._page * self._page
