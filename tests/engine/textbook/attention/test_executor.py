"""The executor believes its metadata: it reads what that names, no more, and is wrong when that is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from specdebug.base.attention_plans import SHIPPED
from specdebug.engine.attention.select import planner_class
from specdebug.engine.textbook.attention.flashinfer import FlashInferPlanner
from specdebug.engine.textbook.attention.planner import Metadata, PagedMetadata, RaggedMetadata
from tests.engine.attention.cases import (
    LAYERS,
    Q_HEADS,
    Case,
    attend,
    build,
    cases,
    cold_prefill,
    draft,
    draft_layout,
    eager,
    prefill,
    random_tree,
    read_only,
    uniform,
    verify,
)

PLANNERS = [planner_class(plan.name) for plan in SHIPPED]
LATENT_PLANNERS = [planner_class(plan.name, "mla") for plan in SHIPPED]
ATTENDING = [(planner, False) for planner in PLANNERS] + [(planner, True) for planner in LATENT_PLANNERS]
LENGTHS = (9, 5, 14)
INT32 = torch.int32


class Fixed:
    """One batch of one kind whose plan can be tampered with: same queries, same new KV, same pool every time."""

    def __init__(
        self,
        kind: str,
        planner_type: Any,
        *,
        page_size: int = 4,
        lengths: tuple[int, ...] = LENGTHS,
        latent: bool = False,
    ) -> None:
        self.case = Case(lengths, page_size, topk=2, steps=3, seed=5, latent=latent)
        self.world = build(self.case)
        self.kind, batch = kind, len(lengths)
        planner, world = planner_type(self.world.config, self.world.req_to_token), self.world
        nodes = self.case.nodes
        per_sequence = {"decode": 1, "extend": nodes, "prefill": 3, "verify": nodes, "draft": self.case.topk}
        self.rows_each = per_sequence[kind]
        if kind == "draft":
            layout, slots = draft_layout(world)
            self.loc = slots[:, 0]
            self.plan: Metadata = planner.draft_decode(layout, eager())[0]
        else:
            self.loc = torch.cat([world.slots(b, n, n + self.rows_each) for b, n in enumerate(lengths)])
            if kind == "prefill":
                self.plan = planner.extend(world.chunks([3] * batch), eager())
            elif kind == "verify":
                masks = torch.stack([random_tree(nodes, 2, world.generator) for _ in lengths])
                self.plan = planner.verify(world.layout, masks, eager())
            else:
                self.plan = planner.extend_uniform(world.layout, self.rows_each, eager())
        total = batch * self.rows_each
        self.queries = world.draw(LAYERS, total, Q_HEADS, self.case.dim)
        self.news = [world.draw_kv(total) for _ in range(LAYERS)]
        self.buffers = [side for layer in range(LAYERS) for side in world.pool.kv_buffer(layer)]

    def run(self, plan: Metadata | None = None) -> list[Tensor]:
        """One output [rows, ...] per sequence, the layers side by side."""
        outs = attend(self.world, plan or self.plan, self.loc, self.news, self.queries)
        return list(torch.cat(outs, dim=1).split(self.rows_each))


def _changed(clean: list[Tensor], other: list[Tensor]) -> list[int]:
    pairs = zip(clean, other, strict=True)
    return [b for b, (x, y) in enumerate(pairs) if not torch.allclose(x, y, atol=1e-5, rtol=0)]


KINDS = ["decode", "extend", "prefill", "verify", "draft"]


@pytest.mark.parametrize(("planner", "latent"), ATTENDING)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_nan_inside_a_sequence_is_seen_by_it_and_by_nobody_else(
    planner: Any, latent: bool, kind: str, page_size: int
) -> None:
    fixed = Fixed(kind, planner, page_size=page_size, latent=latent)
    clean = fixed.run()
    assert not any(bool(out.isnan().any()) for out in clean)
    for b, position in ((0, 0), (1, 4), (2, 7)):
        slot = fixed.world.slots(b, position, position + 1)
        if kind == "draft" and page_size > 1 and position >= LENGTHS[b] - LENGTHS[b] % page_size:
            continue  # each branch has its own copy of the prefix's tail page
        saved = fixed.world.pool.read(slot)
        for buffer in fixed.buffers:
            buffer[slot] = float("nan")
        found = fixed.run()
        assert bool(found[b].isnan().all())
        assert _changed(clean, found) == [b]
        for layer in range(LAYERS):
            fixed.world.pool.write(layer, slot, saved[0][layer], saved[1][layer])
        assert _changed(clean, fixed.run()) == []


@pytest.mark.parametrize(("planner", "latent"), ATTENDING)
@pytest.mark.parametrize("kind", KINDS)
def test_garbage_outside_every_sequence_changes_no_bit(planner: Any, latent: bool, kind: str) -> None:
    """Slots past a sequence's end, padding, and those of nobody: NaN, infinity or a number, it is all the same."""
    fixed = Fixed(kind, planner, latent=latent)
    clean = fixed.run()
    live = [fixed.world.slots(b, 0, n) for b, n in enumerate(LENGTHS)]
    if kind == "draft":
        reserved = fixed.world.config.alloc_len_per_decode  # branches, and their copies of the tail page
        live += [fixed.world.slots(b, n, n + reserved) for b, n in enumerate(LENGTHS)]
    outside = torch.ones(fixed.world.pool.size, dtype=torch.bool)
    outside[torch.cat(live)] = False
    for value in (float("nan"), float("inf"), -1e30):
        for buffer in fixed.buffers:
            buffer[outside] = value
        assert all(torch.equal(x, y) for x, y in zip(clean, fixed.run(), strict=True))


