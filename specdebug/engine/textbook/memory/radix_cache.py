"""The prefix cache: a radix tree from token prefixes to the KV slots that already hold them, in whole pages.

A path that a running request reads is locked; the rest may be evicted, least recently used leaves first, by a logical
clock. A node says if the *draft* KV of its slots was ever written: its prefix may come from a request without drafts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from specdebug.engine.errors import EngineError


def beyond(lookahead: int) -> int:
    """Tokens that must follow a slot before it can be cached: those that it depends on, and never none, because the
    last slot of a sequence is computed anew for its logits."""
    return max(lookahead, 1)


@dataclass(frozen=True, eq=False)
class RadixKey:
    """The key under which the first ``len(tokens) - beyond(lookahead)`` slots of a sequence are cached.

    Slot p is cached under token p and the ``lookahead`` tokens after it, on which its draft KV depends: an EAGLE head
    embeds token p+1, layer i of multi-layer MTP token p+1+i. Under t_p alone, two prompts that diverge right after a
    shared page would share draft KV that is wrong for one of them.
    """

    tokens: Sequence[int] | npt.NDArray[np.int64]
    lookahead: int

    @cached_property
    def array(self) -> npt.NDArray[np.int64]:
        """``tokens`` as int64 [len + beyond(lookahead)]."""
        return np.asarray(self.tokens, dtype=np.int64)

    def __len__(self) -> int:
        return max(len(self.tokens) - beyond(self.lookahead), 0)

    def part(self, start: int, stop: int) -> RadixKey:
        """The key of slots ``start:stop``."""
        return RadixKey(self.array[start : stop + beyond(self.lookahead)], self.lookahead)

    def match_length(self, other: RadixKey) -> int:
        """The number of leading slots that are the same in both keys, which have one lookahead."""
        n = min(len(self), len(other))
        if n == 0:
            return 0
        differs = self.array[: n + self.lookahead] != other.array[: n + self.lookahead]
        first = int(differs.argmax())
        return max(first - self.lookahead, 0) if differs[first] else n

    def child_key(self, page_size: int) -> bytes:
        """The key's first page, by which a parent finds the child that begins with it."""
        return self.array[: page_size + self.lookahead].tobytes()


