"""The protocol of oracles, and what all of them share.

An oracle whose ``needs`` a session does not meet is not made, but listed under ``cannot_show``. One of another
distribution is a plugin of the kind ``oracles``: a subclass of :class:`Oracle`, which a scenario switches on by its
name under ``oracles:``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from specdebug.base.abilities import Ability
from specdebug.events import Event, Stepped
from specdebug.run.oracles.trees import DecidedTrees
from specdebug.scenario.grammar import OracleSpec
from specdebug.scenario.workload import Arrival
from specdebug.targets.base import Asked, Session
from specdebug.targets.requests import RequestView, SessionFailed
from specdebug.verdict.deaths import device_lost
from specdebug.verdict.outcome import Tie, Violation

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.reference.drafting import DraftedText

    KeysValues = tuple[Tensor, Tensor]


class Reference(Protocol):
    """The dense model, as oracles see it."""

    def judge(self, ids: Sequence[int], start: int) -> tuple[list[int], list[float], list[float]]: ...

    def logits(self, ids: Sequence[int], start: int) -> Tensor: ...

    @property
    def chained(self) -> bool: ...

    def draft_kv(self, ids: Sequence[int], stop: int, zeroed: Tensor | None = None) -> Sequence[KeysValues]: ...

    def target_kv(self, ids: Sequence[int], stop: int) -> KeysValues: ...

    def drafted(self, ids: Sequence[int], zeroed: Tensor | None = None) -> DraftedText[Any]: ...


class ServedRun(Protocol):
    """A run whose workload is served. ``arrived``: every request of it by id, in the order in which they came."""

    @property
    def session(self) -> Session: ...
    @property
    def arrived(self) -> Mapping[str, Arrival]: ...

    def serve_cold(self, rid: str) -> RequestView:
        """Serve a request's prompt again, alone and with an empty cache; returns the request that did."""

    def note(self, text: str) -> None:
        """Tell a sentence on the run, whatever its verdict."""


@dataclass(frozen=True)
class OracleSettings:
    """The scenario's words about oracles, and the target they look at. ``probes``: any pack is live. ``disturbed``: a
    fault that is no bug comes between, as one that aborts a request or empties the cache."""

    spec: OracleSpec
    target: Asked
    probes: bool = False
    disturbed: bool = False

    @property
    def reference(self) -> tuple[str, str | None, str | None] | None:
        """Target, draft and algorithm of the reference that judges the run; None where nothing is compared with one."""
        drafts = self.target.drafts and (self.spec.draft_kv or self.spec.draft_state)
        draft = self.target.draft_model if drafts else None
        compared = self.spec.lossless or self.spec.sampling or draft is not None
        algorithm = None if draft is None else self.target.algorithm
        return (self.target.model, draft, algorithm) if compared and self.target.dense else None


MAX_TREES = 64
"""Steps whose trees are kept: a finding may be of an earlier step."""


@dataclass
class Bench:
    """The oracles of one run share it. ``looks``: by oracle, how often it compared something with the reference.
    ``rank_traces``: by rank, the hash of what it told. ``trees``: those of the last verifies, where acceptance is
    judged."""

    settings: OracleSettings
    session: Session
    reference: Reference | None
    report: Callable[[Violation], None]
    tie: Callable[[str, Tie], None]
    decode: Callable[[Sequence[int]], str]
    step: int = 0
    looks: dict[str, int] = field(default_factory=dict)
    rank_traces: dict[str, str] = field(default_factory=dict)
    trees: deque[DecidedTrees] = field(default_factory=lambda: deque(maxlen=MAX_TREES))
    _boundaries: dict[str, set[int]] = field(default_factory=dict)
    _steps: dict[str, list[int]] = field(default_factory=dict)

    def with_tree(self, violation: Violation) -> Violation:
        """A violation with the tree that was verified in its step, if that is known; a lost device shows none."""
        trees = next((each for each in reversed(self.trees) if each.step == violation.step), None)
        with suppress(RuntimeError):
            if trees is not None and (told := trees.told(violation.data.get("rid"))):
                return replace(violation, data={**violation.data, "tree": told})
        return violation

    def looked(self, oracle: str) -> None:
        """Count one comparison."""
        self.looks[oracle] = self.looks.get(oracle, 0) + 1

    @contextmanager
    def judging(self, what: str) -> Iterator[None]:
        """Report what an oracle fails of, unless it is that the device is lost."""
        try:
            yield
        except SessionFailed as error:  # a server that an oracle asked
            self.report(Violation(error.kind, error.site, self.step, f"cannot judge {what}: {error}"))
        except Exception as error:  # not the engine's, though a damaged engine may have provoked it
            if device_lost(error):
                raise  # the engine's after all: reading its memory is where a failed kernel first shows
            detail = f"cannot judge {what}: {type(error).__name__}: {' '.join(str(error).split())}"
            self.report(Violation("error", "oracle", self.step, detail))

    def note(self, report: Stepped) -> None:
        """Note how far prefills have come and in which step each token was emitted: both place a failure."""
        for request in map(self.session.request, report.rids):
            if not request.output_ids:
                self._boundaries.setdefault(request.rid, set()).add(request.kv_len)
        for rid, tokens in report.emitted.items():
            self._steps.setdefault(rid, []).extend([self.step] * len(tokens))

    def step_of(self, rid: str, position: int) -> int:
        """The step that emitted an output position of a request."""
        steps = self._steps.get(rid, [])
        return steps[position] if position < len(steps) else self.step

    def place(self, request: Any, position: int) -> str:
        """The part of a request's life in which a position lies."""
        if position == request.cached_tokens - 1:
            return "the last of the cached prefix"
        if position < request.cached_tokens:
            return "inside the cached prefix"
        if position + 1 in self._boundaries.get(request.rid, ()) and position + 1 < len(request.prompt_ids):
            return "the last of a prefill chunk"
        return "in the prompt" if position < len(request.prompt_ids) - 1 else "in the output"


class Oracle:
    """Looks at a run and reports what is wrong. It is told of the events of the classes that it ``hears``."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[Ability]] = frozenset()
    hears: ClassVar[tuple[type[Event], ...]] = ()
    asks: ClassVar[str] = ""
    of: ClassVar[tuple[str, ...]] = ()
    stage: ClassVar[str | None] = None
    """Name of the run's stage in which :meth:`after_run` looks, and may serve requests again; None: it does not."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    @classmethod
    def wanted(cls, settings: OracleSettings) -> bool:
        """Return True if a run of these settings wants this oracle: by default, if the scenario says so by the word
        that it ``asks`` or else its name, and the target has what it is ``of``."""
        said = bool(getattr(settings.spec, cls.asks or cls.name))
        return said and all(getattr(settings.target, each) for each in cls.of)

    def on(self, event: Any) -> None:
        """This has happened, or is about to. What must not wait for the device is read after the step."""

    def after_run(self, run: ServedRun) -> None:
        """The workload is served; an oracle with a ``stage`` may serve some of it again."""

    def notes(self) -> Iterator[str]:
        """Sentences on the run, whatever its verdict."""
        return iter(())
