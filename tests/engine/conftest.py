"""Checkpoints that several engine tests share, made or loaded once for each process.

transformers takes seconds to import, so only what uses these fixtures waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specdebug import async_probe
from tests.engine.oracle import GreedyOracle

if TYPE_CHECKING:
    from transformers import DeepseekV3ForCausalLM, LlamaForCausalLM

VOCAB = 24
ORACLE_LENGTH = 24


@dataclass(frozen=True)
class Lab:
    """A target with its draft models, and what Hugging Face says the target's text is."""

    target: Path
    eagle: Path
    eagle3: Path | None
    assistant: Path | None
    model: LlamaForCausalLM | DeepseekV3ForCausalLM
    oracle: GreedyOracle
    mtp: Path | None = None
    """A folder of next-n layers, a checkpoint for each number of them, chained or not."""

    def draft(self, algorithm: str) -> Path:
        found = {"EAGLE": self.eagle, "EAGLE3": self.eagle3, "FROZEN_KV_MTP": self.assistant}[algorithm]
        assert found is not None, f"this target has no draft for {algorithm}"
        return found

    def next_n(self, layers: int, *, chained: bool = False) -> Path:
        assert self.mtp is not None
        return self.mtp / f"{layers}{'-chained' if chained else ''}"

    @property
    def vocab(self) -> int:
        return self.model.config.vocab_size


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Random weights: fast, and its text mixes runs that its heads guess with surprises."""
    from tests.engine.checkpoints import make_assistant, make_eagle, make_eagle3, make_mtp, make_target

    folder = tmp_path_factory.mktemp("checkpoints")
    target, eagle, eagle3, assistant = (folder / name for name in ("target", "eagle", "eagle3", "assistant"))
    model = make_target(target, vocab=VOCAB, seed=2)
    make_eagle(eagle, target)
    make_eagle3(eagle3, target)
    make_assistant(assistant, target)
    found = Lab(target, eagle, eagle3, assistant, model, GreedyOracle(model, ORACLE_LENGTH), folder / "mtp")
    for layers, chained in product((2, 3, 4), (False, True)):
        make_mtp(found.next_n(layers, chained=chained), target, layers=layers, chained=chained)
    return found


@pytest.fixture(scope="session")
def latent_lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A random target with latent attention and a layer of experts, and its next-n layer as a draft."""
    return _latent_lab(tmp_path_factory.mktemp("latent"))


@pytest.fixture(scope="session")
def wide_latent_lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The same with rows of the widths that kernels on a GPU have."""
    return _latent_lab(tmp_path_factory.mktemp("wide"), qk_rope_head_dim=16)


def _latent_lab(folder: Path, **overrides: int) -> Lab:
    from tests.engine.mla_checkpoints import make_nextn, make_target

    target, draft = folder / "target", folder / "draft"
    shape = {"vocab_size": VOCAB, "eos_token_id": VOCAB - 1, "first_k_dense_replace": 3, **overrides}
    model = make_target(target, seed=2, **shape)
    make_nextn(draft, target)
    return Lab(target, draft, None, None, model, GreedyOracle(model, ORACLE_LENGTH))


@pytest.fixture
def recording() -> Iterator[None]:
    """Every probe records."""
    async_probe.configure("record")
    yield
    async_probe.configure("off")
