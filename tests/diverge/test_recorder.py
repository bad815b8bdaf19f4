"""The recorder around an engine that is made up: what it writes, and that it listens behind whoever listened before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug import async_probe
from specdebug.diverge.recorder import Recorder
from specdebug.diverge.stream import Step, Writer, read
from specdebug.diverge.values import kept


class Engine:
    """Decodes two requests a step; a probe looks at what each gets."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(speculative=None)
        self._eagle_worker = None
        self._target_worker = SimpleNamespace(decode=self._compute)
        self._requests = [SimpleNamespace(rid="a", kv_len=1), SimpleNamespace(rid="b", kv_len=1)]
        self.tokens = torch.tensor([3, 4])
        self.saw: list[int] = []

    def _prefill(self, chunks: Any) -> None:
        raise AssertionError

    def _compute(self, requests: Any) -> None:
        tokens = self.tokens.clone()
        async_probe.maybe_detect_oob(tokens, 0, 9, "target_decode.input_ids")
        self.saw = tokens.tolist()

    def step(self) -> None:
        self._target_worker.decode(self._requests)


@pytest.fixture(autouse=True)
def _nobody_listens() -> Iterator[None]:
    yield
    async_probe.on_site(None)


def recorded(path: Path, steps: int = 2, **options: Any) -> list[Step]:
    recorder = Recorder(Writer(path), **options)
    engine = Engine()
    recorder.attach(engine)
    for _ in range(steps):
        engine.step()
    recorder.finish()
    return read(path)


def test_a_step_has_its_requests_and_calls(tmp_path: Path) -> None:
    first, second = recorded(tmp_path / "h", by_request=True)
    assert (first.number, second.number, first.rids) == (1, 2, ("a", "b"))
    assert [(part.descriptor.site, part.owner) for part in first.parts()] == [
        ("target_decode.input_ids", "a"),
        ("target_decode.input_ids", "b"),
    ]
    assert list(first.digests) == list(second.digests)
    (whole,) = recorded(tmp_path / "w")[0].parts()
    assert (whole.owner, whole.rows) == (None, 2)


def test_what_an_earlier_listener_does_is_recorded(tmp_path: Path) -> None:
    (clean,) = recorded(tmp_path / "clean", 1, by_request=True)

    def damage(call: async_probe.SiteCall) -> None:
        call.tensor[1] = 7

    async_probe.on_site(damage)
    (damaged,) = recorded(tmp_path / "damaged", 1, by_request=True)
    assert damaged.digests[0] == clean.digests[0]
    assert damaged.digests[1] != clean.digests[1]


def test_known_places_are_kept_in_full(tmp_path: Path) -> None:
    recorder = Recorder(None, [(2, 0)], tmp_path)
    engine = Engine()
    recorder.attach(engine)
    for _ in range(3):
        engine.step()
    recorder.finish()
    found = kept(tmp_path, (2, 0))
    assert found is not None
    assert found.tolist() == [3, 4]
    assert [file.name for file in tmp_path.iterdir()] == ["2-0.npy"]


def test_a_step_that_fails_is_written_up_to_there(tmp_path: Path) -> None:
    recorder = Recorder(Writer(tmp_path / "h"))
    engine = Engine()

    def fails(requests: Any) -> None:
        Engine._compute(engine, requests)
        raise RuntimeError("after the site")

    engine._target_worker.decode = fails
    recorder.attach(engine)
    with pytest.raises(RuntimeError, match="after the site"):
        engine.step()
    assert [len(step.calls) for step in read(tmp_path / "h")] == [1]  # before anybody finishes
    recorder.finish()
