"""The recorder around an engine that is made up: what it writes, and that it listens behind earlier observers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug import async_probe
from specdebug.diverge.recorder import HashRecorder, Keeper
from specdebug.diverge.recording import RecordedStep, Writer, kept, read
from specdebug.events import AheadDropped, InVain, Observers, ShownNoMore, StepBegan, StepOver


class Engine:
    """Decodes two requests a step; a probe looks at what each gets."""

    def __init__(self) -> None:
        self.config: Any = SimpleNamespace(speculative=None)
        self.observers = Observers()
        self.decode: Callable[[Any], None] = self._compute
        self.steps = 0
        self._requests = [SimpleNamespace(rid="a", kv_len=1), SimpleNamespace(rid="b", kv_len=1)]
        self.tokens = torch.tensor([3, 4])
        self.saw: list[int] = []

    def _compute(self, requests: Any) -> None:
        tokens = self.tokens.clone()
        async_probe.maybe_detect_oob(tokens, 0, 9, "target_decode.input_ids")
        self.saw = tokens.tolist()

    def step(self) -> None:
        self.steps += 1
        self.observers.tell(StepBegan, self.steps)
        try:
            self._run_batch()
        finally:
            self.observers.tell(StepOver)

    def _run_batch(self) -> None:
        with self.observers.computing("plain", self._requests):
            self.decode(self._requests)


@pytest.fixture(autouse=True)
def _nobody_listens() -> Iterator[None]:
    yield
    async_probe.on_site(None)


def recorded(path: Path, steps: int = 2) -> list[RecordedStep]:
    recorder = HashRecorder(Writer(path))
    engine = Engine()
    recorder.attach(engine)
    for _ in range(steps):
        engine.step()
    recorder.finish()
    return read(path)


def test_what_an_earlier_listener_does_is_recorded(tmp_path: Path) -> None:
    (clean,) = recorded(tmp_path / "clean", 1)

    def damage(call: async_probe.SiteCall) -> None:
        call.tensor[1] = 7

    async_probe.on_site(damage)
    (damaged,) = recorded(tmp_path / "damaged", 1)
    assert damaged.digests[0] == clean.digests[0]
    assert damaged.digests[1] != clean.digests[1]


class Shown:
    """Another engine, as its session shows it: two requests that are prefilled in a step, one of them in vain."""

    def __init__(self) -> None:
        self.observers, self.sites = Observers(), SimpleNamespace(hear=None)
        self.config = SimpleNamespace(speculative=SimpleNamespace(eagle_topk=2, tree_size=3))

    def serve(self) -> None:
        self.observers.tell(StepBegan, 1)
        requests = [SimpleNamespace(rid=rid) for rid in "ab"]
        with self.observers.computing("prefill", requests, (2, 1), (5, 0)):
            self.sites.hear("target_prefill.input_ids", torch.tensor([3, 4, 5], dtype=torch.int32))
            async_probe.maybe_detect_oob(torch.tensor([7]), 0, 9, "embedding.input_ids")
        self.observers.tell(ShownNoMore, "b", "was preempted")
        self.observers.tell(StepOver)
        self.observers.tell(StepBegan, 2)
        with self.observers.computing("speculative", requests):
            self.sites.hear("draft.forward.input_ids", torch.tensor([1, 2, 3, 4, 0]))  # and a row of padding
        self.observers.tell(StepOver)
        self.observers.tell(InVain, 2, ("a",))


@pytest.mark.parametrize("beside_ours", [False, True])
def test_another_engine_is_recorded_as_its_session_shows_it(beside_ours: bool, tmp_path: Path) -> None:
    recorder, engine = HashRecorder(Writer(tmp_path / "h"), summed=True, by_row=beside_ours), Shown()
    recorder.attach(engine, beside_ours=beside_ours)
    engine.serve()
    recorder.finish()
    prefill, decode = read(tmp_path / "h")
    assert [call.site for call in prefill.calls] == ["target_prefill.input_ids", "embedding.input_ids"][
        : 2 - beside_ours
    ]
    assert prefill.calls[0].owners == ((0, 0, 1) if beside_ours else (0, 1))
    assert (prefill.starts, prefill.gone) == ({"a": 5, "b": 0}, {"b": "was preempted"})
    assert (decode.calls[0].owners, decode.calls[0].rows) == ((-1, 1), (2, 2))


def test_steps_of_several_sites_are_told_apart(tmp_path: Path) -> None:
    """Lists whose length changes, rows of slots, large tensors: each again and again, in steps that are not alike."""
    pool = torch.arange(2 * 9 * 2.0).reshape(2, 9, 2)
    large = torch.arange(2 * 4096.0).reshape(2, 4096)

    def calls(requests: Any) -> None:
        length = engine.length = engine.length + 1
        async_probe.maybe_detect_oob(torch.arange(length), 0, 9, "attention.plan.kv_indices")
        async_probe.maybe_detect_nan(pool, "kv_pool.write.k", torch.tensor([1, 4]))
        if length != 4:
            async_probe.maybe_detect_nan(large, "target_decode.logits")
        async_probe.maybe_detect_oob(torch.tensor([5, length]), 0, 9, "target_decode.input_ids")

    engine: Any = Engine()
    engine.length = 1
    engine.decode = calls
    recorder = HashRecorder(Writer(tmp_path / "h"))
    recorder.attach(engine)
    for _ in range(4):
        engine.step()
    recorder.finish()
    steps = read(tmp_path / "h")
    assert [len(step.calls) for step in steps] == [4, 4, 3, 4]
    first, second, _, last = ([part for part in step.parts() if part.owner is not None] for step in steps)
    assert [(part.descriptor.site, part.owner, part.rows) for part in first] == [
        (site, owner, 1)
        for site in ("kv_pool.write.k", "target_decode.logits", "target_decode.input_ids")
        for owner in ("a", "b")
    ]
    assert [a.digest == b.digest for a, b in zip(first, second, strict=True)] == [True] * 5 + [False]
    assert [a.digest == b.digest for a, b in zip(first, last, strict=True)] == [True] * 5 + [False]
    assert len({step.digests[0] for step in steps}) == 4, "the list"


class OnDevice(torch.Tensor):
    """A tensor that says it is on a device."""

    is_cpu = property(lambda self: False)


def test_tensors_on_a_device_are_hashed_there_and_keep_their_places(tmp_path: Path) -> None:
    pool = torch.arange(2 * 9 * 2.0).reshape(2, 9, 2).as_subclass(OnDevice)
    engine: Any = Engine()

    def calls(requests: Any) -> None:
        async_probe.maybe_detect_oob(torch.tensor([3, 4]), 0, 9, "target_decode.input_ids")
        async_probe.maybe_detect_nan(pool, "kv_pool.write.k", torch.tensor([1, 4]))
        async_probe.maybe_detect_oob(torch.tensor([1, 4]).as_subclass(OnDevice), 0, 9, "kv_pool.write.loc")
        async_probe.maybe_detect_oob(torch.tensor([5, 6]), 0, 9, "target_decode.input_ids")

    engine.decode = calls
    recorder = HashRecorder(Writer(tmp_path / "h"))
    recorder.attach(engine)
    engine.step()
    pool[1, 4, 0] = -1.0
    engine.step()
    recorder.finish()
    first, second = ([(part.descriptor.site, part.digest) for part in step.parts()] for step in read(tmp_path / "h"))
    assert [site for site, _ in first[:1] + first[-1:]] == ["target_decode.input_ids"] * 2
    assert [site for site, _ in first] == [site for site, _ in second]
    changed = [n for n, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    assert [first[n][0] for n in changed] == ["kv_pool.write.k"]
    slots = [n for n, (site, _) in enumerate(first) if site == "kv_pool.write.k"]
    assert changed == slots[-1:]  # the second request's
    assert len(slots) == 2


class Drafting(Engine):
    """Drafts ahead, as on a GPU: a token more each time. Verifies what it drafted."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(speculative=SimpleNamespace(eagle_topk=1, tree_size=2))
        self.ahead: int | None = None
        self.drafts = 0

    def _draft(self) -> int:
        self.drafts += 1
        async_probe.maybe_detect_oob(torch.tensor([self.drafts, self.drafts]), 0, 99, "draft.bonus")
        return self.drafts

    def _run_batch(self) -> None:
        if self.steps == 3:
            with self.observers.computing("prefill", self._requests[:1], (1,)):
                self._other_batch()
        else:
            with self.observers.computing("speculative", self._requests):
                self._verify()

    def _verify(self) -> None:
        drafted = self._draft() if self.ahead is None else self.ahead
        async_probe.maybe_detect_oob(torch.tensor([drafted, 0]), 0, 99, "verify.input_ids")
        with self.observers.ahead():
            self.ahead = self._draft()

    def _other_batch(self) -> None:
        async_probe.maybe_detect_oob(torch.tensor([9]), 0, 99, "target_prefill.input_ids")
        self.ahead = None
        self.observers.tell(AheadDropped)
        async_probe.maybe_detect_oob(torch.tensor([9]), 0, 99, "draft_prefill.input_ids")


