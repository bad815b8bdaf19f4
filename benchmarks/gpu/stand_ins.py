"""Hold what stands in for SGLang's kernels on a CPU against those kernels, on this machine's GPU.

``python benchmarks/gpu/stand_ins.py OUT`` runs each kernel with the Python that ``specdebug engines`` knows for CUDA,
and our stand-in beside it on copies of the same inputs, drawn from a seed. It prints a table and writes
``stand_ins.json`` to OUT. Trees and walks are to be equal; attention, in bfloat16, is to be within two of that type's
steps of the row's largest value.

Exit code 1 when a stand-in is off.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
RELEASE = "sglang"
CASES = 20
HEADS, KV_HEADS, DIM, SLOTS = 8, 2, 64, 512
ROUNDING = 2 * 2**-7
"""Two steps of bfloat16, of a row's largest value."""


@dataclass
class Held:
    """A kernel beside its stand-in. ``off``: the largest difference; ``allowed``: what it may be. ``error``: why it was
    not held."""

    kernel: str
    cases: int
    off: float
    allowed: float
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error and self.off <= self.allowed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.inside:
        rows = [held for kernel in KERNELS for held in every(kernel)]
        (options.out / "stand_ins.json").write_text(json.dumps([asdict(each) for each in rows], indent=1) + "\n")
        return 0
    from specdebug.targets.installs.release import parse_release
    from specdebug.targets.installs.store import find_installed, store_folder

    here = find_installed(store_folder(None), parse_release(RELEASE), "cuda")
    root = HERE.parents[2]
    words = [here.python, str(HERE), str(options.out.resolve()), "--inside"]
    subprocess.run(words, check=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    rows = [Held(**each) for each in json.loads((options.out / "stand_ins.json").read_text())]
    show(rows, str(here.release))
    return 0 if rows and all(each.ok for each in rows) else 1


def show(rows: list[Held], release: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"stand-ins beside the kernels of {release}")
    for column in ("kernel", "cases", "largest difference", "allowed", ""):
        table.add_column(column)
    for row in rows:
        allowed = "equal" if not row.allowed else f"{row.allowed:.1e}"
        off = "none" if not row.off else f"{row.off:.1e}"
        table.add_row(row.kernel, str(row.cases), off, allowed, row.error or ("" if row.ok else "off"))
    Console(width=110).print(table)


# What follows runs in SGLang's environment.


def drawn(seed: int, *size: int) -> Any:
    import torch

    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).bfloat16()


def on_gpu(*tensors: Any) -> list[Any]:
    return [each.cuda() if hasattr(each, "cuda") else each for each in tensors]


def apart(theirs: Any, ours: Any) -> float:
    """The largest difference, of the largest value in the last dimension."""
    theirs, ours = theirs.float().cpu(), ours.float().cpu()
    return float(((theirs - ours).abs() / ours.abs().amax(-1, keepdim=True).clamp_min(1e-3)).max())


def every(kernel: Callable[[], Iterator[Held]]) -> Iterator[Held]:
    """Yield what a kernel was held to, and last the error that ended it."""
    try:
        yield from kernel()
    except Exception as error:
        traceback.print_exc()
        yield Held(kernel.__name__, 0, 0.0, 0.0, f"{type(error).__name__}: {error}"[:200])


def worst(kernel: str, allowed: float, case: Callable[[int], float]) -> Held:
    """The worst of some seeds."""
    return Held(kernel, CASES, max(case(seed) for seed in range(CASES)), allowed)


@contextmanager
def in_torch(module: Any, **kernels: Any) -> Iterator[None]:
    """Have a module's Triton kernels stood in for meanwhile: its functions around them run as they are."""
    before = {name: getattr(module, name) for name in kernels}
    for name, kernel in kernels.items():
        setattr(module, name, kernel.instead_of(before[name]))
    try:
        yield
    finally:
        for name, kernel in before.items():
            setattr(module, name, kernel)


def requests(seed: int) -> tuple[list[int], Any, Any]:
    """Lengths of four requests, where each begins, and the slots of all."""
    import torch

    generator = torch.Generator().manual_seed(1000 + seed)
    lengths = torch.randint(1, 100, (4,), generator=generator)
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).int()
    return lengths.tolist(), indptr, torch.randperm(SLOTS, generator=generator)[: int(indptr[-1])]