def _tampered(plan: Metadata, b: int, slot: int) -> dict[str, Metadata]:
    """Plans with one number wrong in sequence ``b`` of the plan; ``slot`` is a live slot of another request."""
    if isinstance(plan, RaggedMetadata):
        indices, indptr = plan.kv_indices.clone(), plan.kv_indptr.clone()
        indices[indptr[b] + 1] = slot
        indptr[b + 1] -= 1
        shorter = {"kv_indptr": replace(plan, kv_indptr=indptr)} if plan.custom_mask is None else {}
        return {"kv_indices": replace(plan, kv_indices=indices), **shorter}
    if isinstance(plan, PagedMetadata):
        pages, seqlens = plan.page_table.clone(), plan.cache_seqlens.clone()
        pages[b, 0] = slot // plan.page_size
        seqlens[b] -= 1
        return {"page_table": replace(plan, page_table=pages), "cache_seqlens": replace(plan, cache_seqlens=seqlens)}
    prefixes = _tampered(plan.prefix, b, slot)
    branch = b * (plan.expand.page_table.shape[0] // plan.prefix.page_table.shape[0])
    expands = _tampered(plan.expand, branch, slot)
    return {
        **{f"prefix.{name}": replace(plan, prefix=wrong) for name, wrong in prefixes.items()},  # type: ignore[arg-type]
        **{f"expand.{name}": replace(plan, expand=wrong) for name, wrong in expands.items()},  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page_size", [1, 4])
def test_one_wrong_number_in_the_metadata_is_wrong_attention(planner: Any, kind: str, page_size: int) -> None:
    fixed = Fixed(kind, planner, page_size=page_size)
    clean = fixed.run()
    alien = int(fixed.world.slots(0, 0, 1))
    branches = isinstance(fixed.plan, RaggedMetadata) and kind == "draft"
    wrongs = _tampered(fixed.plan, fixed.case.topk if branches else 1, alien)
    assert wrongs
    for name, plan in wrongs.items():
        changed = _changed(clean, fixed.run(plan))
        # a list's offset is where one sequence ends and the next begins
        assert changed == ([1, 2] if name == "kv_indptr" and kind != "draft" else [1]), name


def test_one_wrong_bit_of_the_mask_changes_one_node() -> None:
    fixed = Fixed("verify", FlashInferPlanner)
    clean = fixed.run()
    assert isinstance(fixed.plan, RaggedMetadata)
    assert fixed.plan.custom_mask is not None
    assert fixed.plan.mask_indptr is not None
    bits = fixed.plan.custom_mask.clone()
    width = LENGTHS[1] + fixed.case.nodes
    bits[fixed.plan.mask_indptr[1] + 2 * width] = False  # node 2 no longer sees the first position
    found = fixed.run(replace(fixed.plan, custom_mask=bits))
    assert _changed(clean, found) == [1]
    rows = (found[1] != clean[1]).any(dim=1).nonzero().flatten().tolist()
    assert rows == [2]


def test_the_new_keys_are_written_before_they_are_attended() -> None:
    fixed = Fixed("decode", FlashInferPlanner)
    assert bool(fixed.world.pool.k[0][fixed.loc].isnan().all())
    fixed.run()
    for layer, (k, v) in enumerate(fixed.news):
        assert torch.equal(fixed.world.pool.k[layer][fixed.loc], k.float())
        assert torch.equal(fixed.world.pool.v[layer][fixed.loc], v.float())


@pytest.mark.parametrize("planner", LATENT_PLANNERS)
@given(case=cases(min_steps=2))
@settings(max_examples=10)
def test_latents_are_attended_densely_in_every_forward(planner: Any, case: Case) -> None:
    """With the scale of the heads as projected, not of the packed rows."""
    case = replace(case, latent=True)
    for result in (prefill(planner, case), cold_prefill(planner, case), uniform(planner, case, 1, graph=True)):
        result.check()
    uniform(planner, case, case.nodes, graph=True).check()
    verify(planner, case, graph=True).check()
    draft(planner, case, graph=True, padding=1).check()


@pytest.mark.parametrize(("planner", "latent"), ATTENDING)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("topk", [1, 2])
def test_half_precision_stays_half_precision(planner: Any, latent: bool, dtype: torch.dtype, topk: int) -> None:
    """The result feeds a linear layer of the model's dtype, merged or not."""
    case = Case(LENGTHS, 4, topk=topk, steps=3, dtype=dtype, latent=latent)
    for result in (
        prefill(planner, case),
        cold_prefill(planner, case),
        uniform(planner, case, 1),
        uniform(planner, case, case.nodes),
        verify(planner, case),
        draft(planner, case),
    ):
        result.check()


@pytest.mark.parametrize("planner_type", PLANNERS)
@pytest.mark.parametrize("lengths", [(9, 1, 14), (6,), (7, 7)], ids=str)
def test_a_batch_without_slots_reads_what_is_there_and_writes_nothing(
    planner_type: Any, lengths: tuple[int, ...]
) -> None:
    world = build(Case(lengths, page_size=4, topk=3, steps=2, seed=3))
    before = [side.clone() for side in (*world.pool.k, *world.pool.v)]
    read_only(world, planner_type(world.config, world.req_to_token)).check()
    after = (*world.pool.k, *world.pool.v)
    assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(before, after, strict=True))
