"""The target ``http``: a server that is there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from specdebug.base import features
from specdebug.base.abilities import Ability
from specdebug.base.errors import SpecDebugError
from specdebug.targets.base import Asked, Opening, Target, Traits
from specdebug.targets.settings import AnyServer, HttpServer
from specdebug.workers.stack import processor

if TYPE_CHECKING:
    from specdebug.targets.http.client import ServerClient
    from specdebug.targets.http.server import Host
    from specdebug.targets.http.session import HttpSession

ALWAYS: frozenset[Ability] = frozenset({"cached_tokens", "tokens", "alive", "counts"})
AT_MOST: frozenset[Ability] = ALWAYS | {"accept_lengths", "cache_flush", "plain", "logits", "failures"}
_OF_MODEL = ("model", "dtype", "speculative")
"""Engine options that say something of the server."""


class HttpTarget(Target):
    """A server that is there, and was not started here."""

    traits = Traits("http", AT_MOST, features=features.ALL)

    def __init__(self, settings: HttpServer) -> None:
        self._settings = settings

    def asked(self, options: Mapping[str, Any]) -> Asked:
        return asked_of_server(self._settings, options)

    def open(self, options: Mapping[str, Any], seed: int, opening: Opening) -> HttpSession:
        return open_session(self._settings.url, self._settings, self.asked(options), opening)


def asked_of_server(settings: AnyServer, options: Mapping[str, Any]) -> Asked:
    """An arm's wishes of a server. Raises SpecDebugError."""
    model = settings.model or options.get("model", "tiny")
    dtype = settings.dtype or options.get("dtype", "float32")
    for name, value in (("model", model), ("dtype", dtype)):
        if not isinstance(value, str):
            raise SpecDebugError(f"engine.{name} must be text")
    spec = options.get("speculative")
    exact = not isinstance(spec, Mapping) or all(
        spec.get(name, 1) == 1 for name in ("threshold_single", "threshold_acc")
    )
    unused = tuple(name for name in options if name not in _OF_MODEL)
    return Asked(model, dtype=dtype, drafts=spec is not None, exact=exact, server=True, unused=unused)


def key_of(settings: AnyServer) -> str | None:
    """The key that a server wants. Raises SpecDebugError where the variable that holds it is not set."""
    if settings.api_key is None:
        return None
    key = os.environ.get(settings.api_key)
    if not key:
        raise SpecDebugError(f"target.api_key: the environment variable {settings.api_key} is not set")
    return key


def open_session(
    url: str,
    settings: AnyServer,
    asked: Asked,
    opening: Opening,
    host: Host | None = None,
) -> HttpSession:
    """Ask a server what it is, and begin to use it. Raises NoServer, or SessionFailed for what ``host`` knows."""
    from specdebug.targets.http.client import FAILURES, ServerClient
    from specdebug.targets.http.server import PlainText, ask_server, can_be_dense, failure_of, is_same_model, no_server
    from specdebug.targets.http.session import HttpSession

    def client_of(url: str) -> ServerClient:
        wait = settings.request_timeout_s
        return ServerClient(url, connections=settings.connections, timeout_s=wait, key=key_of(settings))

    loop = asyncio.new_event_loop()
    client = client_of(url)
    if host is not None:
        host.log.findings()  # of runs before this one; what comes of the token asked for next is this one's
    try:
        info = loop.run_until_complete(ask_server(client))
    except FAILURES as error:
        raise no_server(error, url) if host is None else failure_of(error, host, url) from None
    dense = can_be_dense(asked.model) and (settings.model is not None or is_same_model(asked.model, info.model))
    reference = None
    if not dense and settings.plain is not None:
        reference = PlainText(client_of(settings.plain), same_server=False)
    elif not dense and info.switch:
        reference = PlainText(client, same_server=True)
    more: dict[Ability, bool] = {
        "accept_lengths": info.speculative,
        "cache_flush": settings.flush,
        "plain": dense or reference is not None,
        "logits": dense,
        "failures": host is not None or bool(info.own),
        "reverts": host is not None,
    }
    shows = ALWAYS | {ability for ability, shown in more.items() if shown}
    asked = replace(asked, dtype=settings.dtype or info.dtype or asked.dtype, drafts=info.speculative, dense=dense)
    session = HttpSession(client, settings, asked, shows, loop, info, opening, reference, host)
    if settings.flush:
        session.flush_cache()
    opening.say(
        "stack",
        machine=processor() if host is not None else urlsplit(url).hostname,
        device="cpu",  # of this side, which needs no other
        name=f"{url}, version {info.version}",
        dtype=asked.dtype,
        backend=str(info.told.get("attention_backend") or "unknown"),
        executor="server",
        served=dict(info.own.get("stack", {})),
    )
    opening.before()
    return session