def decode_attention() -> Iterator[Held]:
    import torch
    from sglang.srt.layers.attention.triton_ops import decode_attention as theirs

    from specdebug.targets.sglang.inside.attention import STAGE1, STAGE2

    kernels = {"_fwd_kernel_stage1": STAGE1, "_fwd_grouped_kernel_stage1": STAGE1, "_fwd_kernel_stage2": STAGE2}

    def case(seed: int) -> float:
        _, indptr, slots = requests(seed)
        q, k, v = (
            drawn(seed, 4, HEADS, DIM),
            drawn(seed + 1, SLOTS, KV_HEADS, DIM),
            drawn(seed + 2, SLOTS, KV_HEADS, DIM),
        )
        ours, splits = torch.zeros_like(q), 8
        mid, lse = torch.zeros(4, HEADS, splits, DIM), torch.zeros(4, HEADS, splits)
        rest = (mid, lse, torch.full((4,), splits, dtype=torch.int32))
        with in_torch(theirs, **kernels):
            theirs.decode_attention_fwd(q, k, v, ours, indptr, slots, *rest, splits, DIM**-0.5, 1.0, 1.0)
        there = on_gpu(q, k, v, torch.zeros_like(q), indptr, slots, *rest)
        theirs.decode_attention_fwd(*there, splits, DIM**-0.5, 1.0, 1.0)
        return apart(there[3], ours)

    yield worst("decode_attention_fwd (Triton)", ROUNDING, case)


def extend_attention() -> Iterator[Held]:
    import torch
    from sglang.srt.layers.attention.triton_ops import extend_attention as theirs

    from specdebug.targets.sglang.inside.attention import EXTENDING

    new = 6

    def case(seed: int, masked: bool) -> float:
        lengths, indptr, slots = requests(seed)
        tokens = 4 * new
        q, k, v = (
            drawn(seed, tokens, HEADS, DIM),
            drawn(seed + 1, tokens, KV_HEADS, DIM),
            drawn(seed + 2, tokens, KV_HEADS, DIM),
        )
        pool = drawn(seed + 3, SLOTS, KV_HEADS, DIM), drawn(seed + 4, SLOTS, KV_HEADS, DIM)
        rows = torch.arange(5, dtype=torch.int32) * new
        mask = mask_indptr = None
        if masked:
            parts = []
            for length in lengths:
                tree = torch.rand(new, new, generator=torch.Generator().manual_seed(seed)) < 0.5
                tree.fill_diagonal_(True)
                parts.append(torch.cat((torch.ones(new, length, dtype=torch.bool), tree.tril()), 1).flatten())
            mask = torch.cat(parts)
            ends = torch.tensor([0, *[each.numel() for each in parts]]).cumsum(0)
            mask_indptr = ends
        ours = torch.zeros_like(q)
        rest = (pool[0], pool[1], rows, indptr, slots, mask, not masked, mask_indptr, new, 1.0, 1.0, DIM**-0.5)
        with in_torch(theirs, _fwd_kernel=EXTENDING):
            theirs.extend_attention_fwd(q, k, v, ours, *rest)
        there = on_gpu(q, k, v, torch.zeros_like(q), *rest)
        theirs.extend_attention_fwd(*there)
        return apart(there[3], ours)

    yield worst("extend_attention_fwd (Triton), causal", ROUNDING, lambda seed: case(seed, False))
    yield worst("extend_attention_fwd (Triton), a tree's mask", ROUNDING, lambda seed: case(seed, True))


