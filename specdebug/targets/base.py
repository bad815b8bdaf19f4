"""The seam between a run and what it runs on.

A :class:`Target` stands for an engine. In the parent it checks the options of an arm and says what the arm asks for; in
a worker it opens a :class:`Session`, into which requests go and out of which tokens and facts come, one
:class:`StepView` at a time. An oracle states which :data:`Ability` it needs; where a session lacks one, the oracle is
listed as ``cannot show`` and never silently left out.

This module imports neither torch nor any engine: the parent uses it, and workers do before reverts are in place. A
target of another distribution is a plugin of the kind ``targets`` (see ``plugins.py``), an object of this protocol.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.async_probe.gate import Rule
    from specdebug.faults.model import Fault
    from specdebug.kernel_memory.rules import KernelRule
    from specdebug.patching.toggles import Toggle
    from specdebug.targets.serving import ServerView

Ability = Literal[
    "steps",
    "kv",
    "draft",
    "draft_kv",
    "drafts",
    "decisions",
    "graphs",
    "probes",
    "guards",
    "pools",
    "accept_lengths",
    "cached_tokens",
    "cache_flush",
    "reverts",
    "faults",
    "tokens",
    "plain",
    "logits",
    "alive",
    "counts",
    "failures",
]

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
    "alive": "that it answers between requests",
    "counts": "what it counts of each request",
    "failures": "what it or its log says of failures",
}
"""The abilities in words that follow "this target cannot show"."""

OF_SERVERS: frozenset[Ability] = frozenset({"alive", "counts", "failures"})
"""Abilities that an engine in the worker's own process has no need of: it is alive if the worker is."""


INSIDE: frozenset[Ability] = frozenset({"pools", "kv", "draft", "draft_kv", "drafts", "decisions"})
"""Abilities for which an engine that runs elsewhere has to be prepared when it is started."""


