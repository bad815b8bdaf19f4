"""Make all three checkpoints from nothing: tokenizer, target, EAGLE head, EAGLE-3 head, then measure them.

    python tools/train_all.py --out specdebug/_assets/checkpoints --device cuda
    python tools/train_all.py --out /tmp/toy --device cpu --scale 0.001

About five minutes on one H200. ``--scale`` multiplies steps and batches; at 0.001 it is a smoke test.
Every stage writes its folder as it goes, so an interrupted run leaves what it had.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from eval_draft import evaluate
from train_draft import ROUNDS, prepare, train_draft
from train_target import train_target
from train_tokenizer import train_tokenizer


def train_all(out: Path, *, device: torch.device, scale: float, target_steps: int, draft_steps: int) -> None:
    """Write ``tiny``, ``tiny-eagle`` and ``tiny-eagle3`` under ``out``."""
    began = time.perf_counter()
    target = out / "tiny"
    # Batches keep their size down to a twentieth of the steps; below that they shrink too, for a CPU.
    small = min(1.0, scale * 20)
    train_tokenizer(target)
    train_target(
        target,
        device=device,
        steps=max(2, round(target_steps * scale)),
        batch=max(1, round(8 * small)),
        length=2048 if small == 1.0 else 128,
    )
    material = prepare(
        target,
        device=device,
        rows=max(4, round(2048 * small)),
        shapes=ROUNDS if small == 1.0 else ((32, 16, 0.5), (48, 16, 0.5)),
    )
    for kind in ("eagle", "eagle3"):
        train_draft(
            material,
            out / f"tiny-{kind}",
            kind=kind,
            device=device,
            steps=max(2, round(draft_steps * scale)),
            batch_tokens=max(256, round(16384 * small)),
        )
    print(f"trained in {time.perf_counter() - began:.0f} s", flush=True)
    evaluate(
        str(target),
        [str(out / "tiny-eagle"), str(out / "tiny-eagle3")],
        device=device,
        prompt_lengths=[128, 661, 1000] if small == 1.0 else [32],
        rows=64 if small == 1.0 else 2,
        new_tokens=128 if small == 1.0 else 16,
        num_steps=5,
    )
    print(f"done in {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--target-steps", type=int, default=1500)
    parser.add_argument("--draft-steps", type=int, default=2800)
    args = parser.parse_args()
    train_all(
        args.out,
        device=torch.device(args.device),
        scale=args.scale,
        target_steps=args.target_steps,
        draft_steps=args.draft_steps,
    )
