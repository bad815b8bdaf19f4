"""Measure accept lengths of a head on held-out text: greedy target, chains of ``--num-steps``, topk 1.

    python tools/eval_draft.py --target tiny --draft tiny-eagle3
    python tools/eval_draft.py --target tiny --draft tiny-mtp tiny-assistant --num-steps 3

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

from specdebug.base import corpus
from specdebug.base.assets import checkpoint_path, tokenizer_path
from specdebug.reference.config import ModelConfig
from specdebug.reference.draft import (
    AssistantHead,
    MTPHead,
    accept_lengths,
    assistant_matches,
    chain_matches,
    frozen_kv,
    mtp_matches,
)
from specdebug.reference.target import DenseCache, greedy_generate, target_forward
from specdebug.reference.weights import Draft, load_draft, load_weights


@dataclass(frozen=True)
class Text:
    """A greedy text int64 [n], and all that a head can read of the target: states [n, H] and [n, 3H], keys and values
    of a batch of one."""

    ids: Tensor
    hidden: Tensor
    aux: Tensor
    cache: DenseCache


@torch.no_grad()
def read_text(weights: dict[str, Tensor], config: ModelConfig, ids: Tensor) -> Text:
    """Run the target over a text."""
    cache = DenseCache(config, len(ids), batch=(1,), device=ids.device)
    _, hidden, aux = target_forward(weights, config, ids[None], cache=cache)
    return Text(ids, hidden[0], aux[0], cache)


def heldout_prompts(tokenizer: Tokenizer, rows: int, length: int) -> Tensor:
    """Evenly spaced windows of the held-out text, int64 [rows, length]."""
    tokens = corpus_tokens(tokenizer, corpus.heldout_files())
    starts = torch.linspace(0, len(tokens) - length - 1, rows).long()
    return tokens[starts[:, None] + torch.arange(length)]


def matches(head: Draft, text: Text, num_steps: int) -> Tensor:
    """Which step of a chain guesses which token, as ``chain_matches`` has it."""
    if isinstance(head, MTPHead):
        return mtp_matches(head, text.ids, text.hidden)[:num_steps]
    if isinstance(head, AssistantHead):
        kv = [(k[0], v[0]) for k, v in frozen_kv(head, text.cache)]
        return assistant_matches(head, text.ids, text.hidden, kv, num_steps)
    return chain_matches(head, text.ids, text.aux if head.is_eagle3 else text.hidden, num_steps)


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
        texts = [read_text(weights, config, ids) for ids in greedy_generate(weights, config, prompts, new_tokens)]
        for draft in drafts:
            head = load_draft(checkpoint_path(draft), weights, config, device=device)
            lengths: Counter[int] = Counter()
            for text in texts:
                lengths.update(accept_lengths(matches(head, text, num_steps).cpu(), length))
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
    parser.add_argument("--draft", nargs="+", default=["tiny-eagle", "tiny-eagle3"])
    parser.add_argument("--device", default="cpu", choices=["cuda", "cpu"])
    parser.add_argument("--prompt-length", type=int, nargs="+", default=[128, 661, 1000])
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--num-steps", type=int, default=5)
    args = parser.parse_args()
    evaluate(
        args.target,
        args.draft,
        device=torch.device(args.device),
        prompt_lengths=args.prompt_length,
        rows=args.rows,
        new_tokens=args.new_tokens,
        num_steps=args.num_steps,
    )
