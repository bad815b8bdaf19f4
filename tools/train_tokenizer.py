"""Train the byte-level BPE tokenizer on the training part of the corpus.

python tools/train_tokenizer.py --out DIR
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from training import END_OF_TEXT

from specdebug.base import corpus

VOCAB_SIZE = 2048


def train_tokenizer(out: Path, *, max_positions: int = 8192) -> Tokenizer:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` into ``out``; id 0 begins and ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((corpus.read_source(path) for path in corpus.train_files()), trainer)
    out.mkdir(parents=True, exist_ok=True)
    # Without indentation the file is a fifth smaller, and the checkpoints must stay within 40 MB together.
    (out / "tokenizer.json").write_text(tokenizer.to_str(pretty=False))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return tokenizer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    train_tokenizer(parser.parse_args().out)
