"""Make the shipped checkpoints: a tokenizer, two targets and their draft heads; then measure the heads.

    python tools/train_all.py --out specdebug/_assets/checkpoints --device cuda
    python tools/train_all.py --out DIR --device cuda --only tiny-mtp,tiny-assistant
    python tools/train_all.py --out /tmp/toy --device cpu --scale 0.001

Without ``--only`` everything is made from nothing. A draft alone is made for the target in ``--out``, or for the
shipped one where there is none. ``--scale`` multiplies steps and batches; at 0.001 it is a smoke test. Every stage
writes its folder as it goes, so an interrupted run leaves what it had.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from eval_draft import evaluate
from train_draft import ROUNDS, prepare, train_draft
from train_target import TARGETS, train_target
from train_tokenizer import train_tokenizer

from specdebug.base.assets import tokenizer_path


@dataclass(frozen=True)
class Head:
    """A draft to make: its kind, and the steps of the chains that it is measured by."""

    kind: str
    num_steps: int


RECIPES = {
    "tiny": {
        "tiny-eagle": Head("eagle", 5),
        "tiny-eagle3": Head("eagle3", 5),
        "tiny-mtp": Head("mtp", 3),
        "tiny-assistant": Head("assistant", 3),
    },
    "tiny-mla": {"tiny-mla-eagle": Head("nextn", 5)},
}
KINDS = {"tiny": "llama", "tiny-mla": "mla"}
NAMES = [name for target, heads in RECIPES.items() for name in (target, *heads)]


@dataclass(frozen=True)
class Scale:
    """How much of the full recipe is done. Batches keep their size down to a twentieth of the steps; below that they
    shrink too, for a CPU."""

    steps: float

    @property
    def small(self) -> float:
        return min(1.0, self.steps * 20)

    @property
    def full(self) -> bool:
        return self.small == 1.0


def make_target(name: str, out: Path, device: torch.device, scale: Scale, steps: int) -> None:
    """Train a target in ``out``; the second one takes the first one's tokenizer."""
    folder = out / name
    if name == "tiny":
        train_tokenizer(folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = tokenizer_path(find(out, "tiny"))
        for file in (tokenizer, tokenizer.parent / "tokenizer_config.json"):
            shutil.copy(file, folder / file.name)
    train_target(
        folder,
        device=device,
        steps=max(2, round(steps * scale.steps)),
        batch=max(1, round(8 * scale.small)),
        length=2048 if scale.full else 128,
        config=TARGETS[KINDS[name]],
    )


def make_heads(target: str, heads: dict[str, Head], out: Path, device: torch.device, scale: Scale, steps: int) -> None:
    """Train a target's heads in ``out``, and measure them."""
    material = prepare(
        find(out, target),
        device=device,
        rows=max(4, round(2048 * scale.small)),
        shapes=ROUNDS if scale.full else ((32, 16, 0.5), (48, 16, 0.5)),
    )
    for name, head in heads.items():
        train_draft(
            material,
            out / name,
            kind=head.kind,
            device=device,
            steps=max(2, round(steps * scale.steps)),
            batch_tokens=max(256, round(16384 * scale.small)),
        )
    for num_steps in sorted({head.num_steps for head in heads.values()}):
        evaluate(
            find(out, target),
            [str(out / name) for name, head in heads.items() if head.num_steps == num_steps],
            device=device,
            prompt_lengths=[128, 661, 1000] if scale.full else [32],
            rows=64 if scale.full else 2,
            new_tokens=128 if scale.full else 16,
            num_steps=num_steps,
        )


def find(out: Path, target: str) -> str:
    """The target in ``out``, or the shipped one's name where there is none."""
    return str(out / target) if (out / target / "config.json").exists() else target


def train_all(
    out: Path, *, device: torch.device, scale: Scale, target_steps: int, draft_steps: int, only: Collection[str]
) -> None:
    """Write the checkpoints named in ``only`` under ``out``."""
    began = time.perf_counter()
    for target, recipes in RECIPES.items():
        if target in only:
            make_target(target, out, device, scale, target_steps)
        heads = {name: head for name, head in recipes.items() if name in only}
        if heads:
            make_heads(target, heads, out, device, scale, draft_steps)
        print(f"{target}: {time.perf_counter() - began:.0f} s since the start", flush=True)


def named(text: str) -> list[str]:
    """The names in a list with commas. Raises ArgumentTypeError for one that is no checkpoint's."""
    unknown = sorted(set(text.split(",")) - set(NAMES))
    if unknown:
        raise argparse.ArgumentTypeError(f"no checkpoint '{unknown[0]}'; there are {', '.join(NAMES)}")
    return text.split(",")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--target-steps", type=int, default=1500)
    parser.add_argument("--draft-steps", type=int, default=2800)
    parser.add_argument("--only", type=named, default=NAMES, help="names with commas between; all if not given")
    args = parser.parse_args()
    train_all(
        args.out,
        device=torch.device(args.device),
        scale=Scale(args.scale),
        target_steps=args.target_steps,
        draft_steps=args.draft_steps,
        only=args.only,
    )
