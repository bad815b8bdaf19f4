"""SGLang's probes become ours, wherever they have been imported to, and what is read of a verify's buffers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug import async_probe
from specdebug.targets.sglang.inside.probes import _Probes
from specdebug.targets.sglang.inside.stages import _of_nodes_alone, tree_masks
from specdebug.targets.sglang.sites import SITES, site_of

UPSTREAM = """
def maybe_detect_nan(tensor, msg=""):
    raise AssertionError("upstream's own")

maybe_detect_inf = lambda tensor, msg="": maybe_detect_nan(tensor)


def maybe_detect_oob(indices, low, high, msg):
    maybe_detect_nan(indices)


def maybe_detect_page_aligned(indices, page_size, msg):
    maybe_detect_nan(indices)
"""
SCHEDULER = """
import torch
from sglang.srt.utils.async_probe import maybe_detect_nan, maybe_detect_oob, maybe_detect_page_aligned, maybe_detect_inf


class Scheduler:
    def run_batch(self, ids):
        maybe_detect_oob(torch.tensor(ids), 0, 10, "v2 prepare_for_verify input_ids")
        maybe_detect_nan(torch.tensor([float("nan")]), f"some new place {len(ids)}")
        maybe_detect_nan(None)
        maybe_detect_inf(torch.ones(2), msg="verify: target model logits")
        maybe_detect_page_aligned(torch.tensor(ids), 1, "x")
        return len(ids)
"""
MAIN = """
from specdebug import async_probe
from specdebug.targets.sglang.inside.probes import probe
from sglang.srt.managers.scheduler import Scheduler
async_probe.configure("record")
probe()
print(Scheduler().run_batch([1, 12, 13]))
for finding in async_probe.poll():
    print(finding.signature, finding.count)
print(async_probe.reached()["verify.input_ids"])
async_probe.configure("assert")
try:
    Scheduler().run_batch([1, 12])
except RuntimeError as error:
    print(async_probe.parse_message(str(error)).signature)
"""


def played(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """A script that has run beside modules that stand for SGLang's."""
    for name, text in (("utils/async_probe", UPSTREAM), ("managers/scheduler", SCHEDULER)):
        file = folder / "sglang" / "srt" / f"{name}.py"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    (folder / "main.py").write_text(script)
    root = Path(__file__).resolve().parents[4]
    command = [sys.executable, str(folder / "main.py")]
    return subprocess.run(command, env={"PYTHONPATH": f"{folder}:{root}"}, capture_output=True, text=True)


def test_its_calls_are_ours_by_our_names_of_the_sites(tmp_path: Path) -> None:
    done = played(tmp_path, MAIN)
    assert done.returncode == 0, done.stderr
    found = ["oob@verify.input_ids 2", "nan@sglang.some_new_place_n 1"]
    assert done.stdout.splitlines() == ["3", *found, "1", "oob@verify.input_ids"]


@pytest.mark.parametrize(
    ("words", "site"),
    [
        ("draft_forward step 3: topk_index OOB vs vocab_size=2048", "draft.forward.topk_index"),
        ("draft_forward step 3", "draft.forward.logits"),
        ("verify: target_probs after top_p_renorm", "sampler.top_p.probs"),
        ("set_mla_kv_buffer (MLA)", "kv_pool.write.loc"),
        ("v2 prepare_for_extend_to_fill_draft_kvcache input_ids", "draft_extend.input_ids"),
        ("v2 prepare_for_draft_extend input_ids", "draft_extend.input_ids"),
        ("", "sglang.unnamed"),
    ],
)
def test_upstream_s_words_are_our_sites(words: str, site: str) -> None:
    assert site_of(words) == site
    assert len({pattern for pattern, _ in SITES}) == len(SITES)


@pytest.fixture
def found() -> Iterator[Any]:
    async_probe.configure("record")
    yield lambda: [finding.signature for finding in async_probe.drain()]
    async_probe.configure("off")


