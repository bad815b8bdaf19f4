"""Target verify as a graph: T tokens per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from specdebug.engine.attention.backend import AttentionBackend
from specdebug.engine.attention.metadata import Metadata, with_host_lens
from specdebug.engine.attention.planner import SequenceLayout
from specdebug.engine.graph.runner import GraphRunner, Planned, RunnerParts, StaticBuffer, padded_lens
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.speculative.verify import VerifyForward, VerifyInputs, VerifyOutputs


class VerifyGraphRunner(GraphRunner[VerifyInputs, VerifyOutputs]):
    """Replays :class:`VerifyForward` at captured batch sizes, in two parts: :meth:`prepare` needs to know less than
    :meth:`launch` and can come earlier. The nodes of a padded row see each other."""

    def __init__(
        self, parts: RunnerParts, forward: VerifyForward, attention: AttentionBackend, *, tree_size: int
    ) -> None:
        self._callable = forward
        self._tree_size = tree_size
        super().__init__(
            parts,
            "verify",
            attention,
            forward.pool,
            records=(VerifyInputs, VerifyOutputs),
            inputs=[
                StaticBuffer("input_ids", tree_size, (), torch.int64),
                StaticBuffer("positions", tree_size, (), torch.int64),
                StaticBuffer("out_cache_loc", tree_size, (), torch.int64),
                StaticBuffer("tree_mask", 1, (tree_size, tree_size), torch.bool),
                StaticBuffer("req_pool_indices", 1, (), torch.int64),
                StaticBuffer("seq_lens", 1, (), torch.int64),
            ],
            outputs=[
                StaticBuffer("logits", tree_size, (forward.model.config.vocab_size,), parts.dtype),
                StaticBuffer("features", tree_size, (forward.feature_size,), parts.dtype),
            ],
            declare=parts.planner.declare_verify,
        )

    def prepare(self, inputs: VerifyInputs, seq_lens_cpu: tuple[int, ...], *, slack: int = 0) -> Planned[VerifyInputs]:
        """Load static inputs and plan attention for the next launch; ``seq_lens_cpu`` may exceed the lengths, in all by
        ``slack`` at most."""
        bs, padded = self._load(inputs)
        return self._planned(bs, padded, self._plan(padded, padded_lens(seq_lens_cpu, bs), slack))

    def launch(self, planned: Planned[VerifyInputs], seq_lens_cpu: tuple[int, ...]) -> VerifyOutputs:
        """Run the replay that was prepared last; the result views static outputs, valid until the next launch.

        ``seq_lens_cpu`` are the lengths themselves: a library that schedules on the host gets several queries of one
        sequence wrong if it believes in more keys than there are.
        """
        lens = tuple(length + self._tree_size for length in padded_lens(seq_lens_cpu, planned.bs))
        known = replace(planned, metadata=[with_host_lens(plan, lens) for plan in planned.metadata])
        self._launch(known, len(seq_lens_cpu))
        return self._outputs(len(seq_lens_cpu))

    def abandon(self) -> None:
        """Release the inputs of what was prepared: it will not be launched."""
        self.buffers.release_inputs()

    def _blank(self) -> None:
        super()._blank()
        self.buffers["verify.tree_mask"].fill_(True)

    def _plan(self, padded: VerifyInputs, seq_lens_cpu: tuple[int, ...], slack: int = 0) -> list[Metadata]:
        layout = SequenceLayout(padded.req_pool_indices, padded.seq_lens, seq_lens_cpu, slack)
        return [self._planner.verify(layout, padded.tree_mask, self.buffers.workspace)]

    def _run(self, padded: VerifyInputs, attentions: Sequence[LayerAttention]) -> VerifyOutputs:
        return self._callable.run(padded, attentions[0])
