"""A graph runner beside the eager run of its forward: the same inputs and pools, with and without static buffers."""

import dataclasses
from abc import ABC, abstractmethod
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdebug.engine.attention.backend import TorchBackend, make_planner
from specdebug.engine.config import STEPS_IN_FLIGHT, EngineConfig
from specdebug.engine.graph.runner import EngineParts, GraphRunner, GraphTable, StepForward, launcher
from specdebug.engine.graph.tables import draft_table, extend_table, verify_table
from specdebug.engine.kernels.cache_locs import assign_draft_cache_locs, verify_cache_locs
from specdebug.engine.memory.arena import FillPolicy, Scratch
from specdebug.engine.model.loader import load_target
from specdebug.engine.model.models import TargetModel
from specdebug.engine.textbook.memory.mha_pool import MHAPool
from specdebug.engine.textbook.memory.req_to_token import ReqToToken
from specdebug.engine.textbook.speculative.draft import DraftInputs, DraftLoop, ExtendForward, ExtendInputs
from specdebug.engine.textbook.speculative.verify import VerifyForward, VerifyInputs
from specdebug.engine.textbook.target_worker import DecodeForward, DecodeInputs, decode_table
from specdebug.engine.workers.frozen_kv import FrozenKVInputs, FrozenKVLoop, frozen_kv_table, last_positions
from specdebug.engine.workers.mtp import MTPExtendForward, MTPExtendInputs, mtp_states, mtp_table
from specdebug.engine.workers.registry import part_of
from specdebug.events import Observers
from tests.engine.attention.cases import random_tree
from tests.engine.conftest import Lab

CPU = torch.device("cpu")
LENGTHS = (9, 1, 14, 6, 11)  # of the live requests; a batch is the first few of them
MAX_BS = len(LENGTHS)
Outputs = dict[str, Tensor]


@lru_cache(maxsize=4)
def _models(target: Path, draft: Path, algorithm: str) -> tuple[TargetModel, Any]:
    """Stateless, so one load serves every bench."""
    model = load_target(target, max_positions=80)
    return model, part_of(algorithm, "loader")(draft, algorithm=algorithm, target=model, max_positions=80)