def flash_attention() -> Iterator[Held]:
    import torch
    from sgl_kernel.flash_attn import flash_attn_with_kvcache

    from specdebug.targets.sglang.inside import attention

    page, pages = 4, 64

    def case(seed: int, new: int, causal: bool) -> tuple[float, float]:
        generator = torch.Generator().manual_seed(seed)
        q = drawn(seed, 3 * new, HEADS, DIM)
        k, v = drawn(seed + 1, pages, page, KV_HEADS, DIM), drawn(seed + 2, pages, page, KV_HEADS, DIM)
        given = {
            "cache_seqlens": torch.randint(new, 60, (3,), generator=generator).int(),
            "page_table": torch.randperm(pages, generator=generator)[:48].view(3, 16).int(),
            "cu_seqlens_q": torch.arange(4, dtype=torch.int32) * new,
        }
        said = {"softmax_scale": DIM**-0.5, "causal": causal, "return_softmax_lse": True}
        ours, ours_lse = attention.flash_attn_with_kvcache(q, k, v, **given, **said)
        q, k, v = on_gpu(q, k, v)
        given = {name: each.cuda() for name, each in given.items()}
        theirs, theirs_lse, *_ = flash_attn_with_kvcache(q, k, v, **given, **said, max_seqlen_q=new)
        return apart(theirs, ours), float((theirs_lse.cpu() - ours_lse).abs().max())

    for new, causal in ((1, False), (5, True)):
        found = [case(seed, new, causal) for seed in range(CASES)]
        name = f"flash_attn_with_kvcache (FA3), {new} queries" + (", causal" if causal else "")
        yield Held(name, CASES, max(each[0] for each in found), ROUNDING)
        yield Held(f"{name}, log of the sums", CASES, max(each[1] for each in found), 1e-2)


def merged_states() -> Iterator[Held]:
    import torch
    from sgl_kernel import merge_state_v2

    from specdebug.targets.sglang.inside import attention

    def case(seed: int) -> float:
        v = drawn(seed, 12, HEADS, DIM), drawn(seed + 1, 12, HEADS, DIM)
        s = 3 * drawn(seed + 2, 12, HEADS).float(), 3 * drawn(seed + 3, 12, HEADS).float()
        s[0][3] = float("-inf")
        ours, ours_lse = attention.merge_state_v2(v[0], s[0], v[1], s[1])
        there = on_gpu(v[0], s[0].contiguous(), v[1], s[1].contiguous())
        theirs, theirs_lse = merge_state_v2(*there)
        return max(apart(theirs, ours), float((theirs_lse.cpu() - ours_lse).abs().max()) / 10)

    torch.cuda.synchronize()
    yield worst("merge_state_v2", ROUNDING, case)


def grown(seed: int, batch: int, topk: int, steps: int, nodes: int) -> tuple[Any, Any, Any]:
    """Parents, chosen candidates and their tokens of random drafts, by SGLang's own functions, on the GPU."""
    import torch
    from sglang.srt.speculative.eagle_utils import organize_draft_results
    from sglang.srt.speculative.spec_utils import select_top_k_tokens

    generator = torch.Generator(device="cuda").manual_seed(seed)
    lists: tuple[list[Any], list[Any], list[Any]] = [], [], []
    scores, hidden = None, torch.zeros(batch, 4, device="cuda")
    for step in range(steps):
        rows = batch if not step else batch * topk
        logits = torch.randn(rows, 64, device="cuda", generator=generator)
        p, index = logits.softmax(-1).topk(topk, dim=-1)
        _, hidden, scores, info = select_top_k_tokens(step, p, index, hidden, scores, topk)
        for kept, each in zip(lists, info, strict=True):
            kept.append(each)
    parents, chosen, tokens = organize_draft_results(*lists, nodes)
    return parents, chosen, tokens


