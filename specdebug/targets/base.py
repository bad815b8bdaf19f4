"""The seam between a run and what it runs on: a :class:`Target` opens a :class:`Session`, into which requests go and
out of which tokens and facts come, one ``Stepped`` (``events.py``) at a time. This imports neither torch nor any
engine: workers use it before reverts are in place."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from specdebug.base.abilities import SHOWN, Ability
from specdebug.events import Observers, Stepped
from specdebug.targets.relations import NoTwin, Relation, Twin
from specdebug.targets.requests import Lost, RequestView, Sampling

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.async_probe import ProbeFinding
    from specdebug.engine.memory.arena import GuardViolation
    from specdebug.kernel_memory.finding import KernelRule
    from specdebug.patching import Patch
    from specdebug.patching.toggles import Toggle
    from specdebug.targets.http.server import HttpServerView, PlainText
    from specdebug.targets.sglang.faults import SglangFaults
    from specdebug.workers.home import Home


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


@dataclass(frozen=True)
class Asked:
    """An arm's wishes of its target.

    Attributes:
        drafts: a draft is asked for, by ``draft_model`` where the target names one.
        algorithm: the one that the draft is made by, where the target names one.
        draft_kv: a draft keeps keys and values of its own.
        zero_fill: unwritten draft KV is zeroed on a cache hit by policy.
        guards: guard regions are on.
        graphs: batch sizes for which graphs are captured, ascending.
        exact: sampled tokens have the target's odds; thresholds of acceptance below 1 give drafts more.
        dense: the checkpoint is here, so that the dense reference can judge.
        quantised: keys and values are stored in another type, so that no reference is a model of what is served.
        ranks: processes that compute together.
        batches: those that take turns, so that a step decodes what runs in one of them.
        server: it is reached over a network.
        probed: it has the arm's probes live itself, and tells what they find.
        context_length: tokens of prompt and output to which requests are cut, for a server that declines longer ones.
        joint: the sampled tokens of which top-k and top-p cut at once (``reference/sampling.py``).
        unused: engine options of the arm that mean nothing to this target.
    """

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
    quantised: bool = False
    ranks: int = 1
    batches: int = 1
    server: bool = False
    probed: bool = False
    context_length: int | None = None
    joint: Literal["none", "first", "all"] = "none"
    unused: tuple[str, ...] = ()


@dataclass(frozen=True)
class OverThere:
    """The part of an arm that is put in place where the engine runs.

    Attributes:
        toggles: fixes to revert.
        probes: names of probe packs.
        mode: the mode of all probes, if one is set.
        content: the folders of content that these are from, beside what is shipped.
        keeper: the address of the process that keeps servers for a search's runs (``launch/keeper.py``).
        kernels: rules for the memory of kernels, which also an engine in the worker itself is to look at.
        shows: what the arm's oracles want to look at inside it.
    """

    toggles: tuple[Toggle, ...] = ()
    probes: tuple[str, ...] = ()
    mode: str | None = None
    content: tuple[str, ...] = ()
    keeper: str | None = None
    kernels: tuple[KernelRule, ...] = ()
    shows: tuple[Ability, ...] = ()

    @property
    def reverts(self) -> tuple[int, ...]:
        """Numbers of the fixes to revert."""
        return tuple(toggle.pr for toggle in self.toggles)


class Busy:
    """Tells what an engine is busy with beside its steps: its own words, and the kernels that are compiled meanwhile,
    as one event ``progress`` at a time."""

    def __init__(self, say: Callable[..., None]) -> None:
        self._say = say
        self._said = ""

    def said(self, text: str) -> None:
        """Tell the engine's words; without any it is busy no more."""
        self._said = text
        self._say("progress", text=text)

    def compiling(self, kernel: str) -> None:
        """Tell that a kernel is being compiled."""
        self._say("progress", text=f"compiling {kernel}")

    def compiled(self) -> None:
        """Tell what it was busy with before that."""
        self._say("progress", text=self._said)

    def over(self) -> None:
        """A new stage begins; the event that says so ends what was said before it."""
        self._said = ""


