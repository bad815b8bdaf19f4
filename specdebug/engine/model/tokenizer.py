"""A target's ``tokenizer.json``: text to ids and back."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from specdebug.base.errors import CheckpointError, one_line


class TargetTokenizer:
    """Byte-exact text <-> ids. No chat template and no special tokens added: a prompt is what was written."""

    def __init__(self, file: str | Path, eos_token_ids: Sequence[int] = ()) -> None:
        """Read ``file``; ``eos_token_ids`` come from the model's config.
        Raises CheckpointError if the file is missing or not a tokenizer."""
        path = Path(file)
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; the tokenizer lies beside the target's weights")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # bare Exception for a malformed file, or a panic, which is no Exception
            reason = one_line(str(error))
            raise CheckpointError(f"{path} is not a tokenizer ({reason}); fetch it again") from None
        self.eos_token_ids = tuple(eos_token_ids)

    @property
    def vocab_size(self) -> int:
        """The number of ids, added tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def has(self, token: int) -> bool:
        """Return True for an id of the vocabulary; decoding leaves out others, which a model may have."""
        return self._tokenizer.id_to_token(token) is not None

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Ids -> text, special tokens included; bytes cut off in mid-character become U+FFFD."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
