"""FlashInfer's plan: every sequence is a slice of one packed index list; trees ride on a flat bit mask."""

from dataclasses import replace

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_oob
from specdebug.engine.kernels.kv_indices import create_kv_indices, generate_draft_decode_kv_indices
from specdebug.engine.kernels.trees import flat_tree_mask
from specdebug.engine.memory.arena import ArenaLayout
from specdebug.engine.textbook.attention.planner import (
    AttentionPlanner,
    DraftLayout,
    ExtendLayout,
    Metadata,
    RaggedMetadata,
    SequenceLayout,
    Workspace,
    assert_fits,
    indptr,
    query_indptr,
)


class FlashInferPlanner(AttentionPlanner):
    """kv_indptr / kv_indices (int32)."""

    index_dtype = torch.int32

    def extend(self, batch: ExtendLayout, workspace: Workspace) -> Metadata:
        keys = batch.sequences()
        lists = self._lists(keys, "extend", workspace)
        starts = workspace.take("extend.qo_indptr", (keys.seq_lens.numel() + 1,), torch.int32)
        qo_indptr = indptr(batch.extend_lens, starts)
        return RaggedMetadata(
            *lists,
            qo_indptr,
            q_len=None,
            kv_lens_host=keys.seq_lens_cpu,
            kv_lens_exact=True,
            q_lens_host=batch.extend_lens_cpu,
        )

    def extend_uniform(self, batch: SequenceLayout, q_len: int, workspace: Workspace) -> Metadata:
        keys = batch.longer(q_len)
        return RaggedMetadata(
            *self._lists(keys, "extend", workspace),
            query_indptr(keys.seq_lens.numel(), q_len, keys.seq_lens.device),
            q_len=q_len,
            num_kv_splits=self._splits(keys.seq_lens, "extend", workspace) if q_len == 1 else None,
            kv_lens_host=keys.seq_lens_cpu,
            kv_lens_exact=batch.slack == 0,
        )

    def verify(self, batch: SequenceLayout, tree_mask: Tensor, workspace: Workspace) -> Metadata:
        rows, nodes = tree_mask.shape[:2]
        keys = batch.longer(nodes)
        kv_indptr, kv_indices = self._lists(keys, "verify", workspace)
        qo_indptr = query_indptr(rows, nodes, keys.seq_lens.device)
        chain = RaggedMetadata(kv_indptr, kv_indices, qo_indptr, q_len=nodes, kv_lens_host=keys.seq_lens_cpu)
        if self.topk == 1:  # a chain is causal: no mask to build or read
            return chain
        num_bits = kv_indices.numel() * nodes
        bits = workspace.take("verify.custom_mask", (num_bits,), torch.bool)
        assert_fits(num_bits, bits.numel(), "attention.verify.plan", "custom_mask")
        mask_indptr = workspace.take("verify.mask_indptr", (rows,), torch.int64)[:rows]
        mask_indptr.copy_(flat_tree_mask(tree_mask, batch.seq_lens, bits))
        return replace(chain, causal=False, custom_mask=bits, mask_indptr=mask_indptr)

    def draft_decode(self, batch: DraftLayout, workspace: Workspace) -> list[Metadata]:
        bs = batch.req_pool_indices.numel()
        rows = bs * self.topk
        forwards = self.num_steps - 1
        prefixes = sum(batch.seq_lens_cpu) * self.topk
        needed = prefixes + rows * self.num_steps
        kv_indices, kv_indptr = self._draft_buffers(needed, rows, workspace)
        generate_draft_decode_kv_indices(
            self.req_to_token.table,
            batch.req_pool_indices,
            batch.seq_lens,
            batch.out_cache_loc,
            self.topk,
            kv_indices,
            forwards,
        )
        lengths = batch.positions + self._forward_number[:forwards]
        kv_indptr[:forwards, :1].zero_()
        torch.cumsum(lengths, 1, out=kv_indptr[:forwards, 1 : rows + 1])
        plans: list[Metadata] = []
        qo_indptr = query_indptr(rows, 1, batch.positions.device)
        splits = self._splits(lengths, "draft", workspace)
        with grouped():
            for step, step_indptr in enumerate(kv_indptr[:forwards, : rows + 1].unbind()):
                used = prefixes + rows * (step + 1)
                lens_host = tuple(n + step + 1 for n in batch.seq_lens_cpu for _ in range(self.topk))
                maybe_detect_oob(step_indptr, 0, used + 1, "draft.plan.kv_indptr")
                plans.append(
                    RaggedMetadata(
                        step_indptr,
                        kv_indices[step, :used],
                        qo_indptr,
                        q_len=1,
                        num_kv_splits=None if splits is None else splits[step],
                        kv_lens_host=lens_host,
                    )
                )
        return plans

    def declare_extend(self, layout: ArenaLayout, max_bs: int, q_len: int) -> None:
        layout.add("extend.kv_indptr", (max_bs + 1,), torch.int32)
        layout.add("extend.kv_indices", (max_bs * (self.context_length + q_len),), self.index_dtype)

    def declare_verify(self, layout: ArenaLayout, max_bs: int) -> None:
        layout.add("verify.kv_indptr", (max_bs + 1,), torch.int32)
        layout.add("verify.kv_indices", (max_bs * self.max_kv_len,), self.index_dtype)
        if self.topk > 1:
            layout.add("verify.custom_mask", (max_bs * self.max_kv_len * self.tree_size,), torch.bool)
            layout.add("verify.mask_indptr", (max_bs,), torch.int64)

    def declare_draft(self, layout: ArenaLayout, max_bs: int) -> None:
        width = max_bs * self.topk * self.max_kv_len
        layout.add("draft.kv_indices", (self.num_steps, width), self.index_dtype)
        layout.add("draft.kv_indptr", (self.num_steps, max_bs * self.topk + 1), torch.int32)

    def _draft_buffers(self, needed: int, rows: int, workspace: Workspace) -> tuple[Tensor, Tensor]:
        """Rows of kv_indices for ``needed`` slots and of kv_indptr for ``rows`` branches, one for each forward."""
        kv_indices = workspace.take("draft.kv_indices", (self.num_steps, needed), self.index_dtype)
        kv_indptr = workspace.take("draft.kv_indptr", (self.num_steps, rows + 1), torch.int32)
        assert_fits(needed, kv_indices.shape[1], "attention.draft.plan", "a kv_indices row")
        return kv_indices, kv_indptr

    def _lists(self, batch: SequenceLayout, scope: str, workspace: Workspace) -> tuple[Tensor, Tensor]:
        """kv_indptr and kv_indices of the first ``seq_lens`` positions of each row."""
        starts = workspace.take(f"{scope}.kv_indptr", (batch.seq_lens.numel() + 1,), torch.int32)
        kv_indptr = indptr(batch.seq_lens, starts)
        total, name = sum(batch.seq_lens_cpu), f"{scope}.kv_indices"
        kv_indices = workspace.take(name, (total,), self.index_dtype)
        assert_fits(total, kv_indices.numel(), "attention.plan", name)
        if batch.slack:  # where lengths fall short of the host's bounds, the list's end is probed, but not written
            kv_indices[total - batch.slack : total].zero_()
        create_kv_indices(self.req_to_token.table, batch.req_pool_indices, batch.seq_lens, kv_indptr, kv_indices)
        maybe_detect_oob(kv_indices[:total], 0, self.num_slots + self.page_size, "attention.plan.kv_indices")
        return kv_indptr, kv_indices[:total]

    def _splits(self, kv_lens: Tensor, scope: str, workspace: Workspace) -> Tensor | None:
        """num_kv_splits of single-query sequences, shaped as ``kv_lens`` ([B] or [forwards, B]); None where FlashInfer
        decides."""
        return None