class Bench(ABC):
    """Five requests with random committed KV; every other slot is NaN. ``options`` go to the engine config."""

    pool: MHAPool
    """Where the forward writes."""

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
        draft = Path(self.spec.draft_model) if self.spec.draft_model else lab.draft(self.spec.algorithm)
        self.target, self.draft = _models(lab.target, draft, self.spec.algorithm)
        self.vocab = self.target.config.vocab_size
        self.req_to_token = ReqToToken(MAX_BS, 48 + self.config.row_headroom, fill=FillPolicy("garbage"), guards=True)
        self.planner = make_planner(self.config, self.req_to_token)
        self.workspace = Scratch(self.fill, CPU)
        self.target_pool, self.draft_pool = self._pool(self.target.config), self._pool(self.draft)
        self.rows = torch.tensor([3, 5, 1, 4, 2])
        self.parts = EngineParts(self.config, self.planner, self.fill, torch.float32, CPU, Observers())
        self._commit()
        self.pool = self.draft_pool
        self.tokens = self.ids(MAX_BS * self.spec.tree_size)
        self.forward, table = self.make()
        self.launcher = launcher(self.parts, self.forward, TorchBackend(), self.workspace, table)
        assert self.launcher.runner is not None
        self.runner: GraphRunner[Any, Any] = self.launcher.runner
        self.inputs = [f"{self.forward.name}.{buffer.name}" for buffer in table.inputs]

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
            need = -(-(length + STEPS_IN_FLIGHT * self.config.alloc_len_per_decode) // page)
            mine, pages = pages[:need], pages[need:]
            slots = (mine.unsqueeze(1) * page + torch.arange(page)).flatten()
            self.req_to_token.write(row, 0, slots)
            for pool in (self.target_pool, self.draft_pool):
                for buffer in (*pool.k, *pool.v):
                    buffer[slots[:length]] = torch.randn((length, *buffer.shape[1:]), generator=self.generator)

    @abstractmethod
    def make(self) -> tuple[StepForward[Any, Any], GraphTable[Any, Any]]:
        """The forward and its static buffers; sets ``pool`` where it is not the draft's."""

    @abstractmethod
    def given(self, raw: int) -> Any:
        """Inputs of the first ``raw`` requests, the same at every call."""

    def eager(self, given: Any) -> Any:
        return self.launcher.run_eagerly(given, tuple(given.seq_lens.tolist()))

    def replay(self, given: Any) -> Any:
        return self.runner.replay(given, tuple(given.seq_lens.tolist()))

    def written(self, raw: int) -> Tensor:
        """Slots that a batch of the first ``raw`` requests writes."""
        return self.slots(raw, self.spec.tree_size)

    def slots(self, raw: int, count: int, before: int = 0) -> Tensor:
        """Those of ``count`` positions of each request, from ``before`` positions before its length on."""
        first = (torch.tensor(LENGTHS[:raw]) - before).clamp(min=0)
        return verify_cache_locs(self.req_to_token.table, self.rows[:raw], first, count)

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


class DecodeBench(Bench):
    """Plain decode of the target."""

    def make(self) -> Any:
        self.pool = self.target_pool
        forward = DecodeForward(self.target, self.pool)
        return forward, decode_table(self.parts, forward)

    def given(self, raw: int) -> DecodeInputs:
        return DecodeInputs(self.tokens[:raw], self.written(raw), self.rows[:raw], torch.tensor(LENGTHS[:raw]))

    def written(self, raw: int) -> Tensor:
        return self.slots(raw, 1)


class DraftBench(Bench):
    """An EAGLE head's draft loop."""

    def make(self) -> Any:
        spec, model = self.spec, self.draft
        loop = DraftLoop(model, self.pool, spec, target_vocab_size=self.vocab, observers=Observers())
        topk = spec.eagle_topk
        logits = self.draw(MAX_BS, model.vocab_size)
        self.topk_p, self.topk_index = torch.softmax(logits, dim=-1).topk(topk, dim=-1)
        self.hidden = self.draw(MAX_BS, model.hidden_size)
        locs = assign_draft_cache_locs(
            self.req_to_token.table,
            self.rows,
            torch.tensor(LENGTHS),
            topk=topk,
            num_steps=spec.num_steps,
            page_size=self.config.page_size,
        )
        self.out_cache_loc = locs.out_cache_loc
        if locs.dup_src is not None and locs.dup_tgt is not None:
            self.pool.move_kv_cache(locs.dup_tgt, locs.dup_src)
        return loop, draft_table(self.parts, loop)

    def given(self, raw: int) -> DraftInputs:
        lengths, topk = torch.tensor(LENGTHS[:raw]), self.spec.eagle_topk
        return DraftInputs(
            topk_p=self.topk_p[:raw],
            topk_index=self.topk_index[:raw],
            hidden_states=self.hidden[:raw],
            req_pool_indices=self.rows[:raw],
            seq_lens=lengths,
            positions=lengths.repeat_interleave(topk),
            out_cache_loc=self.out_cache_loc[: raw * topk],
        )

    def written(self, raw: int) -> Tensor:
        return self.out_cache_loc[: raw * self.spec.eagle_topk, : self.spec.num_steps - 1].flatten()


class VerifyBench(Bench):
    """The target's verify of random trees."""

    def make(self) -> Any:
        self.pool, self.nodes = self.target_pool, self.spec.tree_size
        forward = VerifyForward(self.target, self.pool, self.draft.aux_layers, self.draft.target_feature_size)
        self.masks = torch.stack([random_tree(self.nodes, self.spec.eagle_topk, self.generator) for _ in LENGTHS])
        return forward, verify_table(self.parts, forward, self.nodes)

    def given(self, raw: int) -> VerifyInputs:
        lengths, mask = torch.tensor(LENGTHS[:raw]), self.masks[:raw]
        return VerifyInputs(
            input_ids=self.tokens[: raw * self.nodes],
            positions=(lengths.unsqueeze(1) + mask.sum(dim=-1) - 1).flatten(),
            out_cache_loc=self.written(raw),
            tree_mask=mask,
            req_pool_indices=self.rows[:raw],
            seq_lens=lengths,
        )


class ExtendBench(Bench):
    """An EAGLE head's extend over what was accepted."""

    def make(self) -> Any:
        nodes = self.spec.tree_size
        forward = ExtendForward(self.draft, self.pool, topk=self.spec.eagle_topk, tree_size=nodes)
        self.features = self.draw(MAX_BS * nodes, self.draft.target_feature_size)
        self.accepted = torch.tensor([2, 1, nodes, 3, 1])
        return forward, extend_table(self.parts, forward, self.vocab)

    def given(self, raw: int) -> ExtendInputs:
        lengths, nodes = torch.tensor(LENGTHS[:raw]), self.spec.tree_size
        return ExtendInputs(
            input_ids=self.tokens[: raw * nodes],
            positions=(lengths.unsqueeze(1) + torch.arange(nodes)).flatten(),
            out_cache_loc=self.written(raw),
            features=self.features[: raw * nodes],
            accept_lengths=self.accepted[:raw],
            req_pool_indices=self.rows[:raw],
            seq_lens=lengths,
        )


class FrozenKVBench(Bench):
    """An assistant's passes."""

    def __init__(self, lab: Lab, *, speculative: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(lab, speculative={"algorithm": "FROZEN_KV_MTP", **(speculative or {})}, **options)

    def make(self) -> Any:
        self.pool = self.target_pool
        loop = FrozenKVLoop(self.draft, self.pool, self.spec, target_vocab_size=self.vocab, observers=Observers())
        self.hidden = self.draw(MAX_BS, self.draft.hidden_size)
        return loop, frozen_kv_table(self.parts, loop)

    def given(self, raw: int) -> FrozenKVInputs:
        lengths = torch.tensor(LENGTHS[:raw])
        positions = last_positions(lengths, self.spec.eagle_topk)
        return FrozenKVInputs(self.tokens[:raw], self.hidden[:raw], self.rows[:raw], lengths, positions)

    def written(self, raw: int) -> Tensor:
        return torch.empty(0, dtype=torch.int64)


class MTPBench(Bench):
    """The extend of next-n layers."""

    forward: MTPExtendForward

    def __init__(self, lab: Lab, layers: int = 3, *, chained: bool = False, **options: Any) -> None:
        spec = {"algorithm": "MTP", "num_steps": layers, "eagle_topk": 1, "num_draft_tokens": None}
        super().__init__(lab, speculative=spec | {"draft_model": str(lab.next_n(layers, chained=chained))}, **options)

    def make(self) -> Any:
        nodes, size, layers = self.spec.tree_size, self.draft.hidden_size, self.draft.num_layers
        state = mtp_states(self.draft, MAX_BS, torch.float32, CPU)
        ids = self.ids(MAX_BS * (layers - 1)).view(MAX_BS, -1)
        drafts = torch.zeros(MAX_BS, layers, dtype=torch.int64)
        self.recent = ids, self.draw(MAX_BS, layers - 1, size)
        state.store(self.rows, drafts, *self.recent)
        forward = MTPExtendForward(self.draft, self.pool, state, tree_size=nodes)
        self.features = self.draw(MAX_BS * nodes, size)
        self.accepted = torch.tensor([2, 1, nodes, 3, 1])
        return forward, mtp_table(self.parts, forward)

    def given(self, raw: int) -> MTPExtendInputs:
        tokens = raw * self.spec.tree_size
        return MTPExtendInputs(
            input_ids=self.tokens[:tokens],
            features=self.features[:tokens],
            out_cache_loc=self.written(raw),
            accept_lengths=self.accepted[:raw],
            req_pool_indices=self.rows[:raw],
            seq_lens=torch.tensor(LENGTHS[:raw]),
        )

    def written(self, raw: int) -> Tensor:
        return self.slots(raw, self.forward.width, before=self.forward.earlier)


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