def trees() -> Iterator[Held]:
    import sgl_kernel
    import torch

    from specdebug.targets.sglang.inside import sgl_kernel as ours

    batch, topk, steps, nodes, vocab = 3, 4, 4, 12, 64

    def tree(seed: int) -> tuple[list[Any], list[Any], Any]:
        parents, chosen, tokens = grown(seed, batch, topk, steps, nodes)
        lengths = torch.randint(1, 40, (batch,), generator=torch.Generator().manual_seed(seed))
        cells = int((lengths * nodes + nodes * nodes).sum())
        sides = []
        for build, device in (
            (sgl_kernel.build_tree_kernel_efficient, "cuda"),
            (ours.build_tree_kernel_efficient, "cpu"),
        ):
            links = [torch.full((batch, nodes), -1, dtype=torch.int64, device=device) for _ in range(3)]
            mask = torch.ones(cells, dtype=torch.bool, device=device)
            positions = torch.zeros(batch * nodes, dtype=torch.int64, device=device)
            given = [each.to(device) for each in (parents, chosen, lengths)]
            build(*given, mask, positions, *links, topk, steps, nodes, 0)
            sides.append([each.cpu() for each in (mask, positions, *links)])
        root = torch.randint(vocab, (batch, 1), generator=torch.Generator().manual_seed(seed))
        return sides[0], sides[1], torch.cat((root, tokens.cpu()), 1)

    def same(one: list[Any], other: list[Any]) -> float:
        return float(sum(int((left != right).sum()) for left, right in zip(one, other, strict=True)))

    def built(seed: int) -> float:
        theirs, own, _ = tree(seed)
        return same(theirs, own)

    def outputs(device: str) -> list[Any]:
        predicts = torch.zeros(batch * nodes, dtype=torch.int32, device=device)
        index = torch.full((batch, steps + 1), -1, dtype=torch.int32, device=device)
        return [predicts, index, torch.zeros(batch, dtype=torch.int32, device=device)]

    def greedy(seed: int) -> float:
        (_, _, *links), _, tokens = tree(seed)
        # the target wants what some child holds at most nodes, so that walks are long
        children = tokens.gather(1, links[1].clamp(min=0))
        wanted = torch.where(links[1] >= 0, children, 0)
        other = torch.randint(vocab, wanted.shape, generator=torch.Generator().manual_seed(seed))
        wanted = torch.where(other % 5 == 0, other, wanted)
        there, here = outputs("cuda"), outputs("cpu")
        sgl_kernel.verify_tree_greedy(*there, *on_gpu(tokens, *links, wanted))
        ours.verify_tree_greedy(*here, tokens, *links, wanted)
        return same([each.cpu() for each in there], here)

    def sampled(seed: int) -> float:
        (_, _, *links), _, tokens = tree(seed)
        generator = torch.Generator().manual_seed(seed)
        probs = (3 * torch.randn(batch, nodes, vocab, generator=generator)).softmax(-1)
        # one coin for all nodes of a request: the kernel takes a node's, the stand-in a step's
        coins = torch.rand(batch, 1, generator=generator).expand(batch, nodes).contiguous()
        last = torch.rand(batch, generator=generator)
        there, here = outputs("cuda"), outputs("cpu")
        given = [tokens, *links, coins, last, probs, torch.zeros_like(probs)]
        sgl_kernel.tree_speculative_sampling_target_only(*there, *on_gpu(*given), 1.0, 1.0, True)
        ours.tree_speculative_sampling_target_only(*here, *given, 1.0, 1.0, True)
        return same([each.cpu() for each in there], here)

    yield worst("build_tree_kernel_efficient", 0.0, built)
    yield worst("verify_tree_greedy", 0.0, greedy)
    yield worst("tree_speculative_sampling_target_only", 0.0, sampled)


def renormalised() -> Iterator[Held]:
    import sgl_kernel
    import torch

    from specdebug.targets.sglang.inside import sgl_kernel as ours

    def case(seed: int, name: str, limits: Any) -> float:
        probs = (2 * torch.randn(4, 256, generator=torch.Generator().manual_seed(seed))).softmax(-1)
        theirs = getattr(sgl_kernel, name)(probs.cuda(), limits.cuda()).cpu()
        return float((theirs - getattr(ours, name)(probs, limits)).abs().max())

    ks, ps = torch.tensor([1, 5, 40, 256], dtype=torch.int32), torch.tensor([0.1, 0.5, 0.9, 1.0])
    yield worst("top_k_renorm_prob", 1e-5, lambda seed: case(seed, "top_k_renorm_prob", ks))
    yield worst("top_p_renorm_prob", 1e-5, lambda seed: case(seed, "top_p_renorm_prob", ps))


