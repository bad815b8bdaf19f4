"""What all routes know: the engine, its options, the model's texts, and the server's own settings."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdebug.apps.serve.bodies import AskedPrompt
from specdebug.apps.serve.client import EngineClient
from specdebug.apps.serve.connections import Connection
from specdebug.apps.serve.fields import Refusal
from specdebug.apps.serve.requests import ServedRequest
from specdebug.apps.serve.reverts import FrontReverts
from specdebug.apps.serve.text import ChatTemplate, ModelText
from specdebug.engine.config import EngineConfig

BODY_BYTES = 4 << 20
"""Bytes of a body at most, but of a model with a long context: that of one prompt as token ids must have room."""
TOKEN_BYTES = 16


@dataclass(frozen=True)
class Settings:
    """The server's own settings. ``hosts``: names beside this machine's loopback addresses by which clients may call
    it, None for any. ``arguments``: all flags with their values, for ``/server_info``."""

    served_model_name: str
    api_key: str | None = None
    hosts: frozenset[str] | None = None
    max_queued_requests: int | None = None
    incremental_output: bool = False
    enable_metrics: bool = False
    log_requests: bool = False
    weight_version: str = "default"
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerState:
    """One server. ``say`` writes a line to the log. ``reverts``: those that are in force in this process.
    ``reading``: held while a large body is read."""

    client: EngineClient
    config: EngineConfig
    model: ModelText
    chat: ChatTemplate
    settings: Settings
    say: Callable[[str], None]
    reverts: FrontReverts = field(default_factory=lambda: FrontReverts(()))
    began: float = field(default_factory=time.time)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def max_body_bytes(self) -> int:
        """Bytes of a body at most."""
        return max(BODY_BYTES, TOKEN_BYTES * self.config.context_length)

    @property
    def tree_size(self) -> int | None:
        """Nodes of a verify's tree; None where nothing is drafted."""
        return None if self.config.speculative is None else self.config.speculative.tree_size

    def submit(self, asked: Sequence[AskedPrompt], connection: Connection) -> list[ServedRequest]:
        """Send the prompts of one body to the engine, all or none. Raises Refusal: 503 where the engine is not there,
        the queue is full or memory short, 400 for a prompt that is too long with its output, or a name that is
        taken."""
        self.require_engine()
        context = self.config.context_length
        for each in asked:
            if (needs := each.positions) > context:
                raise Refusal(400, f"request {each.wish.rid!r} needs {needs} positions, context_length is {context}")
        connection.hold(sum(each.bytes for each in asked))
        most = self.settings.max_queued_requests
        if most is not None and len(self.client.open) + len(asked) > self.config.max_running_requests + most:
            raise Refusal(503, "the queue is full; try again later")
        for each in asked:
            if each.wish.rid in self.client.open:
                raise Refusal(400, f"rid: a request with rid {each.wish.rid!r} is being served", "rid")
        if self.settings.log_requests:
            for each in asked:
                self.say(f"request {each.wish.rid}: {len(each.wish.ids)} tokens, {dict(each.wish.sampling)}")
        return self.client.submit([each.wish for each in asked])

    def require_engine(self) -> None:
        """Raise Refusal unless the engine serves."""
        client = self.client
        if client.state == "ready":
            return
        if client.failure is not None:
            raise Refusal(503, str(client.failure))
        raise Refusal(503, "the engine is starting" if client.state == "starting" else "the server is ending")