def test_draft_positions_are_the_length_and_the_step_and_padding_is_not_looked_at(found: Any) -> None:
    def forward(positions: list[int]) -> Any:
        return SimpleNamespace(positions=torch.tensor(positions), seq_lens=torch.tensor([7, 9, 1]))

    _Probes().draft_positions(forward([8, 8, 10, 10, 0, 0]), 1)
    assert found() == []
    _Probes().draft_positions(forward([8, 8, 10, 11, 0, 0]), 1)
    assert found() == ["oob@draft.forward.positions"]


def test_behind_a_chunk_comes_the_prompt_s_next_token(found: Any) -> None:
    chunked = object()
    batch = SimpleNamespace(chunked_req_next_prompt_token=5, reqs=[object(), chunked], chunked_req=chunked)
    _Probes().chunk_tail(torch.tensor([3, 5]), batch)
    assert found() == []
    _Probes().chunk_tail(torch.tensor([5, 3]), batch)
    assert found() == ["oob@draft_prefill.input_ids"]
    batch.chunked_req_next_prompt_token = None
    _Probes().chunk_tail(torch.tensor([5, 3]), batch)
    assert found() == []


@pytest.mark.parametrize(
    ("where", "value", "signature"),
    [
        ("", 0, []),
        ("predict", 90, ["oob@accept.predict"]),
        ("accept_index", 6, ["oob@accept.accept_index"]),
        ("num_correct_drafts", 2, ["oob@accept.num_correct_drafts"]),
    ],
)
def test_a_verify_accepts_no_more_than_its_nodes(found: Any, where: str, value: int, signature: list[str]) -> None:
    decided = {
        "predict": torch.tensor([8, 0, 0, 7, 0, 9]),
        "accept_index": torch.tensor([[0, -1], [3, 5]]),
        "num_correct_drafts": torch.tensor([0, 1]),
    }
    if where:
        decided[where].view(-1)[-1] = value
    _Probes().accepted(**decided, batch=SimpleNamespace(model_config=SimpleNamespace(vocab_size=90)))
    assert found() == signature


def test_a_branch_lies_on_no_more_pages_than_its_row_has_columns(found: Any) -> None:
    table, slots = torch.zeros(2, 2), torch.tensor([[6, 7, 8, 9], [10, 11, 12, 13]])
    _Probes().expand_page_table(table, slots, 4)
    assert found() == []
    _Probes().expand_page_table(table, torch.tensor([[6, 7, 8, 12], [8, 9, 10, 11]]), 4)
    assert found() == ["oob@draft.expand_page_table"]


TREES = [[[1, 0], [1, 1]], [[1, 0], [0, 1]]]
BEHIND = [1, 0, 1, 1, 0]


@pytest.mark.parametrize("alone", [True, False])
def test_each_tree_is_read_out_of_a_buffer_that_is_longer(alone: bool) -> None:
    contexts = [0, 0] if alone else [3, 1]
    flat = [cell for tree, length in zip(TREES, contexts, strict=True) for row in tree for cell in [1] * length + row]
    masks = tree_masks(torch.tensor(flat + BEHIND), [3, 1], 2, alone=alone)
    assert [mask.int().tolist() for mask in masks] == TREES


FULL, ALONE = (SimpleNamespace(mode=SimpleNamespace(name=name)) for name in ("FULL_MASK", "QLEN_ONLY"))


@pytest.mark.parametrize(
    ("default", "owned", "alone"), [(FULL, None, False), (ALONE, None, True), (FULL, ALONE, True), (ALONE, FULL, False)]
)
def test_the_backend_s_own_buffer_decides_how_masks_lie(default: Any, owned: Any, alone: bool) -> None:
    backends = [SimpleNamespace(verify_mask=owned), *([SimpleNamespace()] if owned is None else [])]
    for backend in backends:
        target = SimpleNamespace(model_runner=SimpleNamespace(attn_backend=backend))
        assert _of_nodes_alone(SimpleNamespace(tree_mask_mode=default.mode, target_worker=target)) is alone
