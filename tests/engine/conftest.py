"""Checkpoints that several engine tests share, made or loaded once for each process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from specdebug.assets import checkpoint_path
from tests.engine.checkpoints import make_eagle, make_eagle3, make_target
from tests.engine.oracle import GreedyOracle

VOCAB = 24


@dataclass(frozen=True)
class Lab:
    """A target with its two heads, and what Hugging Face says the target's text is."""

    target: Path
    eagle: Path
    eagle3: Path
    model: LlamaForCausalLM
    oracle: GreedyOracle

    def draft(self, algorithm: str) -> Path:
        return self.eagle3 if algorithm == "EAGLE3" else self.eagle

    @property
    def vocab(self) -> int:
        return self.model.config.vocab_size


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Random weights: fast, and its text mixes runs that its heads guess with surprises."""
    folder = tmp_path_factory.mktemp("checkpoints")
    model = make_target(folder / "target", vocab=VOCAB, seed=2)
    make_eagle(folder / "eagle", folder / "target")
    make_eagle3(folder / "eagle3", folder / "target")
    return Lab(folder / "target", folder / "eagle", folder / "eagle3", model, GreedyOracle(model, 24))


@pytest.fixture(scope="session")
def shipped() -> Lab:
    """The checkpoints in the wheel, whose drafts are right most of the time."""
    paths = [checkpoint_path(name) for name in ("tiny", "tiny-eagle", "tiny-eagle3")]
    model = AutoModelForCausalLM.from_pretrained(paths[0], dtype=torch.float32).eval()
    return Lab(*paths, model, GreedyOracle(model, 24))
