"""A graph runner beside its eager twin: the same callable, inputs and pools, with and without static buffers.

``Bench`` is what the three runners have in common, and the ``check_*`` functions what must hold of all of them.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdebug.engine.attention.planner import SequenceLayout
from specdebug.engine.attention.select import make_planner
from specdebug.engine.attention.workspace import EagerWorkspace
from specdebug.engine.config import EngineConfig
from specdebug.engine.graph.runner import GraphRunner, RunnerParts
from specdebug.engine.memory.fill import FillPolicy, Scratch
from specdebug.engine.memory.mha_pool import MHAPool
from specdebug.engine.memory.req_to_token import ReqToToken
from specdebug.engine.model.interface import DraftModel
from specdebug.engine.model.llama import TargetModel
from specdebug.engine.model.loader import load_target
from specdebug.engine.observer import Observers
from specdebug.engine.speculative.registry import loader_of
from tests.engine.conftest import Lab

CPU = torch.device("cpu")
LENGTHS = (9, 1, 14, 6, 11)  # of the live requests; a batch is the first few of them
MAX_BS = len(LENGTHS)
Outputs = dict[str, Tensor]


@lru_cache(maxsize=4)
def _models(target: Path, draft: Path, algorithm: str) -> tuple[TargetModel, DraftModel]:
    """Stateless, so one load serves every bench."""
    model = load_target(target, max_positions=80)
    return model, loader_of(algorithm)(draft, algorithm=algorithm, target=model, max_positions=80)


class Bench(ABC):
    """Five requests with random committed KV; every other slot is NaN. ``options`` go to the engine config."""

    runner: GraphRunner[Any, Any]
    pool: MHAPool
    """Where the forwards write."""
    inputs: tuple[str, ...]
    """Names of the static inputs."""

    def __init__(self, lab: Lab, *, fill: str = "garbage", capture: list[int] | None = None, **options: Any) -> None:
        spec = {"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6, **options.pop("speculative", {})}
        self.config = EngineConfig.from_dict(
            {
                "context_length": 48,
                "speculative": spec,
                "cuda_graph": {"max_bs": MAX_BS, "capture_bs": capture},
                "memory": {"num_slots": 2048, "fill": fill, "guards": True},
                **options,
            }
        )
        assert self.config.speculative is not None
        self.spec = self.config.speculative
        self.fill = FillPolicy(self.config.memory.fill, 3)
        self.generator = torch.Generator().manual_seed(11)
        self.target, self.draft = _models(lab.target, lab.draft(self.spec.algorithm), self.spec.algorithm)
        self.vocab = self.target.config.vocab_size
        self.req_to_token = ReqToToken(MAX_BS, 48 + self.config.row_headroom, fill=FillPolicy("garbage"), guards=True)
        self.planner = make_planner(self.config, self.req_to_token)
        self.workspace = EagerWorkspace(Scratch(self.fill, CPU))
        self.target_pool, self.draft_pool = self._pool(self.target.config), self._pool(self.draft)
        self.rows = torch.tensor([3, 5, 1, 4, 2])
        self.parts = RunnerParts(self.config, self.planner, self.fill, torch.float32, CPU, Observers())
        self._commit()
        self.make()

    def _pool(self, shape: Any) -> MHAPool:
        return MHAPool(
            num_layers=shape.num_layers,
            num_slots=self.config.usable_slots,
            page_size=self.config.page_size,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            dtype=torch.float32,
            fill=FillPolicy("nan"),
        )

    def _commit(self) -> None:
        page = self.config.page_size
        pages = torch.randperm(self.config.usable_slots // page, generator=self.generator) + 1
        for row, length in zip(self.rows.tolist(), LENGTHS, strict=True):
            need = -(-(length + self.config.alloc_len_per_decode) // page)
            mine, pages = pages[:need], pages[need:]
            slots = (mine.unsqueeze(1) * page + torch.arange(page)).flatten()
            self.req_to_token.write(row, 0, slots)
            for pool in (self.target_pool, self.draft_pool):
                for buffer in (*pool.k, *pool.v):
                    buffer[slots[:length]] = torch.randn((length, *buffer.shape[1:]), generator=self.generator)

    @abstractmethod
    def make(self) -> None:
        """Set ``runner``, ``pool`` and ``inputs``."""

    @abstractmethod
    def given(self, raw: int) -> Any:
        """Inputs of the first ``raw`` requests, the same at every call."""

    @abstractmethod
    def eager(self, given: Any) -> Any: ...

    @abstractmethod
    def replay(self, given: Any) -> Any: ...

    @abstractmethod
    def written(self, raw: int) -> Tensor:
        """Slots that a batch of the first ``raw`` requests writes."""

    @staticmethod
    def layout(given: Any) -> SequenceLayout:
        return SequenceLayout(given.req_pool_indices, given.seq_lens, tuple(given.seq_lens.tolist()))

    def contents(self) -> Tensor:
        """Everything the pool holds: [2 * layers, slots, ...]."""
        return torch.stack([*self.pool.k, *self.pool.v]).clone()

    def restore(self, contents: Tensor) -> None:
        for buffer, saved in zip((*self.pool.k, *self.pool.v), contents, strict=True):
            buffer.copy_(saved)

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def ids(self, count: int) -> Tensor:
        return torch.randint(0, self.vocab, (count,), generator=self.generator)


def outputs(result: Any) -> Outputs:
    """Fields of an output record by name."""
    return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}


def cloned(result: Any) -> Outputs:
    return {name: value.clone() for name, value in outputs(result).items()}


def assert_near(found: Outputs, expected: Outputs) -> None:
    """Integers are equal, floats up to what another batch size does to rounding."""
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        if value.is_floating_point():
            torch.testing.assert_close(found[name], value, atol=1e-4, rtol=1e-4)
        else:
            assert torch.equal(found[name], value), name


def check_every_size_equals_eager(bench: Bench) -> None:
    """Large batches first and last, so that small ones find their leftovers."""
    start = bench.contents()
    assert bool(start.isnan().any())
    for raw in (*range(MAX_BS, 0, -1), *range(2, MAX_BS + 1)):
        if not bench.runner.can_run(raw):
            continue
        given = bench.given(raw)
        bench.restore(start)
        expected = cloned(bench.eager(given))
        after_eager = bench.contents()
        bench.restore(start)
        found = outputs(bench.replay(given))
        assert not any(bool(value.isnan().any()) for value in expected.values())
        assert_near(found, expected)
        written, after = bench.written(raw), bench.contents()
        torch.testing.assert_close(after[:, written], after_eager[:, written], atol=1e-4, rtol=1e-4)
        untouched = torch.ones(bench.pool.size, dtype=torch.bool)
        untouched[written] = False
        untouched[0] = False  # padded rows write the padding slot
        assert torch.equal(after[:, untouched].nan_to_num(7.0), start[:, untouched].nan_to_num(7.0))
        assert bench.runner.check_guards() == []
    bench.restore(start)


def check_outputs_are_views_until_the_next_replay(bench: Bench) -> None:
    small, large = bench.given(1), bench.given(MAX_BS)
    first = outputs(bench.replay(large))
    kept = {name: value.clone() for name, value in first.items()}
    second = outputs(bench.replay(small))
    arena = bench.runner.buffers[bench.inputs[0]].untyped_storage().data_ptr()
    for name, value in first.items():
        assert value.untyped_storage().data_ptr() == arena, name
        assert value.data_ptr() == second[name].data_ptr()
        rows = second[name].shape[0]
        assert torch.equal(value[:rows], second[name])
        if value.is_floating_point():
            assert not torch.equal(value[rows:], kept[name][rows:]), "padded rows were computed too"
    again = outputs(bench.replay(large))
    assert all(torch.equal(again[name], value) for name, value in kept.items())


def check_padding_cannot_influence_live_rows(bench: Bench) -> None:
    """Whatever all static memory held before a padded replay, the live rows come out the same, bit for bit."""
    given, start = bench.given(3), bench.contents()
    results = []
    for policy in (FillPolicy("zeros"), FillPolicy("nan"), FillPolicy("garbage", 1), FillPolicy("garbage", 2)):
        bench.restore(start)
        for name in bench.runner.buffers._views:
            policy.paint(bench.runner.buffers[name])
        results.append(cloned(bench.replay(given)))
        assert bench.runner.check_guards() == []
    for result in results[1:]:
        assert all(torch.equal(value, result[name]) for name, value in results[0].items())


def check_inputs_are_repainted_between_replays(bench: Bench) -> None:
    """Under a poisoning policy a replay leaves nothing behind; under ``zeros`` what was copied stays."""
    buffers, given = bench.runner.buffers, bench.given(2)
    left: list[Outputs] = []
    for _ in range(2):
        result = cloned(bench.replay(given))
        left.append({name: buffers[name].clone() for name in bench.inputs})
        assert all(torch.equal(value, outputs(bench.replay(given))[name]) for name, value in result.items())
    for name in bench.inputs:
        first, second = left[0][name], left[1][name]
        if not bench.fill.poisons:
            assert torch.equal(first, second), name
            assert bool(first.any())
        elif first.is_floating_point() and bench.fill.mode == "nan":
            assert bool(first.isnan().all()), name
        else:
            assert not torch.equal(first, second), name