@dataclass(eq=False, slots=True)
class TreeNode:
    """A run of cached slots continuing its parent's. The root holds none.

    slots: int64 [len(key)]. ``serial`` numbers nodes in the order of their creation.
    """

    key: RadixKey
    slots: torch.Tensor
    parent: TreeNode | None
    draft_written: bool
    serial: int
    last_access: int
    lock_ref: int = 0
    children: dict[bytes, TreeNode] = field(default_factory=dict)

    def path(self) -> Iterator[TreeNode]:
        """This node and its ancestors, up to but without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


@dataclass(frozen=True, eq=False)
class PrefixMatch:
    """Slots that hold a prefix. It ends at ``node``, which must stay locked for as long as the slots are read.

    slots: int64 [M], M a multiple of the page size. draft_written: bool [M], true where the draft KV was written, too.
    """

    slots: torch.Tensor
    node: TreeNode
    draft_written: torch.Tensor


@dataclass(frozen=True, eq=False)
class InsertResult:
    """The tree's answer to an offer of slots.

    prefix_len: the tree had this many already; of the offered ones, those that differ stay the caller's to free.
    length: slots that the tree now holds for the key, its length floored to pages; those beyond are the caller's.
    heal_src, heal_dst: int64 [X], offered slots, and the tree's slots that lack their draft KV. Copy before freeing.
    """

    prefix_len: int
    length: int
    heal_src: torch.Tensor
    heal_dst: torch.Tensor


class RadixCache:
    """The tree of one engine. Raises ``ValueError`` for misuse, ``EngineError`` for an unbalanced unlock."""

    def __init__(self, page_size: int, device: torch.device | str = "cpu") -> None:
        if page_size < 1:
            raise ValueError(f"page_size {page_size} must be positive")
        self.page_size = page_size
        self._none = torch.empty(0, dtype=torch.int64, device=device)
        self._clock = 0
        self._serial = 0
        self.evictable_size = 0
        """Cached slots that no request reads."""
        self.protected_size = 0
        """Cached slots on a locked path."""
        self._leaves: dict[int, TreeNode] = {}  # by serial; only those that may be evicted
        self.root = TreeNode(RadixKey((), 0), self._none, None, draft_written=True, serial=0, last_access=0)

    @property
    def total_size(self) -> int:
        return self.evictable_size + self.protected_size

    @property
    def made(self) -> int:
        """Nodes that were ever made, the root aside; for accounting. Those that are not there now were evicted."""
        return self._serial

    def all_slots(self) -> torch.Tensor:
        """Every slot the tree owns, int64 [total_size]; for accounting."""
        return self._cat([node.slots for node in self.nodes()])

    def nodes(self) -> Iterator[TreeNode]:
        """Every node but the root, parents first, children in the order they came."""
        stack = list(reversed(self.root.children.values()))
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    def leaves(self) -> Iterator[TreeNode]:
        """The nodes listed for eviction, in the order in which they were listed; for accounting."""
        return iter(self._leaves.values())

    def match_prefix(self, key: RadixKey, *, require_draft_kv: bool) -> PrefixMatch:
        """The longest cached prefix of ``key`` in whole pages; a node it ends inside is split there.

        With ``require_draft_kv`` the prefix stops before the first slot whose draft KV was never written.
        """
        matched = list(self._descend(key, require_draft_kv=require_draft_kv))
        written = [torch.full_like(node.slots, node.draft_written, dtype=torch.bool) for node in matched]
        slots, node = self._cat([node.slots for node in matched]), matched[-1] if matched else self.root
        return PrefixMatch(slots, node, torch.cat([self._none.to(torch.bool), *written]))

    def insert(self, key: RadixKey, slots: torch.Tensor, *, draft_written: bool) -> InsertResult:
        """Hand ``slots`` (at least ``len(key)`` floored to pages) to the tree as holding ``key``. Where it has the
        prefix already it keeps its own; where those lack draft KV and the offered ones have it, the caller must copy
        ``heal_src`` to ``heal_dst``, which counts as done. Raises ``ValueError`` when slots are missing."""
        length = len(key) // self.page_size * self.page_size
        if slots.numel() < length:
            raise ValueError(f"{slots.numel()} slots offered for a key of {length}")
        node, done = self.root, 0
        heal_src, heal_dst = [self._none], [self._none]
        for node in self._descend(key.part(0, length)):
            if draft_written and not node.draft_written:
                offered = slots[done : done + len(node.key)].to(torch.int64)
                moved = offered != node.slots
                heal_src.append(offered[moved])
                heal_dst.append(node.slots[moved])
                node.draft_written = True
            done += len(node.key)
        if done < length:
            own = slots[done:length].to(torch.int64, copy=True)
            self._leaves.pop(node.serial, None)
            # The key is copied: a view would keep the whole prompt alive for as long as the node lives.
            rest = RadixKey(key.part(done, length).array.copy(), key.lookahead)
            node = self._add_child(node, rest, own, draft_written)
            self._leaves[node.serial] = node
            self.evictable_size += len(rest)
        return InsertResult(done, length, torch.cat(heal_src), torch.cat(heal_dst))

    def lock(self, node: TreeNode) -> None:
        """Keep ``node`` and everything above it from eviction until as many :meth:`unlock`."""
        for member in node.path():
            if member.lock_ref == 0:
                self.evictable_size -= len(member.key)
                self.protected_size += len(member.key)
                self._leaves.pop(member.serial, None)
            member.lock_ref += 1

    def unlock(self, node: TreeNode) -> None:
        """Undo one :meth:`lock` of ``node``."""
        for member in node.path():
            if member.lock_ref == 0:
                raise EngineError(f"radix node {member.serial} is unlocked more often than locked")
            member.lock_ref -= 1
            if member.lock_ref == 0:
                self.protected_size -= len(member.key)
                self.evictable_size += len(member.key)
                self._note_leaf(member)

    def evict(self, num_slots: int) -> torch.Tensor:
        """Drop whole unlocked leaves, least recently used first, until ``num_slots`` slots are dropped.

        Returns their slots, int64, now the caller's to free; fewer than asked for when too much is locked.
        """
        heap = [(leaf.last_access, serial) for serial, leaf in self._leaves.items()]
        heapq.heapify(heap)
        freed: list[torch.Tensor] = []
        missing = num_slots
        while heap and missing > 0:
            _, serial = heapq.heappop(heap)
            leaf = self._leaves.pop(serial)
            parent = leaf.parent
            assert parent is not None  # the root is never among the leaves
            del parent.children[leaf.key.child_key(self.page_size)]
            self.evictable_size -= len(leaf.key)
            missing -= len(leaf.key)
            freed.append(leaf.slots)
            if self._note_leaf(parent):
                heapq.heappush(heap, (parent.last_access, parent.serial))
        return self._cat(freed)

    def _descend(self, key: RadixKey, *, require_draft_kv: bool = False) -> Iterator[TreeNode]:
        """The nodes that spell the longest cached prefix of ``key``, splitting the one it ends inside."""
        self._clock += 1
        node, done, length = self.root, 0, len(key)
        while length - done >= self.page_size:
            rest = key.part(done, length)
            child = node.children.get(rest.child_key(self.page_size))
            if child is None or (require_draft_kv and not child.draft_written):
                return
            whole = len(child.key)
            shared = child.key.match_length(rest) // self.page_size * self.page_size
            node = self._split(child, shared) if shared < whole else child
            node.last_access = self._clock
            yield node
            if shared < whole:
                return
            done += shared

    def _split(self, node: TreeNode, length: int) -> TreeNode:
        """Cut the first slots off into a new parent. ``node`` stays the lower part, and unlocks the whole path."""
        parent = node.parent
        assert parent is not None
        upper = self._add_child(parent, node.key.part(0, length), node.slots[:length].clone(), node.draft_written)
        upper.lock_ref = node.lock_ref
        node.key = node.key.part(length, len(node.key))
        node.slots = node.slots[length:].clone()
        node.parent = upper
        upper.children[node.key.child_key(self.page_size)] = node
        return upper

    def _add_child(self, parent: TreeNode, key: RadixKey, slots: torch.Tensor, draft_written: bool) -> TreeNode:
        self._serial += 1
        child = TreeNode(key, slots, parent, draft_written, self._serial, self._clock)
        parent.children[key.child_key(self.page_size)] = child
        return child

    def _note_leaf(self, node: TreeNode) -> bool:
        evictable = node.parent is not None and not node.children and node.lock_ref == 0
        if evictable:
            self._leaves[node.serial] = node
        return evictable

    def _cat(self, slots: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([self._none, *slots])
