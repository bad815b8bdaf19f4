"""The static buffers of EAGLE's forwards, and what their padding rows are."""

from functools import partial

import torch

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_oob
from specdebug.engine.graph.runner import EngineParts, GraphTable, StaticBuffer, zero
from specdebug.engine.textbook.speculative.draft import (
    DraftInputs,
    DraftLoop,
    ExtendForward,
    ExtendInputs,
    ExtendOutputs,
)
from specdebug.engine.textbook.speculative.tree import DraftCandidates
from specdebug.engine.textbook.speculative.verify import VerifyForward, VerifyInputs, VerifyOutputs

IDS = torch.int64


def ids(rows: int, *names: str) -> list[StaticBuffer]:
    """Buffers of that many ids for each request."""
    return [StaticBuffer(name, rows, (), IDS) for name in names]


def candidate_buffers(topk: int, steps: int, nodes: int) -> list[StaticBuffer]:
    """The static buffers of ``DraftCandidates``, whatever drafts them."""
    return [
        StaticBuffer("parent_list", 1, (topk * (steps - 1) + 1 if steps > 1 else 0,), IDS),
        StaticBuffer("top_scores_index", 1, (nodes - 1,), IDS),
        StaticBuffer("draft_tokens", 1, (nodes - 1,), IDS),
    ]


def draft_table(parts: EngineParts, loop: DraftLoop) -> GraphTable[DraftInputs, DraftCandidates]:
    """The whole draft loop."""
    topk = loop.topk

    def probe(padded: DraftInputs) -> None:
        with grouped():
            rows = parts.config.max_running_requests + 1
            maybe_detect_oob(padded.topk_index, 0, loop.model.vocab_size, "draft_graph.replay.topk_index")
            maybe_detect_oob(padded.req_pool_indices, 0, rows, "draft_graph.replay.req_pool_indices")
            maybe_detect_nan(padded.topk_p, "draft_graph.replay.topk_p")
            maybe_detect_nan(padded.hidden_states, "draft_graph.replay.hidden_states")

    return GraphTable(
        (DraftInputs, DraftCandidates),
        inputs=[
            StaticBuffer("topk_p", 1, (topk,), torch.float32),
            StaticBuffer("topk_index", 1, (topk,), IDS),
            StaticBuffer("hidden_states", 1, (loop.model.hidden_size,), parts.dtype),
            *ids(1, "req_pool_indices", "seq_lens"),
            *ids(topk, "positions"),
            StaticBuffer("out_cache_loc", topk, (loop.num_steps,), IDS),
        ],
        outputs=candidate_buffers(topk, loop.num_steps, loop.tree_size),
        declare=parts.planner.declare_draft,
        pad=pad_draft,
        probe=probe,
    )


def pad_draft(inputs: DraftInputs) -> None:
    """Padding rows must be coherent with each other: kv_indptr comes from ``positions``, index lists from ``seq_lens``
    and ``req_pool_indices``; all zero makes a padded branch attend only its own slot 0."""
    inputs.seq_lens.zero_()
    inputs.out_cache_loc.zero_()
    inputs.positions.zero_()
    inputs.topk_p.zero_()
    inputs.topk_index.zero_()
    inputs.hidden_states.zero_()
    inputs.req_pool_indices.zero_()


def verify_table(parts: EngineParts, forward: VerifyForward, nodes: int) -> GraphTable[VerifyInputs, VerifyOutputs]:
    """The target's verify: T tokens per request. The nodes of a padded row see each other: a row that may see nothing
    has no softmax."""

    def pad(inputs: VerifyInputs) -> None:
        zero(inputs)
        inputs.tree_mask.fill_(True)

    return GraphTable(
        (VerifyInputs, VerifyOutputs),
        inputs=[
            *ids(nodes, "input_ids", "positions", "out_cache_loc"),
            StaticBuffer("tree_mask", 1, (nodes, nodes), torch.bool),
            *ids(1, "req_pool_indices", "seq_lens"),
        ],
        outputs=[
            StaticBuffer("logits", nodes, (forward.model.config.vocab_size,), parts.dtype),
            StaticBuffer("features", nodes, (forward.feature_size,), parts.dtype),
        ],
        declare=parts.planner.declare_verify,
        pad=pad,
    )


def extend_table(
    parts: EngineParts, forward: ExtendForward, target_vocab_size: int
) -> GraphTable[ExtendInputs, ExtendOutputs]:
    """The draft extend after a verify: T tokens per request, whatever was accepted; a padded row accepts all T of its
    zeros."""
    nodes, model = forward.tree_size, forward.model

    def pad(inputs: ExtendInputs) -> None:
        zero(inputs)
        inputs.accept_lengths.fill_(nodes)

    def probe(padded: ExtendInputs) -> None:
        with grouped():
            maybe_detect_oob(padded.input_ids, 0, target_vocab_size, "draft_extend_graph.replay.input_ids")
            maybe_detect_oob(padded.accept_lengths, 1, nodes + 1, "draft_extend_graph.replay.accept_lengths")

    return GraphTable(
        (ExtendInputs, ExtendOutputs),
        inputs=[
            *ids(nodes, "input_ids", "positions", "out_cache_loc"),
            StaticBuffer("features", nodes, (model.target_feature_size,), parts.dtype),
            *ids(1, "accept_lengths", "req_pool_indices", "seq_lens"),
        ],
        outputs=[
            StaticBuffer("topk_p", 1, (forward.topk,), torch.float32),
            StaticBuffer("topk_index", 1, (forward.topk,), IDS),
            StaticBuffer("hidden_states", 1, (model.hidden_size,), parts.dtype),
        ],
        declare=partial(parts.planner.declare_extend, q_len=nodes),
        pad=pad,
        probe=probe,
    )
