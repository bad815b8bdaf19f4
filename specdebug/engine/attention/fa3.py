"""FlashAttention-3's plan: page tables and lengths; trees and branches become a cascade of two passes."""

import torch
from torch import Tensor

from specdebug.engine.kernels.kv_indices import gather_page_table, set_expand_page_table
from specdebug.engine.memory.arena import ArenaLayout
from specdebug.engine.textbook.attention.planner import (
    AttentionPlanner,
    CascadeMetadata,
    DraftLayout,
    ExtendLayout,
    Metadata,
    PagedMetadata,
    SequenceLayout,
    Workspace,
    assert_fits,
    indptr,
    query_indptr,
)


class FlashAttention3Planner(AttentionPlanner):
    """page_table / cache_seqlens (int32), with an expand pass for topk > 1."""

    def extend(self, batch: ExtendLayout, workspace: Workspace) -> Metadata:
        cu_seqlens = workspace.take("extend.cu_seqlens_q", (batch.extend_lens.numel() + 1,), torch.int32)
        cu_seqlens = indptr(batch.extend_lens, cu_seqlens)
        return self._pages(batch.sequences(), cu_seqlens, None, "extend", workspace, causal=True)

    def extend_uniform(self, batch: SequenceLayout, q_len: int, workspace: Workspace) -> Metadata:
        cu_seqlens = query_indptr(batch.seq_lens.numel(), q_len, batch.seq_lens.device)
        return self._pages(batch.longer(q_len), cu_seqlens, q_len, "extend", workspace, causal=True)

    def verify(self, batch: SequenceLayout, tree_mask: Tensor, workspace: Workspace) -> Metadata:
        rows, nodes = tree_mask.shape[:2]
        cu_seqlens = query_indptr(rows, nodes, batch.seq_lens.device)
        if self.topk == 1:
            return self._pages(batch.longer(nodes), cu_seqlens, nodes, "verify", workspace, causal=True)
        prefix = self._pages(batch, cu_seqlens, nodes, "verify", workspace, causal=False)
        return CascadeMetadata(prefix, self._verify_expand(batch, tree_mask, workspace))

    def draft_decode(self, batch: DraftLayout, workspace: Workspace) -> list[Metadata]:
        if self.topk == 1:
            return self._draft_chain(batch, workspace)
        bs = batch.req_pool_indices.numel()
        rows = bs * self.topk
        tail = batch.seq_lens % self.page_size
        whole_pages = tuple(length - length % self.page_size for length in batch.seq_lens_cpu)
        prefix = self._pages(
            SequenceLayout(batch.req_pool_indices, batch.seq_lens - tail, whole_pages),
            query_indptr(bs, self.topk, tail.device),
            self.topk,
            "draft",
            workspace,
            causal=False,
        )
        cu_seqlens = query_indptr(rows, 1, tail.device)
        branch_tail = tail.repeat_interleave(self.topk)
        plans: list[Metadata] = []
        for step in range(self.num_steps - 1):
            decode_length = step + 1
            page_table = workspace.take(f"draft.expand_page_table.{step}", (rows, decode_length + 1), torch.int32)
            cache_loc = batch.out_cache_loc[:, :decode_length]
            assert_fits(cache_loc.shape[1], page_table.shape[1], "attention.draft.plan", "a branch's page_table row")
            if self.page_size > 1:
                # a padded branch has one page however long it is: its other columns must name the padding page
                page_table[:rows].zero_()
                set_expand_page_table(cache_loc, self.page_size, page_table)
            else:
                page_table[:rows, :decode_length] = cache_loc[:, :decode_length]
            seqlens = workspace.take(f"draft.expand_cache_seqlens.{step}", (rows,), torch.int32)[:rows]
            torch.add(branch_tail, decode_length, out=seqlens)
            expand = PagedMetadata(page_table[:rows], seqlens, cu_seqlens, 1, self.page_size, causal=False)
            plans.append(CascadeMetadata(prefix, expand))
        return plans

    def declare_extend(self, layout: ArenaLayout, max_bs: int, q_len: int) -> None:
        self._declare_pages(layout, "extend", max_bs, self.context_length + q_len)

    def declare_verify(self, layout: ArenaLayout, max_bs: int) -> None:
        self._declare_pages(layout, "verify", max_bs, self.max_kv_len)
        if self.topk > 1:
            nodes = max_bs * self.tree_size
            layout.add("verify.expand_page_table", (nodes, self.tree_size), torch.int32)
            layout.add("verify.expand_cache_seqlens", (nodes,), torch.int32)

    def declare_draft(self, layout: ArenaLayout, max_bs: int) -> None:
        self._declare_pages(layout, "draft", max_bs, self.max_kv_len)
        rows = max_bs * self.topk
        for step in range(self.num_steps - 1):
            if self.topk > 1:
                layout.add(f"draft.expand_page_table.{step}", (rows, step + 2), torch.int32)
                layout.add(f"draft.expand_cache_seqlens.{step}", (rows,), torch.int32)
            else:
                layout.add(f"draft.cache_seqlens.{step}", (max_bs,), torch.int32)

    def _draft_chain(self, batch: DraftLayout, workspace: Workspace) -> list[Metadata]:
        """Plan topk 1, where the branch continues the row: one page table serves every forward."""
        bs = batch.req_pool_indices.numel()
        cu_seqlens = query_indptr(bs, 1, batch.seq_lens.device)
        longest = max(batch.seq_lens_cpu) + self.num_steps - 1
        pages = self._page_table(batch.req_pool_indices, longest, "draft", workspace)
        plans: list[Metadata] = []
        for step in range(self.num_steps - 1):
            seqlens = workspace.take(f"draft.cache_seqlens.{step}", (bs,), torch.int32)[:bs]
            torch.add(batch.seq_lens, step + 1, out=seqlens)
            plans.append(PagedMetadata(pages, seqlens, cu_seqlens, 1, self.page_size))
        return plans

    def _verify_expand(self, batch: SequenceLayout, tree_mask: Tensor, workspace: Workspace) -> PagedMetadata:
        """Plan each node's ancestors, the row cells L + ancestor, valid ones first."""
        bs, nodes = tree_mask.shape[:2]
        rows = bs * nodes
        table = self.req_to_token.table
        column = batch.seq_lens.unsqueeze(1) + torch.arange(nodes, device=table.device)
        slots = table[batch.req_pool_indices.unsqueeze(1), column].unsqueeze(1).expand(bs, nodes, nodes)
        order = (~tree_mask).to(torch.int8).sort(dim=-1, stable=True).indices
        page_table = workspace.take("verify.expand_page_table", (rows, nodes), torch.int32)[:rows]
        page_table.copy_(slots.gather(2, order).reshape(rows, nodes))
        seqlens = workspace.take("verify.expand_cache_seqlens", (rows,), torch.int32)[:rows]
        seqlens.copy_(tree_mask.sum(dim=-1).reshape(rows))
        return PagedMetadata(page_table, seqlens, query_indptr(rows, 1, table.device), 1, page_size=1, causal=False)

    def _pages(
        self,
        batch: SequenceLayout,
        cu_seqlens_q: Tensor,
        q_len: int | None,
        scope: str,
        workspace: Workspace,
        *,
        causal: bool,
    ) -> PagedMetadata:
        """Pages of the first ``seq_lens`` positions of each row."""
        page_table = self._page_table(batch.req_pool_indices, max(batch.seq_lens_cpu), scope, workspace)
        bs = batch.seq_lens.numel()
        seqlens = workspace.take(f"{scope}.cache_seqlens", (bs,), torch.int32)[:bs]
        seqlens.copy_(batch.seq_lens)
        return PagedMetadata(page_table, seqlens, cu_seqlens_q, q_len, self.page_size, causal=causal)

    def _page_table(self, req_pool_indices: Tensor, longest: int, scope: str, workspace: Workspace) -> Tensor:
        bs = req_pool_indices.numel()
        pages = max(-(-longest // self.page_size), 1)
        page_table = workspace.take(f"{scope}.page_table", (bs, pages), torch.int32)
        assert_fits(pages, page_table.shape[1], "attention.plan", f"{scope}.page_table")
        page_table[:bs, :pages] = gather_page_table(self.req_to_token.table, req_pool_indices, pages, self.page_size)
        return page_table[:bs]

    def _declare_pages(self, layout: ArenaLayout, scope: str, max_bs: int, kv_len: int) -> None:
        layout.add(f"{scope}.page_table", (max_bs, -(-kv_len // self.page_size) + 1), torch.int32)
        layout.add(f"{scope}.cache_seqlens", (max_bs,), torch.int32)
