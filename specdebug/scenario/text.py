"""Token ids as text, by a checkpoint's own tokenizer. Imports no torch, so that the parent can use it too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specdebug.assets import tokenizer_path
from specdebug.errors import CheckpointError
from specdebug.yamlio import one_line

Decode = Callable[[Sequence[int]], str]
_tokenizers: dict[str, Any] = {}


def keep_tokenizer(model: str) -> Any:
    """Load a tokenizer now for whoever asks later, here or in a fork. Raises CheckpointError."""
    if model not in _tokenizers:
        _tokenizers[model] = load_tokenizer(model)
    return _tokenizers[model]


def load_tokenizer(model: str) -> Any:
    """The checkpoint's tokenizer as published (``tokenizers.Tokenizer``). Raises CheckpointError."""
    if model in _tokenizers:
        return _tokenizers[model]
    from tokenizers import Tokenizer

    path = tokenizer_path(model)
    try:
        return Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # bare Exception for a malformed file, or a panic, which is no Exception
        reason = one_line(str(error))
        raise CheckpointError(f"{path} is not a tokenizer ({reason}); fetch the checkpoint again") from None


def decoder(tokenizer: Any) -> Decode:
    """Ids to text, special tokens included; bytes cut off in mid-character become U+FFFD."""

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))

    return decode
