"""Probe sites that an engine lacks: which patches are for a release, and what their calls hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug import async_probe
from specdebug.base.content import shipped_root
from specdebug.base.errors import ContentError
from specdebug.targets.installs.fit import added_sites, read_sites
from specdebug.targets.installs.store import Installed
from specdebug.targets.sglang.inside.probes import _Probes

FILE = """
engine: toyserve
patches:
  ">=1,<2":
    - {target: "toyserve.a:f", edits: [{match: return 1, replacement: "probe()\\nreturn 1"}]}
"""


def release(version: str) -> Installed:
    return Installed(Path("x"), "toyserve", version, "cpu", "python", False)


def test_a_release_gets_the_patches_of_its_range(tmp_path: Path) -> None:
    (tmp_path / "toyserve.yaml").write_text(FILE)
    (patch,) = added_sites(release("1.5"), tmp_path)
    assert (patch.target, patch.owner, [edit.id for edit in patch.edits]) == (
        "toyserve.a:f",
        "probe sites",
        ["sites#1"],
    )
    assert added_sites(release("2.0"), tmp_path) == ()
    assert added_sites(release("1.5"), tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("old", "new"), [("engine: toyserve", "engine: other"), (">=1,<2", "one"), ("match:", "mach:")]
)
def test_a_malformed_file_is_refused(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "toyserve.yaml").write_text(FILE.replace(old, new))
    with pytest.raises(ContentError):
        read_sites(tmp_path / "toyserve.yaml")


def test_every_shipped_call_is_one_that_there_is() -> None:
    files = list((shipped_root() / "probes" / "sites").glob("*.yaml"))
    assert files
    for file in files:
        for patches in read_sites(file).values():
            for edit in (edit for patch in patches for edit in patch.edits):
                (call,) = (line for line in edit.replacement.splitlines() if "__specdebug_probes__" in line)
                assert hasattr(_Probes, call.partition("__.")[2].partition("(")[0])
                assert [line for line in edit.replacement.splitlines() if line != call] == edit.match.splitlines()


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
