"""The speculative workers with the shipped checkpoints: whom each serves, and what drafts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file, save_file

from benchmarks.lossless.draw import Draft, Prompt, Served, families
from benchmarks.lossless.reference import HuggingFace
from specdebug.base.assets import checkpoint_path, tokenizer_path
from specdebug.base.corpus import heldout_text
from specdebug.engine.model.tokenizer import TargetTokenizer

LLAMA, DEEPSEEK = "tiny", "tiny-mla"
CHARACTERS = 12_000
"""Of held-out text, from which prompts are cut."""


def _heads(worker: str) -> tuple[Draft, ...]:
    return (Draft("EAGLE", "tiny-eagle", worker), Draft("EAGLE3", "tiny-eagle3", worker))


def _next_n(folder: Path) -> tuple[Draft, ...]:
    """The shipped layers; and in ``folder`` the first one and two of them, and all as layers that chain hidden states.

    The latter were trained for something else. They draft worse, and that may not change a text.
    """
    shipped = checkpoint_path("tiny-mtp")
    config = json.loads((shipped / "config.json").read_text())
    count, tensors = config["num_nextn_predict_layers"], load_file(shipped / "model.safetensors")
    drafts = [Draft("MTP", "tiny-mtp", steps=count)]
    for layers, chained in ((1, False), (2, False), (2, True), (count, True)):
        made = folder / f"next-{layers}{'-chained' if chained else ''}"
        made.mkdir()
        changed = {**config, "num_nextn_predict_layers": layers, "mtp_chain_hidden_states": chained}
        (made / "config.json").write_text(json.dumps(changed))
        last = config["num_hidden_layers"] + layers
        save_file({name: each for name, each in tensors.items() if _layer_of(name) < last}, made / "model.safetensors")
        drafts.append(Draft("MTP", str(made), steps=layers))
    return tuple(drafts)


def _layer_of(name: str) -> int:
    """Of a tensor ``model.layers.N.*``: N."""
    return int(name.split(".")[2])


WORKERS: dict[str, tuple[str, Callable[[Path], tuple[Draft, ...]]]] = {
    "v2": (LLAMA, lambda _: _heads("v2")),
    "v1": (LLAMA, lambda _: _heads("v1")),
    "mtp": (LLAMA, _next_n),
    "frozen-kv": (LLAMA, lambda _: (Draft("FROZEN_KV_MTP", "tiny-assistant"),)),
    "mla": (DEEPSEEK, lambda _: (Draft("EAGLE", "tiny-mla-eagle"), Draft("EAGLE", "tiny-mla-eagle", "v1"))),
    "none": (LLAMA, lambda _: ()),
}
"""By name: the target's checkpoint, and what makes its drafts, given a folder for those that are made. ``none``: plain
decoding, the measure of what is not the drafts' doing."""


class Targets:
    """transformers' models of the shipped targets, loaded when first asked for, each with prompts for it."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._models: dict[tuple[str, str], HuggingFace] = {}
        self._prompts: dict[str, list[list[Prompt]]] = {}

    def model(self, checkpoint: str, dtype: str) -> HuggingFace:
        """The target in ``dtype``."""
        key = (checkpoint, dtype)
        if key not in self._models:
            self._models[key] = HuggingFace.load(checkpoint, dtype, self._device)
        return self._models[key]

    def serve(self, checkpoint: str, drafts: tuple[Draft, ...]) -> Served:
        """The target with these drafts. Prompts are those of the float32 model, whatever the dtype it is served in."""
        exact = self.model(checkpoint, "float32")
        if checkpoint not in self._prompts:
            text = TargetTokenizer(tokenizer_path(checkpoint)).encode(heldout_text()[:CHARACTERS])
            self._prompts[checkpoint] = families(text, exact.continuation)
        config = json.loads((checkpoint_path(checkpoint) / "config.json").read_text())
        return Served(checkpoint, drafts, self._prompts[checkpoint], exact.continuation, config["eos_token_id"])
