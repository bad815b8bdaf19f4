"""The probes, and the process-wide state behind them.

A probe that is off returns after one look at ``_active``. Under ``torch.compile`` a live probe becomes one call of a
custom operator, which runs this module's eager code: nothing here has to be traceable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from . import checks, jobs
from .checks import Bound, bound_text
from .gate import ASSERT, Gate, ProbeFinding, Rule, mode_from_environment
from .recorder import Recorder, Ring

if TYPE_CHECKING:
    from .device import DeviceRing

DEFAULT_CAPACITY = 1024
COMPILED_FOR = (torch.float32, torch.bfloat16, torch.float16)

_NONFINITE = "nonfinite"  # not a kind of finding: stands for nan and inf


@dataclass(slots=True, eq=False)
class SiteCall:
    """A probe call as a hook at sites gets it: the tensor itself, and the call's other arguments.

    ``kind``: a kind of finding, or ``nonfinite`` for nan and inf together. ``low``, ``high``: bounds of an oob check,
    of page_aligned ``high`` is the page size. ``at``: the rows of dimension 1 that are meant, None for all.
    ``gathered``: those rows, None if they were not asked for. ``capture``: of the graph that the call is captured in.
    """

    site: str
    kind: str
    tensor: torch.Tensor
    low: Bound
    high: Bound
    relative_to: torch.Tensor | None
    at: torch.Tensor | None = None
    gathered: torch.Tensor | None = None
    capture: Capture | None = None

    def rows(self) -> torch.Tensor:
        """The tensor, or a copy of the rows of it that are meant, [L, n, ...]: on a CPU the one the probe looks at.

        A hook that changes the tensor does so before anybody asks.
        """
        if self.at is None:
            return self.tensor
        if self.gathered is None:
            self.gathered = checks.picked(self.tensor, self.at)
        return self.gathered


SiteHook = Callable[[SiteCall], None]
ReplayHook = Callable[["Capture"], None]

_gate = Gate(mode_from_environment())
_hook: SiteHook | None = None
_replay_hook: ReplayHook | None = None
_capture: Capture | None = None
_active = _gate.active
_recorder = Recorder(DEFAULT_CAPACITY)
_reached: Counter[str] = Counter()


def maybe_detect_nan(tensor: torch.Tensor | None, site: str, at: torch.Tensor | None = None) -> None:
    """Probe that no element is NaN. Integer tensors hold none.

    With ``at`` (int64, taken flat: [n]), only rows ``tensor[:, at]`` of a tensor [L, N, ...] are looked at, and indices
    are in that; rows outside 0..N-1 are passed over. On a GPU nothing is copied if rows are contiguous.
    """
    if _active and tensor is not None:
        _probe("nan", tensor, site, 0, 0, None, at)


def maybe_detect_inf(tensor: torch.Tensor | None, site: str) -> None:
    """Probe that no element is infinite. Integer tensors hold none."""
    if _active and tensor is not None:
        _probe("inf", tensor, site, 0, 0, None)


def maybe_detect_nonfinite(tensor: torch.Tensor | None, site: str, at: torch.Tensor | None = None) -> None:
    """``maybe_detect_nan`` and ``maybe_detect_inf`` of one site in one pass; modes and findings stay apart."""
    if _active and tensor is not None:
        _probe(_NONFINITE, tensor, site, 0, 0, None, at)


def maybe_detect_oob(
    tensor: torch.Tensor | None,
    low: Bound,
    high: Bound,
    site: str,
    relative_to: torch.Tensor | None = None,  # not keyword-only: CPython 3.11 makes such calls half as dear
) -> None:
    """Probe that ``low <= element < high``, of ``tensor - relative_to`` (broadcast) if that is given.

    The two bounds are probed apart, so a finding names the one that failed. A NaN is below ``low``.
    """
    if _active and tensor is not None:
        _probe("oob", tensor, site, low, high, relative_to)


def maybe_detect_page_aligned(tensor: torch.Tensor | None, page_size: int, site: str) -> None:
    """Probe that every element is a multiple of ``page_size``."""
    if _active and tensor is not None:
        _probe("page_aligned", tensor, site, 0, page_size, None)


class Grouped:
    """The block of :func:`grouped`."""

    def __init__(self) -> None:
        self._depth = 0
        self._waiting: list[_OnDevice] = []

    def add(self, probe: _OnDevice) -> None:
        """Run a probe, in a block at its end."""
        if self._depth:
            self._waiting.append(probe)
        else:
            _run([probe])

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._waiting and not self._depth:
            waiting, self._waiting = self._waiting, []
            _run(waiting)


def grouped() -> Grouped:
    """A ``with`` block at whose end the probes made in it on a GPU are run, up to four tensors in one launch.

    For sites next to each other: a launch costs more than looking at a small tensor. Tensors must keep their content
    until the block ends. Findings of one launch come together. Not under ``torch.compile``.
    """
    return _grouped


def configure(mode: str, rules: Sequence[Rule] = (), *, capacity: int = DEFAULT_CAPACITY) -> None:
    """Choose what probes do from now on (instead of what the environment said), and :func:`reset`.

    ``mode``: ``off``, ``assert`` or ``record``, for rules without a mode of their own; off is off. ``rules``: the last
    that covers a probe decides; a probe that none covers is off; without rules every probe runs. ``capacity``: findings
    in a ring, which is made anew. Raises ``ValueError`` for an unknown mode or kind, or a capacity below 1.
    """
    global _gate, _active, _recorder
    if capacity < 1:
        raise ValueError(f"capacity {capacity} must be at least 1")
    _gate = Gate(mode, rules)
    _active = _gate.active or _hook is not None
    _recorder = Recorder(capacity)
    _reached.clear()


def on_site(hook: SiteHook | None, replayed: ReplayHook | None = None) -> None:
    """Hand every probe call to ``hook`` before it looks, whether or not a probe is live there; None: to no hook.

    The hook may change the tensor in place, for the probe and the caller. Calls in compiled code are not handed over.
    Those in a graph are when it is captured (``SiteCall.capture``), so that whatever the hook enqueues then becomes a
    part of it; of a replay ``replayed`` is told, once it is enqueued.
    """
    global _hook, _replay_hook, _active
    _hook, _replay_hook = hook, replayed
    _active = _gate.active or hook is not None


def live() -> bool:
    """Return True if a probe may look at its tensor: who makes one for probes alone asks first."""
    return _active


def site_hook() -> SiteHook | None:
    """The hook that listens at sites now, for another that wants to listen as well."""
    return _hook


def reset() -> None:
    """Forget findings, totals, counts and the step; modes stay. Captured graphs must be captured again."""
    global _recorder
    _recorder = Recorder(_recorder.capacity)
    _reached.clear()


def prepare(device: torch.device | str, dtypes: Sequence[torch.dtype] = COMPILED_FOR) -> None:
    """Make the ring of ``device`` and compile the kernels that probes of ``dtypes`` and of indices commonly use.

    Needed before a graph capture that holds the device's first probe; compiling inside one may fail.
    """
    ring = _recorder.ring(torch.empty(0, device=device).device)
    if not isinstance(ring, Ring):
        ring.compile(dtypes)


def set_step(step: int) -> None:
    """Findings from now on belong to ``step``; of graphs, those of replays from now on. Waits for nothing."""
    _recorder.set_step(step)


def drain() -> list[ProbeFinding]:
    """Take the findings of record mode, in program order. Waits for the device."""
    return _recorder.findings("take")


def poll() -> list[ProbeFinding]:
    """Take the findings that have reached the host, without ever waiting; call it now and then.

    A final :func:`drain` gives the rest. Call it on the stream that probes run on; it is silent during a graph capture.
    """
    return _recorder.findings("poll")


def salvage() -> list[ProbeFinding]:
    """Take the findings of launches that a GPU had finished before it was lost. Asks the host alone."""
    return _recorder.findings("salvage")


def totals() -> dict[tuple[str, str], int]:
    """Bad elements by (site, kind), exact even where the ring overflowed. Waits for the device."""
    return _recorder.totals()


def reached() -> dict[str, int]:
    """The looks of live probes by site. A captured graph counts once, and once for each replay that it is told of."""
    return dict(_reached)


class Capture:
    """A block in which a graph is captured, and the sites that were reached in it, each as often as it was."""

    def __init__(self) -> None:
        self._before: Counter[str] = Counter()
        self._sites: Counter[str] = Counter()

    def __enter__(self) -> Capture:
        global _capture
        self._before = _reached.copy()
        _capture = self
        return self

    def __exit__(self, *_: object) -> None:
        global _capture
        _capture = None
        self._sites = _reached - self._before

    def replayed(self) -> None:
        """Count the sites again, because a graph captured in the block is replayed, and tell who listens."""
        if _active:
            _reached.update(self._sites)
        if _replay_hook is not None:
            _replay_hook(self)


def capturing() -> Capture:
    """A ``with`` block around a capture: call its ``replayed`` at every replay. Not across a :func:`reset`."""
    return Capture()


def _probe(
    kind: str,
    tensor: torch.Tensor,
    site: str,
    low: Bound,
    high: Bound,
    relative_to: torch.Tensor | None,
    at: torch.Tensor | None = None,
) -> None:
    if torch.compiler.is_compiling():
        operator = getattr(torch.ops, _NAMESPACE).detect
        operator(_ticks, tensor, kind, site, low, high, relative_to, at)
        return
    call = SiteCall(site, kind, tensor, low, high, relative_to, at, None, _capture)
    if _hook is not None:
        _hook(call)
    _detect(call)


def _detect(call: SiteCall) -> None:
    site, kind, tensor, low, high = call.site, call.kind, call.tensor, call.low, call.high
    relative_to, at = call.relative_to, call.at
    if kind == _NONFINITE:
        modes = _gate.live(site, ("nan", "inf"))
        kind = "nan"  # the two apply to the same tensors and are clean together
    else:
        modes = _gate.live(site, (kind,))
    if not modes or not checks.applies(kind, tensor):
        return
    if (relative_to is not None and relative_to.numel() == 0) or (at is not None and at.numel() == 0):
        return
    _reached[site] += 1
    if at is not None:
        at = at.reshape(-1)
    if tensor.is_cuda:
        ring = _recorder.ring(tensor.device)
        if not isinstance(ring, Ring):
            job = jobs.make(tuple(modes), tensor, low, high, relative_to, at)
            if job is not None:
                _grouped.add(_OnDevice(ring, job, site, modes))
            return
    values = checks.subject(tensor, relative_to) if at is None else call.rows()
    on_cpu = values.device.type == "cpu"
    if on_cpu and checks.is_clean(kind, values, low, high):
        return
    for each, mode in modes.items():
        for part in checks.parts(each, values, low, high):
            if mode == ASSERT:
                found = ProbeFinding(site, each, bound=bound_text(part.phrase, part.limit))
                if on_cpu and bool(part.bad.any()):
                    bad = part.bad.reshape(-1)
                    index = int(bad.nonzero()[0])
                    value, count = values.reshape(-1)[index].item(), int(bad.sum())
                    found = replace(found, step=_recorder.step, index=index, value=value, count=count)
                torch._assert_async(~part.bad.any(), found.message())
            else:
                _recorder.write(site, each, values, part)


class _OnDevice:
    """A probe of a tensor that kernels look at."""

    def __init__(self, ring: DeviceRing, job: jobs.ProbeJob, site: str, modes: Mapping[str, str]) -> None:
        self.ring = ring
        self.job = job
        numbers = (None if part is None else _recorder.number(site, part.kind, part.phrase) for part in job.parts)
        self.entries = tuple(numbers)
        self._site = site
        self._modes = modes

    def assert_fine(self) -> None:
        """Assert what is to be asserted, now that the kernel has been launched."""
        for part, entry in zip(self.job.parts, self.entries, strict=True):
            if part is not None and entry is not None and self._modes[part.kind] == ASSERT:
                found = ProbeFinding(self._site, part.kind, bound=bound_text(part.phrase, part.limit))
                torch._assert_async(self.ring.fine(entry), found.message())


def _run(probes: Sequence[_OnDevice]) -> None:
    for ring in {probe.ring: None for probe in probes}:
        mine = [probe for probe in probes if probe.ring is ring]
        ring.look([probe.job for probe in mine], [probe.entries for probe in mine])
        for probe in mine:
            probe.assert_fine()


_grouped = Grouped()


def _detect_operator(
    ticks: torch.Tensor,
    values: torch.Tensor,
    kind: str,
    site: str,
    low: Bound,
    high: Bound,
    relative_to: torch.Tensor | None,
    at: torch.Tensor | None = None,
) -> None:
    ticks.add_(1)
    _detect(SiteCall(site, kind, values, low, high, relative_to, at))


# A compiled graph keeps an operator only if it changes something: each call adds one to ``_ticks``.
_ticks = torch.zeros(1, dtype=torch.int64)
_NAMESPACE = __name__.replace(".", "_")  # a copy of this package elsewhere gets an operator of its own
_torch_library: Any = torch.library  # torch annotates only some of it
_library = _torch_library.Library(_NAMESPACE, "FRAGMENT")
_library.define(
    "detect(Tensor(a!) ticks, Tensor values, str kind, str site, Scalar low, Scalar high, "
    "Tensor? relative_to, Tensor? at=None) -> ()"
)
_library.impl("detect", _detect_operator, "CompositeExplicitAutograd")
_torch_library.register_fake(f"{_NAMESPACE}::detect", lambda *_: None, lib=_library)  # a trace has no values to see