@dataclass
class Opening:
    """The surroundings of a session. ``label`` names the arm in files, ``say`` reports an event, ``busy`` is told what
    keeps the session from answering, and ``before`` is called when the device is taken and the engine not yet built.
    ``limit_s``: the run's time limit, 0 where it has none."""

    label: str
    say: Callable[..., None]
    busy: Busy
    before: Callable[[], None] = lambda: None
    over_there: OverThere = OverThere()
    limit_s: float = 0.0


class Session(ABC):
    """An engine that serves, and what can be seen of it. Methods that need an ability which it lacks are never called;
    they say so (NotImplementedError).

    Attributes:
        shows: the abilities that it has.
        asked: the arm's wishes, corrected by what the engine turned out to be; None where they hold as they are.
        inside: the engine itself, for faults and recorders; None where it lives in another process.
        reference: what judges greedy tokens where the dense reference cannot; None where there is nothing.
        server: the server behind it; None where there is none.
        own: the engine is ours; another's rules may differ in little (``oracles/ends.py``).
        cache: of prefixes, the tokens of a page and of all the pool; 0 and 0 where that is not known, or there is none.
    """

    shows: frozenset[Ability]
    vocab_size: int
    asked: Asked | None = None
    inside: Any = None
    reference: PlainText | None = None
    server: HttpServerView | None = None
    own: bool = True
    cache: tuple[int, int] = (0, 0)

    @cached_property
    def observers(self) -> Observers:
        """Those who are told what happens to requests, at least when each ends (``events.Finishing``)."""
        return Observers()

    @property
    @abstractmethod
    def has_work(self) -> bool: ...

    @abstractmethod
    def add(self, rid: str, prompt_ids: Sequence[int], sampling: Sampling, *, speculative: bool) -> None:
        """Queue a request. Raises a SpecDebugError with exit code 2 for one that cannot be served."""

    @abstractmethod
    def abort(self, rid: str) -> None:
        """End a request where it is."""

    @abstractmethod
    def advance(self) -> Stepped:
        """One step; without ``steps``, wait until something has been completed."""

    @abstractmethod
    def request(self, rid: str) -> RequestView:
        """A request that was added. Raises KeyError."""

    def clock(self) -> float:
        """Seconds that the engine has taken: processor time on a CPU, where arms share the cores, else wall time."""
        return time.perf_counter()

    def begin(self, seed: int) -> None:  # noqa: B027 - an engine may have been built with it
        """The run begins, whose draws are by this seed."""

    def books(self) -> Mapping[str, Any]:
        """The engine's books on the host, by name, of plain data. Numbers of slots, pages and rows are left out: which
        free one is taken says nothing of right or wrong."""
        return {}

    def record(self, *, beside_ours: bool = False) -> None:
        """Show a recorder by :attr:`inside`, from now on, what passes the engine's sites (``diverge/recorder.py``).
        ``beside_ours``: in the order in which our own engine passes them."""
        raise NotImplementedError(f"{type(self).__name__} cannot be recorded")

    def lost(self) -> Sequence[Lost]:
        """The looks at the engine, and stand-ins in it, that do not fit it."""
        return ()

    def settle(self) -> bool:
        """Wait for what the device still has to do; False where there is nothing to wait for."""
        return False

    def close(self, sound: bool) -> None:  # noqa: B027 - the worker's end may be the session's
        """The run is over; ``sound``: nothing was found. What the session holds may go."""

    def flush_cache(self) -> None:
        """Forget every cached prefix that no request reads."""
        raise self._hidden("cache_flush")

    def want_logprobs(self) -> None:
        """Keep the log probabilities of requests that are added from now on."""
        raise self._hidden("logprobs")

    def logprobs(self, rid: str) -> Sequence[float]:
        """Those of a request's output so far, a number a token."""
        raise self._hidden("logprobs")

    def top_logprobs(self, rid: str) -> Sequence[Mapping[int, float]]:
        """Of a request that asks for them: at each token of its output so far those of the likeliest tokens."""
        raise self._hidden("logprobs")

    def set_back(self) -> Sequence[str]:
        """Between two steps: once requests run beside each other and have output, have some wait again; those that do,
        none so far."""
        raise self._hidden("set_back")

    def check_pools(self) -> Sequence[str]:
        """Violated conservation laws of the memory pools, each ``law: what``."""
        raise self._hidden("pools")

    def findings(self) -> Sequence[tuple[int, ProbeFinding]]:
        """Those of probes in other processes since this was last asked, each with the rank."""
        return ()

    def check_guards(self) -> Sequence[GuardViolation]:
        """Guard regions damaged since the last call."""
        raise self._hidden("guards")

    def damage_seen(self) -> Sequence[GuardViolation]:
        """The rest of :meth:`check_guards` once the device is lost."""
        raise self._hidden("guards")

    def draft_kv(self, request: RequestView, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Draft keys and values of positions [start, stop): each [layers, n, heads, head_dim]."""
        raise self._hidden("kv")

    def target_kv(self, request: RequestView, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """As :meth:`draft_kv`, of the target."""
        raise self._hidden("kv")

    def draft_state(self, requests: Sequence[RequestView]) -> StoredDrafts:
        """Return the rows that these requests store for their next draft."""
        raise self._hidden("drafts")

    def _hidden(self, ability: Ability) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} cannot show {SHOWN[ability]}")


@dataclass(frozen=True)
class Traits:
    """All that holds of a target, whatever runs on it.

    Attributes:
        name: as scenarios and reports have it.
        shows: the abilities that its sessions have at most.
        reverts: its engine runs elsewhere, where the target has fixes reverted: nothing is patched here.
        records: its sessions can show what passes their sites (``Session.record``).
        slowness: how many times as long as on our own engine a scenario may take before it counts as hanging.
        faults: those that can act in an engine that runs elsewhere; None where none can, or it is our own.
        features: what its requests can ask for beside, by names of ``features.Features``.
    """

    name: str
    shows: frozenset[Ability]
    reverts: bool = False
    records: bool = False
    slowness: float = 1.0
    faults: SglangFaults | None = None
    features: frozenset[str] = frozenset({"n"})

    @property
    def lacks(self) -> list[Ability]:
        """The abilities that its sessions never have."""
        return sorted(set(SHOWN) - self.shows)


class Target(ABC):
    """An engine that scenarios can be run on. One of another distribution is a plugin of the kind ``targets``."""

    @property
    @abstractmethod
    def traits(self) -> Traits: ...

    @abstractmethod
    def asked(self, options: Mapping[str, Any]) -> Asked:
        """The wishes of an arm of these options. Raises SpecDebugError; its ``key_path``, if any, names the option."""

    def home(self) -> Home | None:
        """The interpreter of its workers; None: this one. Raises SpecDebugError."""
        return None

    def patches(self, toggles: Sequence[Toggle], content: Sequence[str] = ()) -> Mapping[int, Sequence[Patch]]:
        """The patches that revert these fixes in its engine, by number; under 0 those of no fix. ``content``: folders
        of content beside what is shipped. Raises SpecDebugError."""
        return {toggle.pr: toggle.patches for toggle in toggles}

    def twin(self, relation: Relation, options: Mapping[str, Any], prompt: int) -> Twin:
        """How an arm of these options is served in another way (``targets/relations.py``). ``prompt``: tokens of its
        longest prompt. Raises NoTwin where it cannot be."""
        shows = self.traits.shows
        needs = {"cold": ("steps", "cache_flush"), "retracted": ("steps", "set_back")}
        if relation.of in ("engine", "model"):
            raise NoTwin(f"target {self.traits.name} does not say how")
        if lacking := [each for each in needs.get(relation.name, ("steps",)) if each not in shows]:
            raise NoTwin(f"target {self.traits.name} cannot show {SHOWN[lacking[0]]}")
        return Twin()

    def forks(self, options: Mapping[str, Any]) -> bool:
        """Return True if a process with an engine of these options can be forked: it has no thread of the engine's."""
        return True

    def warm(self, options: Mapping[str, Any]) -> None:  # noqa: B027 - a server loads its own
        """Load what sessions of these options, here or in a fork, can share. Raises SpecDebugError."""

    def cool(self) -> None:  # noqa: B027
        """Forget what was loaded: sessions opened from now on load their own."""

    @abstractmethod
    def open(self, options: Mapping[str, Any], seed: int, opening: Opening) -> Session:
        """Start serving, in a worker, once reverts are in place. Raises SpecDebugError."""