class Sampling(Protocol):
    """The choice of a request's tokens; ``scenario.workload.RequestSampling`` is one."""

    @property
    def max_new_tokens(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...
    @property
    def stop(self) -> tuple[str, ...]: ...
    @property
    def seed(self) -> int: ...


class RequestView(Protocol):
    """One request so far. ``kv_len``: positions with target KV. Accept lengths, one a verify, count the bonus token.
    ``finish_reason``: ``stop`` once the last of ``output_ids`` is a stop token or completes a stop string, which is
    then ``matched_stop``; else ``length`` once there are ``max_new_tokens``; or ``abort``."""

    @property
    def rid(self) -> str: ...
    @property
    def prompt_ids(self) -> Sequence[int]: ...
    @property
    def output_ids(self) -> Sequence[int]: ...
    @property
    def all_ids(self) -> Sequence[int]: ...
    @property
    def sampling(self) -> Sampling: ...
    @property
    def speculative(self) -> bool: ...
    @property
    def kv_len(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def accept_lengths(self) -> Sequence[int]: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def matched_stop(self) -> int | str | None: ...


class StepView(Protocol):
    """The decisions of one step. ``kind``: ``prefill``, ``decode`` or ``idle``. ``cached``: prompt tokens out of the
    prefix cache, of requests that were admitted. A session without steps reports what has been completed, as
    ``served``."""

    @property
    def kind(self) -> str: ...
    @property
    def rids(self) -> Sequence[str]: ...
    @property
    def emitted(self) -> Mapping[str, Sequence[int]]: ...
    @property
    def accept_lengths(self) -> Mapping[str, int]: ...
    @property
    def cached(self) -> Mapping[str, int]: ...
    @property
    def finished(self) -> Sequence[str]: ...
    @property
    def retracted(self) -> Sequence[str]: ...


class StoredDrafts(Protocol):
    """The state that requests store for their next draft, a row each. ``seq_lens``: positions with target KV.
    ``bonus``: the token after them. ``topk_p``, ``topk_index``, ``hidden_states``: the draft head's output at the last
    of them; ``topk_p`` is None where an engine stores none for its chains, ``topk_index`` where its drafts are not read
    from what it stores. Then ``hidden_states`` are the target's: of a frozen-KV assistant that at the last position,
    [B, H]; of N layers of multi-token prediction those at the last N - 1, [B, N - 1, H]."""

    @property
    def seq_lens(self) -> Tensor: ...
    @property
    def bonus(self) -> Tensor: ...
    @property
    def topk_p(self) -> Tensor | None: ...
    @property
    def topk_index(self) -> Tensor | None: ...
    @property
    def hidden_states(self) -> Tensor: ...


class RequestOnlooker(Protocol):
    """Somebody who is told of a request when its memory can still be looked at, of what a verify decided, and of the
    forwards that are launched."""

    def on_launched(self, engine: Any, launch: Any) -> None:
        """A forward is launched, as a graph or eagerly (``engine.observer.LaunchedForward``)."""

    def on_draft_forward(self, engine: Any, forward: Any) -> None:
        """A forward of the draft loop was computed, or is captured (``engine.observer.DraftForward``)."""

    def on_decided(self, engine: Any, decision: Any) -> None:
        """The nodes of some requests' trees that are accepted have been chosen (``engine.observer.Decision``)."""

    def on_prefilled(self, engine: Any, request: Any) -> None:
        """The whole prompt has KV; the first token is sampled."""

    def on_finishing(self, engine: Any, request: Any) -> None:
        """The last token is out; the slots are released right after."""


@dataclass(frozen=True)
class Asked:
    """An arm's wishes of its target. ``drafts``: a draft is asked for, with ``draft_model`` where the target names one,
    and then the ``algorithm`` that it drafts by. ``draft_kv``: a draft keeps keys and values of its own.
    ``zero_fill``: unwritten draft KV is zeroed on a cache hit by policy. ``guards``: guard regions are on.
    ``graphs``: batch sizes for which graphs are captured, ascending. ``exact``: sampled tokens have the target's odds;
    thresholds of acceptance below 1 give drafts more. ``dense``: the checkpoint is here, so that the dense reference
    can judge. ``server``: it is reached over a network. ``probed``: it has the arm's probes live itself, and tells
    what they find. ``context_length``: tokens of prompt and output to which requests are cut, for a server that
    declines longer ones. ``joint``: of which sampled tokens top-k and top-p cut at once (``reference/sampling.py``)."""

    model: str
    device: str = "cpu"
    dtype: str = "float32"
    attention_backend: str | None = None
    drafts: bool = False
    draft_model: str | None = None
    algorithm: str | None = None
    draft_kv: bool = True
    zero_fill: bool = False
    guards: bool = False
    graphs: tuple[int, ...] = ()
    exact: bool = True
    dense: bool = True
    server: bool = False
    probed: bool = False
    context_length: int | None = None
    joint: Literal["none", "first", "all"] = "none"
    unused: tuple[str, ...] = ()
    """Engine options of the arm that mean nothing to this target."""


@dataclass(frozen=True)
class OverThere:
    """The part of an arm that is put in place where the engine runs: fixes to revert, names of probe packs, the mode of
    all probes if one is set, and the folders of content that those are from, beside what is shipped. ``keeper``: the
    address of who keeps servers for several runs (``launch/keeper.py``), in a search. ``rules``: what those packs and
    that mode come to, ``kernels``: for the memory of kernels, which also an engine in the worker itself is to look at.
    ``tape``: the file into which an engine that can be recorded writes what passes its sites. ``shows``: what the arm's
    oracles want to look at inside it. ``faults``: damage to do there, drawn by ``seed``."""

    toggles: tuple[Toggle, ...] = ()
    probes: tuple[str, ...] = ()
    mode: str | None = None
    content: tuple[str, ...] = ()
    keeper: str | None = None
    rules: tuple[Rule, ...] = ()
    kernels: tuple[KernelRule, ...] = ()
    tape: str | None = None
    shows: tuple[Ability, ...] = ()
    faults: tuple[Fault, ...] = ()
    seed: int = 0

    @property
    def reverts(self) -> tuple[int, ...]:
        """Numbers of the fixes to revert."""
        return tuple(toggle.pr for toggle in self.toggles)


@dataclass
class Opening:
    """The surroundings of a session. ``label`` names the arm in files. ``say`` reports an event. ``busy`` is told what
    keeps the session from answering. ``before`` is called when the device is taken and the engine not yet built.
    ``over_there``: what a target whose engine runs elsewhere is to put in place there."""

    label: str
    say: Callable[..., None]
    busy: Busy
    before: Callable[[], None] = field(default=lambda: None)
    over_there: OverThere = field(default_factory=lambda: OverThere())


class Busy(Protocol):
    """Told what an engine is busy with beside its steps, such as compiling a kernel."""

    def said(self, text: str) -> None: ...
    def compiling(self, kernel: str) -> None: ...
    def compiled(self) -> None: ...


class Session(Protocol):
    """An engine that serves. Methods that need an ability which it lacks are never called; :class:`Plain` has these."""

    @property
    def shows(self) -> frozenset[Ability]: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def has_work(self) -> bool: ...
    @property
    def inside(self) -> Any:
        """The engine itself, for faults and recorders; None where it lives in another process."""

    def clock(self) -> float:
        """Seconds that the engine has taken: processor time on a CPU, where arms share the cores, else wall time."""

    def observe(self, onlooker: RequestOnlooker | None) -> None:
        """Tell ``onlooker``, and nobody else, about requests from now on."""

    def add(self, rid: str, prompt_ids: Sequence[int], sampling: Sampling, *, speculative: bool) -> None:
        """Queue a request. Raises a SpecDebugError with exit code 2 for one that cannot be served."""

    def abort(self, rid: str) -> None:
        """End a request where it is."""

    def advance(self) -> StepView:
        """One step; without ``steps``, wait until something has been completed."""

    def request(self, rid: str) -> RequestView:
        """A request that was added. Raises KeyError."""

    def flush_cache(self) -> None:
        """Forget every cached prefix that no request reads."""

    def check_pools(self) -> Sequence[str]:
        """Violated conservation laws of the memory pools, each ``law: what``."""

    def check_guards(self) -> Sequence[Any]:
        """Guard regions damaged since the last call."""

    def damage_seen(self) -> Sequence[Any]:
        """The rest of :meth:`check_guards` once the device is lost."""

    def draft_kv(self, request: Any, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Draft keys and values of positions [start, stop): each [layers, n, heads, head_dim]."""

    def target_kv(self, request: Any, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """As :meth:`draft_kv`, of the target."""

    def draft_state(self, requests: Sequence[Any]) -> StoredDrafts:
        """Return the rows that these requests store for their next draft."""

    def settle(self) -> bool:
        """Wait for what the device still has to do; False where there is nothing to wait for."""

    def known(self, asked: Asked) -> Asked:
        """The wishes of the arm, corrected by what the engine turned out to be."""

    def plain(self) -> Any:
        """What judges greedy tokens where the dense reference cannot: the oracles' ``Reference``, of which only
        ``judge`` is asked; None where there is nothing."""

    def server(self) -> ServerView | None:
        """The server behind the session, for those who have ``alive``, ``counts`` or ``failures``."""

    def close(self, sound: bool) -> None:
        """The run is over; ``sound``: nothing was found. What the session holds may go."""


class Plain:
    """A session that lives elsewhere, or has nothing inside: no cache to flush, no memory to be looked at."""

    inside: Any = None

    def clock(self) -> float:
        return time.perf_counter()

    def observe(self, onlooker: RequestOnlooker | None) -> None:
        """Do nothing: there is no moment at which memory could be looked at."""

    def settle(self) -> bool:
        return False

    def known(self, asked: Asked) -> Asked:
        return asked

    def plain(self) -> Any:
        return None

    def server(self) -> ServerView | None:
        return None

    def close(self, sound: bool) -> None:
        """Do nothing: the worker's end is the session's."""

    def flush_cache(self) -> None:
        raise self._hidden("cache_flush")

    def check_pools(self) -> Sequence[str]:
        raise self._hidden("pools")

    def check_guards(self) -> Sequence[Any]:
        raise self._hidden("guards")

    def damage_seen(self) -> Sequence[Any]:
        raise self._hidden("guards")

    def draft_kv(self, request: Any, start: int, stop: int) -> tuple[Tensor, Tensor]:
        raise self._hidden("kv")

    def target_kv(self, request: Any, start: int, stop: int) -> tuple[Tensor, Tensor]:
        raise self._hidden("kv")

    def draft_state(self, requests: Sequence[Any]) -> StoredDrafts:
        raise self._hidden("drafts")

    def _hidden(self, ability: Ability) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} cannot show {SHOWN[ability]}")


class Target(Protocol):
    """An engine that scenarios can be run on."""

    @property
    def name(self) -> str: ...

    @property
    def shows(self) -> frozenset[Ability]:
        """The abilities that a session of this target has at most."""

    def asked(self, options: Mapping[str, Any]) -> Asked:
        """The wishes of an arm of these options. Raises ConfigError; its ``key_path``, if any, names the option."""

    def warm(self, options: Mapping[str, Any]) -> None:
        """Load what sessions of these options, here or in a fork, can share. Raises ConfigError or CheckpointError."""

    def cool(self) -> None:
        """Forget what was loaded: sessions opened from now on load their own."""

    def open(self, options: Mapping[str, Any], seed: int, opening: Opening) -> Session:
        """Start serving, in a worker, once reverts are in place. Raises SpecDebugError."""


def clock_of(device: str) -> Callable[[], float]:
    """The clock by which an engine on ``device`` is timed."""
    return time.process_time if device == "cpu" else time.perf_counter
