"""The routes, and what happens before and after each of them: the key, the errors, the log."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from specdebug.apps.serve import gate, info, openai_routes
from specdebug.apps.serve.answers import ClientGone, Refusal, as_refusal
from specdebug.apps.serve.fields import BadField
from specdebug.apps.serve.generate import generate
from specdebug.apps.serve.metrics import ServerMetrics
from specdebug.apps.serve.state import ServerState

Route = Callable[[ServerState, Request], Awaitable[Response]]

CLIENT_CLOSED = 499
"""The status, for the log alone, of an answer whose client had gone."""

CHANGING = frozenset({generate, info.flush_cache, info.abort_request, info.health_generate,
                      openai_routes.completions, openai_routes.chat_completions})  # fmt: skip
"""Routes that do more than tell of the server."""

ROUTES: tuple[tuple[str, tuple[str, ...], Route], ...] = (
    ("/generate", ("POST", "PUT"), generate),
    ("/flush_cache", ("GET", "POST"), info.flush_cache),
    ("/abort_request", ("POST",), info.abort_request),
    ("/health", ("GET",), info.health),
    ("/health_generate", ("GET",), info.health_generate),
    ("/model_info", ("GET",), info.model_info),
    ("/get_model_info", ("GET",), info.model_info),
    ("/server_info", ("GET",), info.server_info),
    ("/get_server_info", ("GET",), info.server_info),
    ("/v1/models", ("GET",), info.models),
    ("/v1/models/{name:path}", ("GET",), info.models),
    ("/v1/completions", ("POST",), openai_routes.completions),
    ("/v1/chat/completions", ("POST",), openai_routes.chat_completions),
)


def make_app(state: ServerState, metrics: ServerMetrics) -> FastAPI:
    """The application. It starts and ends nothing: the engine's client is the caller's."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    for path, methods, route in ROUTES:
        app.router.add_route(path, _answered(state, route), methods=list(methods), include_in_schema=False)
    if state.settings.enable_metrics:
        app.router.add_route("/metrics", _answered(state, metrics.answer), methods=["GET"], include_in_schema=False)
    app.router.redirect_slashes = False

    async def not_found(http: Request, error: Any) -> Response:
        return Refusal(error.status_code, f"{http.url.path}: {error.detail}").response()

    app.add_exception_handler(HTTPException, not_found)
    return app


def _answered(state: ServerState, route: Route) -> Callable[[Request], Awaitable[Response]]:
    """The route with its errors as answers."""

    async def answered(http: Request) -> Response:
        try:
            gate.check(http, state.settings, changes=route in CHANGING)
            return await route(state, http)
        except BadField as error:
            return as_refusal(error).response()
        except Refusal as error:
            return error.response()
        except (ClientGone, ClientDisconnect):
            return Response(status_code=CLIENT_CLOSED)
        except Exception as error:
            state.say("".join(traceback.format_exception(error)).rstrip())
            return Refusal(500, f"internal error: {type(error).__name__}").response()

    return answered