def wrappers() -> Iterator[Held]:
    import flashinfer
    import torch

    from specdebug.targets.sglang.inside import flashinfer as ours

    scale = DIM**-0.5

    def workspace() -> Any:
        return torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")

    def pool(seed: int) -> tuple[Any, Any]:
        return drawn(seed + 1, SLOTS, KV_HEADS, DIM), drawn(seed + 2, SLOTS, KV_HEADS, DIM)

    def decode(seed: int) -> float:
        _, indptr, slots = requests(seed)
        q, kv, last = drawn(seed, 4, HEADS, DIM), pool(seed), torch.ones(4, dtype=torch.int32)
        own = ours.BatchDecodeWithPagedKVCacheWrapper(torch.empty(1))
        own.plan(indptr, slots.int(), last, HEADS, KV_HEADS, DIM, 1)
        real = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(), "NHD", use_tensor_cores=True)
        kinds = {"q_data_type": torch.bfloat16, "data_type": torch.bfloat16}
        real.plan(*on_gpu(indptr, slots.int(), last), HEADS, KV_HEADS, DIM, 1, **kinds)
        paged = tuple(each.unsqueeze(1).cuda() for each in kv)
        return apart(real.forward(q.cuda(), paged, sm_scale=scale), own.forward(q, kv, sm_scale=scale))

    def prefill(seed: int, masked: bool) -> float:
        lengths, indptr, slots = requests(seed)
        new = 5
        lengths = [length + new for length in lengths]
        indptr = torch.tensor([0, *lengths]).cumsum(0).int()
        slots = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(seed))[: int(indptr[-1])].int()
        q, kv, last = drawn(seed, 4 * new, HEADS, DIM), pool(seed), torch.ones(4, dtype=torch.int32)
        rows, mask = torch.arange(5, dtype=torch.int32) * new, None
        if masked:
            generator = torch.Generator().manual_seed(seed)
            parts = [torch.rand(new, length, generator=generator) < 0.7 for length in lengths]
            for part in parts:
                part[:, 0] = True
            mask = torch.cat([part.flatten() for part in parts])
        own = ours.BatchPrefillWithPagedKVCacheWrapper(torch.empty(1))
        own.plan(rows, indptr, slots, last, HEADS, KV_HEADS, DIM, 1, custom_mask=mask)
        real = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD", backend="fa2")
        there = on_gpu(rows, indptr, slots, last)
        kinds = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
        real.plan(
            *there,
            HEADS,
            KV_HEADS,
            DIM,
            1,
            custom_mask=None if mask is None else mask.cuda(),
            causal=not masked,
            **kinds,
        )
        paged = tuple(each.unsqueeze(1).cuda() for each in kv)
        said = {"causal": not masked, "sm_scale": scale}
        return apart(real.forward(q.cuda(), paged, **said), own.forward(q, kv, **said))

    def ragged(seed: int) -> float:
        _, indptr, _ = requests(seed)
        total = int(indptr[-1])
        q, k, v = (
            drawn(seed, total, HEADS, DIM),
            drawn(seed + 1, total, KV_HEADS, DIM),
            drawn(seed + 2, total, KV_HEADS, DIM),
        )
        own = ours.BatchPrefillWithRaggedKVCacheWrapper(torch.empty(1))
        own.begin_forward(indptr, indptr, HEADS, KV_HEADS, DIM)
        real = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(), "NHD")
        kinds = {"q_data_type": torch.bfloat16}
        real.begin_forward(*on_gpu(indptr, indptr), HEADS, KV_HEADS, DIM, **kinds)
        said = {"causal": True, "sm_scale": scale}
        return apart(real.forward(*on_gpu(q, k, v), **said), own.forward(q, k, v, **said))

    yield worst("BatchDecodeWithPagedKVCacheWrapper (FlashInfer)", ROUNDING, decode)
    yield worst("BatchPrefillWithPagedKVCacheWrapper, causal", ROUNDING, lambda seed: prefill(seed, False))
    yield worst("BatchPrefillWithPagedKVCacheWrapper, a mask", ROUNDING, lambda seed: prefill(seed, True))
    yield worst("BatchPrefillWithRaggedKVCacheWrapper", ROUNDING, ragged)


KERNELS: tuple[Callable[[], Iterator[Held]], ...] = (
    decode_attention, extend_attention, flash_attention, merged_states, trees, renormalised, wrappers,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
