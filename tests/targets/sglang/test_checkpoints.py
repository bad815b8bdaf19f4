"""Draft heads as SGLang reads them."""

from __future__ import annotations

import json
from pathlib import Path

from specdebug.base.assets import checkpoint_path
from specdebug.targets.sglang.checkpoints import draft_folder


def test_a_head_with_tied_embeddings_gets_a_folder_of_links(tmp_path: Path) -> None:
    own = checkpoint_path("tiny-eagle").resolve()
    made = draft_folder("tiny-eagle", tmp_path)
    assert json.loads((own / "config.json").read_text())["tie_word_embeddings"] is True
    assert json.loads((made / "config.json").read_text())["tie_word_embeddings"] is False
    assert (made / "model.safetensors").resolve() == own / "model.safetensors"
    assert draft_folder("tiny-eagle", tmp_path) == made


def test_a_head_without_is_taken_as_it_is(tmp_path: Path) -> None:
    assert draft_folder("tiny-eagle3", tmp_path) == checkpoint_path("tiny-eagle3").resolve()
    assert list(tmp_path.iterdir()) == []
