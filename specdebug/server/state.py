"""What all routes know: the engine, its options, the model's texts, and the server's own settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdebug.engine.config import EngineConfig
from specdebug.server.answers import Refusal
from specdebug.server.bodies import AskedPrompt
from specdebug.server.chat import ChatTemplate
from specdebug.server.client import EngineClient
from specdebug.server.served import ServedRequest
from specdebug.server.text import GrowingText, ModelText


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
    max_body_bytes: int = 16 << 20
    weight_version: str = "default"
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerState:
    """One server. ``say`` writes a line to the log."""

    client: EngineClient
    config: EngineConfig
    model: ModelText
    chat: ChatTemplate
    settings: Settings
    say: Callable[[str], None]
    began: float = field(default_factory=time.time)

    @property
    def tree_size(self) -> int | None:
        """Nodes of a verify's tree; None where nothing is drafted."""
        return None if self.config.speculative is None else self.config.speculative.tree_size

    def submit(self, asked: Sequence[AskedPrompt]) -> list[ServedRequest]:
        """Send the prompts of one body to the engine, all or none.

        Raises Refusal: 503 where the engine is not there or the queue is full, 400 for a name that is taken.
        """
        self.require_engine()
        most = self.settings.max_queued_requests
        if most is not None and len(self.client.open) + len(asked) > self.config.max_running_requests + most:
            raise Refusal(503, "the queue is full; try again later")
        for each in asked:
            if each.wish.rid in self.client.open:
                raise Refusal(400, f"rid: a request with rid {each.wish.rid!r} is being served", "rid")
        if self.settings.log_requests:
            for each in asked:
                self.say(f"request {each.wish.rid}: {len(each.wish.ids)} tokens, {dict(each.wish.sampling)}")
        return [self.client.submit(each.wish) for each in asked]

    def require_engine(self) -> None:
        """Raise Refusal unless the engine serves."""
        client = self.client
        if client.state == "ready":
            return
        if client.failure is not None:
            raise Refusal(503, str(client.failure))
        raise Refusal(503, "the engine is starting" if client.state == "starting" else "the server is ending")

    def growing(self, asked: AskedPrompt) -> GrowingText:
        """The text of a request's output, to come."""
        own = asked.sampling
        return GrowingText(self.model, own.stops, own.skip_special, own.keep_stop)
