"""Messages of a chat as one prompt: by the checkpoint's own template, or by :data:`PLAIN` where it has none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specdebug.apps.serve.fields import BadField
from specdebug.apps.serve.text import config_of
from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CheckpointError, one_line

PLAIN = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
"""The template of a checkpoint without one."""


class ChatTemplate:
    """A checkpoint's template. Raises CheckpointError for one that is malformed."""

    def __init__(self, model: str) -> None:
        name = "tokenizer_config.json"
        config = config_of(model, name) if (checkpoint_path(model) / name).exists() else {}
        text = config.get("chat_template")
        self._special = {name: _content(config.get(name)) for name in ("bos_token", "eos_token")}
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


def _content(token: Any) -> str:
    """A special token as text, however the config writes it."""
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")
