"""The routes, and what happens before and after each of them: who may call it, the errors, the log.

A server without a key trusts every caller that reaches it, which is this machine, and with it every page that a browser
there shows. A page whose name was made to lead here (DNS rebinding) is told by ``Host``, one of another site by
``Origin`` and ``Sec-Fetch-Site``, which pages cannot set themselves.
"""

import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from specdebug.apps.serve import info
from specdebug.apps.serve.answers import Form, error_answer, internal_error
from specdebug.apps.serve.fields import ClientGone, Refusal
from specdebug.apps.serve.forms import Chat, Completion, Generate
from specdebug.apps.serve.state import ServerState, Settings
from specdebug.base.errors import one_line

Route = Callable[[ServerState, Request], Awaitable[Response]]

CLIENT_CLOSED = 499  # the status, for the log alone, of an answer whose client had gone
OPEN = ("/health", "/metrics")  # routes that need no key: monitors have none. They give the engine nothing to do.
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/?#@\\\[\]]+)(:\d{0,5})?", re.IGNORECASE)


def _form(form: type[Form]) -> Route:
    return lambda state, http: form(state).answer(http)


ROUTES: tuple[tuple[str, str, Route, bool], ...] = (
    ("/generate", "POST PUT", _form(Generate), True),
    ("/v1/completions", "POST", _form(Completion), True),
    ("/v1/chat/completions", "POST", _form(Chat), True),
    ("/flush_cache", "GET POST", info.flush_cache, True),
    ("/abort_request", "POST", info.abort_request, True),
    ("/health_generate", "GET", info.health_generate, True),
    ("/health", "GET", info.health, False),
    ("/model_info", "GET", info.model_info, False),
    ("/get_model_info", "GET", info.model_info, False),
    ("/server_info", "GET", info.server_info, False),
    ("/get_server_info", "GET", info.server_info, False),
    ("/v1/models", "GET", info.models, False),
    ("/v1/models/{name:path}", "GET", info.models, False),
)
"""Path, methods, route, and whether it does more than tell of the server."""


def make_app(state: ServerState, metrics: info.ServerMetrics) -> FastAPI:
    """The application. It starts and ends nothing: the engine's client is the caller's."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    own = (("/metrics", "GET", metrics.answer, False),) if state.settings.enable_metrics else ()
    for path, methods, route, changes in (*ROUTES, *own):
        answered = _answered(state, route, changes)
        app.router.add_route(path, answered, methods=methods.split(), include_in_schema=False)
    app.router.redirect_slashes = False

    async def not_found(http: Request, error: Any) -> Response:
        return error_answer(Refusal(error.status_code, f"{http.url.path}: {error.detail}"))

    app.add_exception_handler(HTTPException, not_found)
    return app


def _answered(state: ServerState, route: Route, changes: bool) -> Callable[[Request], Awaitable[Response]]:
    """The route with its errors as answers."""

    async def answered(http: Request) -> Response:
        try:
            _check_caller(http, state.settings, changes=changes)
            return await route(state, http)
        except Refusal as error:
            return error_answer(error)
        except (ClientGone, ClientDisconnect):
            return Response(status_code=CLIENT_CLOSED)
        except Exception as error:
            return error_answer(internal_error(error, state.say))

    return answered


def _check_caller(http: Request, settings: Settings, *, changes: bool) -> None:
    """Raise Refusal unless the caller may have the route: by the name that the server was called by, by the page that
    the call comes from (of a route that ``changes`` something), by the key."""
    host = http.headers.get("host")
    if settings.hosts is not None and host is not None and not _is_ours(host, settings.hosts):
        raise Refusal(403, f"Host {one_line(host, 80)!r} is no name of this server; with --api-key, any is")
    if changes:
        foreign = [each for each in http.headers.getlist("origin") if _authority_of(each) != (host or "").lower()]
        foreign += [each for each in http.headers.getlist("sec-fetch-site") if each not in ("same-origin", "none")]
        if foreign:
            raise Refusal(403, f"this is called from another site's page ({one_line(foreign[0], 80)})")
    if settings.api_key is not None and http.url.path not in OPEN:
        scheme, _, given = http.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), settings.api_key.encode()):
            raise Refusal(401, "the API key is missing or wrong; send it as Authorization: Bearer KEY")


def _is_ours(host: str, names: frozenset[str]) -> bool:
    found = _AUTHORITY.fullmatch(host)
    if found is None:
        return False
    name = found[1].strip("[]").lower()
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name in names
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback or name in names


def _authority_of(origin: str) -> str | None:
    """Host and port of an ``Origin``; None for one that names none."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
