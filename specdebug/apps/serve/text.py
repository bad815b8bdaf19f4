"""A model's tokenizer and chat template as the front uses them, and the text of a request, which grows by tokens."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specdebug.apps.serve.fields import BadField
from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CheckpointError, one_line
from specdebug.base.files import read_file
from specdebug.scenario.text import MAX_CONFIG_BYTES, load_tokenizer

_CUT = "\ufffd"
"""Stands in decoded text for bytes that are no whole character, as when the rest of it is in the next token."""

PLAIN = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
"""The template of a checkpoint without one."""


class ModelText:
    """A checkpoint's tokenizer and the tokens that end its texts. Raises CheckpointError."""

    def __init__(self, model: str) -> None:
        self.tokenizer: Any = load_tokenizer(model)
        config = _config_of(model, "config.json")
        eos = config.get("eos_token_id")
        listed = eos if isinstance(eos, list) else [eos]
        self.eos_ids: tuple[int, ...] = tuple(each for each in listed if isinstance(each, int))
        self.architectures: list[str] = list(config.get("architectures") or ())
        self.vocab_size = int(config.get("vocab_size") or self.tokenizer.get_vocab_size())
        self.model_type: str = str(config.get("model_type", ""))

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: a text has at least its length by this many tokens."""
        return max(map(len, self.tokenizer.get_vocab(with_added_tokens=True)), default=1)

    def encode(self, text: str) -> list[int]:
        """The ids of a text; no special tokens are added."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Ids as text; bytes cut off in mid-character become U+FFFD."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=skip_special))

    def token(self, token: int) -> str:
        """One token as text."""
        return self.decode([token], skip_special=False)


def _config_of(model: str, name: str) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint. Raises CheckpointError."""
    path = checkpoint_path(model) / name
    try:
        config = json.loads(read_file(path, MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {one_line(str(error))}") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds no object")
    return config


class ChatTemplate:
    """A checkpoint's template. Raises CheckpointError for one that is malformed."""

    def __init__(self, model: str) -> None:
        name = "tokenizer_config.json"
        config = _config_of(model, name) if (checkpoint_path(model) / name).exists() else {}
        text = config.get("chat_template")
        tokens = {name: config.get(name) for name in ("bos_token", "eos_token")}  # as text or with facts of each
        self._special = {
            name: str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")
            for name, token in tokens.items()
        }
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _raise
        environment.filters["tojson"] = json.dumps
        try:
            self._template = environment.from_string(text if isinstance(text, str) else PLAIN)
        except TemplateError as error:
            raise CheckpointError(f"the chat template of {model} is malformed: {one_line(str(error))}") from None

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt. Raises BadField for messages that the template refuses."""
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._special)
        except (TemplateError, SecurityError, TypeError, ValueError) as error:
            raise BadField("messages", f"the chat template refuses them: {one_line(str(error))}") from None


def _raise(message: str) -> None:
    raise TemplateError(message)


@dataclass
class GrowingText:
    """The text of an output, piece by piece; the pieces make up the text of the whole. A piece ends neither inside a
    character nor with what may be the beginning of one of the ``stops``, which are cut off where they end the text,
    unless ``keep_stop``."""

    model: ModelText
    stops: tuple[str, ...] = ()
    skip_special: bool = True
    keep_stop: bool = False
    sent: str = ""
    _whole: str = ""  # the text of the first _read ids, whose last characters are whole
    _read: int = 0
    _context: int = 0
    """The ids from here on are decoded together with what follows, for a token's text depends on those before it."""

    def grow(self, ids: Sequence[int]) -> str:
        """The next piece, of all ids so far."""
        self._read_on(ids)
        piece = self._whole[len(self.sent) : len(self._whole) - self._held_back()]
        self.sent += piece
        return piece

    def finish(self, ids: Sequence[int], matched: int | str | None) -> str:
        """The last piece. ``matched``: the token or text that stopped it, which is cut off."""
        if isinstance(matched, int) and not self.keep_stop and ids and ids[-1] == matched:
            ids = ids[:-1]
        text = self.model.decode(ids, skip_special=self.skip_special)
        if isinstance(matched, str) and not self.keep_stop and (place := text.find(matched)) >= 0:
            text = text[:place]
        piece, self.sent = text[len(self.sent) :], text
        return piece

    def _read_on(self, ids: Sequence[int]) -> None:
        """Take in the whole characters that the ids behind the last ones bring."""
        if len(ids) == self._read:
            return
        before = self.model.decode(ids[self._context : self._read], skip_special=self.skip_special)
        now = self.model.decode(ids[self._context :], skip_special=self.skip_special)
        if not now.endswith(_CUT) and len(now) > len(before):
            self._context, self._read = self._read, len(ids)
            self._whole += now[len(before) :]

    def _held_back(self) -> int:
        """Characters at the end that may begin a stop, or are one."""
        most = 0
        for stop in self.stops:
            if stop in self._whole[max(len(self.sent) - len(stop), 0) :]:
                return len(self._whole) - max(self._whole.find(stop), len(self.sent))
            at = self._whole.find(stop[0], max(len(self._whole) - len(stop) + 1, 0))
            while at >= 0 and not stop.startswith(self._whole[at:]):
                at = self._whole.find(stop[0], at + 1)
            if at >= 0:
                most = max(most, len(self._whole) - at)
        return min(most, len(self._whole) - len(self.sent))