DRAFTED = {
    1: ["draft.bonus", "verify.input_ids"],
    2: ["draft.bonus", "verify.input_ids"],
    3: ["target_prefill.input_ids", "draft_prefill.input_ids"],
    4: ["draft.bonus", "verify.input_ids"],
    5: ["draft.bonus", "verify.input_ids"],
}


def test_what_is_drafted_ahead_belongs_to_the_next_step_or_to_none(tmp_path: Path) -> None:
    recorder = HashRecorder(Writer(tmp_path / "h"))
    engine = Drafting()
    recorder.attach(engine)
    for _ in DRAFTED:
        engine.step()
    recorder.finish()
    steps = read(tmp_path / "h")
    assert {step.number: [call.site for call in step.calls] for step in steps} == DRAFTED
    assert [step.rids for step in steps] == [("a", "b")] * 2 + [("a",)] + [("a", "b")] * 2
    assert len({step.digests[0] for step in steps}) == len(steps)


def test_and_is_kept_there(tmp_path: Path) -> None:
    sites = {(step, call): site for step, calls in DRAFTED.items() for call, site in enumerate(calls)}
    keeper = Keeper(sites, tmp_path)
    engine = Drafting()
    keeper.attach(engine)
    for _ in DRAFTED:
        engine.step()
    keeper.finish()
    found = {place: rows[0] for place in sites if (rows := kept(tmp_path, place)) is not None}
    assert found == {
        (1, 0): 1, (1, 1): 1, (2, 0): 2, (2, 1): 2, (3, 0): 9, (3, 1): 9, (4, 0): 4, (4, 1): 4, (5, 0): 5, (5, 1): 5
    }  # fmt: skip
