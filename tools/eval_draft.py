"""Measure accept lengths of a head on held-out text: greedy target, chains of ``--num-steps``, topk 1.

    python tools/eval_draft.py --target tiny --draft tiny-eagle3

Every prompt is continued greedily by the dense reference; the head then drafts along that text. The mean is
over all verifies of all prompts and counts the bonus token.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor
from training import corpus_tokens

from specdebug import corpus
from specdebug.assets import checkpoint_path, tokenizer_path
from specdebug.reference import (
    DraftHead,
    ModelConfig,
    accept_lengths,
    chain_matches,
    greedy_generate,
    load_draft,
    load_weights,
    target_forward,
)


@dataclass(frozen=True)
class Continuations:
    """Greedy texts int64 [rows, n] after prompts of one length, and what either head reads of the target."""

    prompt_length: int
    ids: Tensor
    hidden: Tensor
    aux: Tensor


@torch.no_grad()
def greedy_texts(weights: dict[str, Tensor], config: ModelConfig, prompts: Tensor, new_tokens: int) -> Continuations:
    """Continue prompts int64 [rows, n] greedily and keep the target's states at every position."""
    ids = greedy_generate(weights, config, prompts, new_tokens)
    states = [target_forward(weights, config, row)[1:] for row in torch.split(ids, 8)]
    return Continuations(
        prompts.shape[1],
        ids,
        torch.cat([hidden for hidden, _ in states]),
        torch.cat([aux for _, aux in states]),
    )


def heldout_prompts(tokenizer: Tokenizer, rows: int, length: int) -> Tensor:
    """Evenly spaced windows of the held-out text, int64 [rows, length]."""
    tokens = corpus_tokens(tokenizer, corpus.heldout_files())
    starts = torch.linspace(0, len(tokens) - length - 1, rows).long()
    return tokens[starts[:, None] + torch.arange(length)]


def measure(head: DraftHead, texts: Continuations, num_steps: int) -> Counter[int]:
    """How many verifies yielded how many tokens."""
    lengths: Counter[int] = Counter()
    states = texts.aux if head.is_eagle3 else texts.hidden
    for ids, state in zip(texts.ids, states, strict=True):
        matches = chain_matches(head, ids, state, num_steps)
        lengths.update(accept_lengths(matches.cpu(), texts.prompt_length))
    return lengths


def mean_length(lengths: Counter[int]) -> float:
    """Tokens a verify, bonus included."""
    return sum(length * count for length, count in lengths.items()) / lengths.total()


def evaluate(
    target: str,
    drafts: list[str],
    *,
    device: torch.device,
    prompt_lengths: list[int],
    rows: int,
    new_tokens: int,
    num_steps: int,
) -> dict[tuple[str, int], float]:
    """Print one line a head and prompt length; return the means."""
    weights, config = load_weights(checkpoint_path(target), device=device)
    tokenizer = Tokenizer.from_file(str(tokenizer_path(target)))
    means = {}
    for length in prompt_lengths:
        prompts = heldout_prompts(tokenizer, rows, length).to(device)
        texts = greedy_texts(weights, config, prompts, new_tokens)
        for draft in drafts:
            head = load_draft(checkpoint_path(draft), weights, config, device=device)
            lengths = measure(head, texts, num_steps)
            means[draft, length] = mean_length(lengths)
            shares = "  ".join(f"{n}:{lengths[n] / lengths.total():.2f}" for n in range(1, num_steps + 2))
            print(
                f"{draft}  prompts {rows} x {length}  accept length {means[draft, length]:.2f}  ({shares})",
                flush=True,
            )
    return means


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="tiny")
    parser.add_argument("--draft", action="append", help="may be repeated; both shipped heads when not given")
    parser.add_argument("--device", default="cpu", choices=["cuda", "cpu"])
    parser.add_argument("--prompt-length", type=int, nargs="+", default=[128, 661, 1000])
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--num-steps", type=int, default=5)
    args = parser.parse_args()
    evaluate(
        args.target,
        args.draft or ["tiny-eagle", "tiny-eagle3"],
        device=torch.device(args.device),
        prompt_lengths=args.prompt_length,
        rows=args.rows,
        new_tokens=args.new_tokens,
        num_steps=args.num_steps,
    )
