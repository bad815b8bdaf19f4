"""Stage 3, verify: one target forward over the whole tree, which writes KV of node i to row cell L + i."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_nonfinite, maybe_detect_oob
from specdebug.engine.graph.runner import ForwardLauncher, Planned, StepForward, padded_lens
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.model.models import TargetModel
from specdebug.engine.textbook.attention.planner import (
    AttentionPlanner,
    Metadata,
    SequenceLayout,
    Workspace,
    with_host_lens,
)
from specdebug.engine.textbook.speculative.tree import VerifyTree
from specdebug.engine.workers.protocol import WorkerParts
from specdebug.events import Forward


@dataclass(frozen=True)
class VerifyInputs:
    """input_ids, positions, out_cache_loc: int64 [B·T]. tree_mask: bool [B, T, T]. req_pool_indices, seq_lens (L):
    int64 [B]."""

    input_ids: Tensor
    positions: Tensor
    out_cache_loc: Tensor
    tree_mask: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor


@dataclass(frozen=True)
class VerifyOutputs:
    """logits: [B·T, V]. features: [B·T, F], what the draft consumes."""

    logits: Tensor
    features: Tensor


class VerifyForward(StepForward[VerifyInputs, VerifyOutputs]):
    """The callable: one target forward over a tree batch."""

    name: Forward = "verify"

    def __init__(self, model: TargetModel, pool: KVPool, aux_layers: tuple[int, ...], feature_size: int) -> None:
        self.model, self.pool = model, pool
        self.aux_layers, self.feature_size = aux_layers, feature_size

    def plan(
        self, planner: AttentionPlanner, inputs: VerifyInputs, lens: tuple[int, ...], workspace: Workspace, slack: int
    ) -> list[Metadata]:
        batch = SequenceLayout(inputs.req_pool_indices, inputs.seq_lens, lens, slack)
        return [planner.verify(batch, inputs.tree_mask, workspace)]

    def run(self, inputs: VerifyInputs, attentions: Sequence[LayerAttention]) -> VerifyOutputs:
        """Logits of every node, and its features: the final hidden, or EAGLE-3's auxiliary ones."""
        output = self.model.forward(inputs.input_ids, inputs.positions, attentions[0], self.aux_layers)
        features = output.hidden if output.aux is None else output.aux
        return VerifyOutputs(self.model.logits(output.hidden), features)


@dataclass(frozen=True)
class PreparedVerify:
    """A verify that lacks its launch; ``planned`` where a graph runner is to run it."""

    inputs: VerifyInputs
    planned: Planned[VerifyInputs] | None


@dataclass(frozen=True, eq=False)
class VerifyStage:
    """In two parts, because :meth:`prepare` needs to know less than :meth:`run` and can come a step earlier."""

    parts: WorkerParts
    launcher: ForwardLauncher[VerifyInputs, VerifyOutputs]

    def prepare(
        self, tree: VerifyTree, rows: Tensor, seq_lens: Tensor, slots: Tensor, lens_cpu: tuple[int, ...], slack: int
    ) -> PreparedVerify:
        """Load a tree, and plan its attention where that can be done before the lengths are known: ``lens_cpu`` may
        exceed them, in all by ``slack``. rows, seq_lens: int64 [B]. slots: int64 [B·T], for target KV."""
        input_ids = tree.tokens.reshape(-1)
        maybe_detect_oob(input_ids, 0, self.parts.vocab_size, "verify.input_ids")
        inputs = VerifyInputs(input_ids, tree.positions.reshape(-1), slots, tree.mask, rows, seq_lens)
        planned, runner = None, self.launcher.runner
        if runner is not None and runner.can_run(len(lens_cpu)):
            planned = runner.prepare(inputs, lens_cpu, slack=slack)
        return PreparedVerify(inputs, planned)

    def run(self, prepared: PreparedVerify, lens_cpu: tuple[int, ...]) -> VerifyOutputs:
        """Run the verify that was prepared last. ``lens_cpu`` are the lengths themselves: a library that schedules on
        the host gets several queries of one sequence wrong if it believes in more keys than there are."""
        inputs, planned, runner = prepared.inputs, prepared.planned, self.launcher.runner
        if runner is not None and planned is not None:
            lens = tuple(length + self.parts.spec.tree_size for length in padded_lens(lens_cpu, planned.bs))
            known = [with_host_lens(plan, lens) for plan in planned.metadata]
            outputs = runner.launch(replace(planned, metadata=known), len(lens_cpu))
        else:
            outputs = self.launcher.run_eagerly(inputs, lens_cpu)
        with grouped():
            self.parts.memory.target.probe_written(inputs.out_cache_loc)
            maybe_detect_nonfinite(outputs.logits, "verify.logits")
            maybe_detect_nan(outputs.features, "verify.hidden_states")
        return outputs

    def abandon(self, prepared: PreparedVerify) -> None:
        """A prepared verify will not be run."""
        if self.launcher.runner is not None and prepared.planned is not None:
            self.launcher.runner.abandon()
