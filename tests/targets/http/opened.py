"""Sessions on a fake server, and what their openings said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specdebug.scenario.workload import RequestSampling
from specdebug.targets.base import Busy, Opening
from specdebug.targets.http.session import HttpSession
from specdebug.targets.http.target import HttpTarget
from specdebug.targets.settings import HttpServer
from tests.targets.http.fake import FakeServer


def opening(say: Callable[..., None] = lambda event, **fields: None, **more: Any) -> Opening:
    return Opening("x", say, Busy(lambda event, **fields: None), **more)


def opened(
    fake: FakeServer,
    options: Mapping[str, Any] | None = None,
    say: Callable[..., None] = lambda event, **fields: None,
    **settings: Any,
) -> HttpSession:
    settings = {"request_timeout_s": 20.0, **settings}
    target = HttpTarget(HttpServer(url=fake.url, **settings))
    return target.open(dict(options or {}), 0, opening(say))


def add(
    session: HttpSession, rid: str, first: int = 10, tokens: int = 5, speculative: bool = True, **sampling: Any
) -> None:
    session.add(rid, [first, first + 1, first + 2], RequestSampling(tokens, **sampling), speculative=speculative)


def drain(session: HttpSession) -> list[Any]:
    reports = []
    while session.has_work:
        reports.append(session.advance())
    return reports
