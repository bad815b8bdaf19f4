"""Token ids as text, by a checkpoint's own tokenizer. Imports no torch, so that the parent can use it too."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specdebug.base.assets import tokenizer_path
from specdebug.base.errors import CheckpointError
from specdebug.base.files import read_file
from specdebug.base.yamlio import one_line

Decode = Callable[[Sequence[int]], str]
MAX_CONFIG_BYTES = 64 << 20
_tokenizers: dict[str, Any] = {}


def keep_tokenizer(model: str) -> Any:
    """Load a tokenizer now for a later call, here or in a fork. Raises CheckpointError."""
    _tokenizers[model] = load_tokenizer(model)
    return _tokenizers[model]


def load_tokenizer(model: str) -> Any:
    """The tokenizer as published (``tokenizers.Tokenizer``). Raises CheckpointError, for foreign ids too."""
    if model in _tokenizers:
        return _tokenizers[model]
    from tokenizers import Tokenizer

    path = tokenizer_path(model)
    try:
        tokenizer = Tokenizer.from_file(str(path))
        ids = tokenizer.get_vocab(with_added_tokens=True)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # bare Exception for a malformed file, or a panic, which is no Exception
        reason = one_line(str(error))
        raise CheckpointError(f"{path} is not a tokenizer ({reason}); fetch the checkpoint again") from None
    config = path.with_name("config.json")
    size, token = _vocab_size(config), max(ids, key=ids.__getitem__, default=None)
    if size is not None and token is not None and ids[token] >= size:  # before an id of it reaches an embedding
        raise CheckpointError(
            f"{path} has ids up to {ids[token]} ('{one_line(token, 40)}'), but by {config} the model's vocab_size is "
            f"{size}; fetch the tokenizer of this model"
        )
    return tokenizer


def _vocab_size(config: Path) -> int | None:
    """The size that the config states, or None: the model's loader says what is wrong with it."""
    try:
        data = json.loads(read_file(config, MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    size = data.get("vocab_size") if isinstance(data, dict) else None
    return size if isinstance(size, int) else None


def decoder(tokenizer: Any) -> Decode:
    """Ids to text, special tokens included; bytes cut off in mid-character become U+FFFD."""
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))
