"""Who may call a route: by the name that the server was called by, by the page that the call comes from, by the key.

A server without a key trusts every caller that reaches it, which is this machine, and with it every page that a browser
there shows. A page whose name was made to lead here (DNS rebinding) is told by ``Host``, one of another site by
``Origin`` and ``Sec-Fetch-Site``, which pages cannot set themselves.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from urllib.parse import urlsplit

from fastapi import Request

from specdebug.apps.serve.answers import Refusal
from specdebug.apps.serve.state import Settings
from specdebug.base.errors import one_line

OPEN = ("/health", "/metrics")
"""Routes that need no key: monitors have none. They give the engine nothing to do."""
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/?#@\\\[\]]+)(:\d{0,5})?", re.IGNORECASE)


def check(http: Request, settings: Settings, *, changes: bool) -> None:
    """Raise Refusal unless the request may have the route; ``changes``: one that does more than tell of something."""
    host = http.headers.get("host")
    if settings.hosts is not None and host is not None and not _is_ours(host, settings.hosts):
        raise Refusal(403, f"Host {one_line(host, 80)!r} is no name of this server; with --api-key, any is")
    if changes:
        _check_page(http, host)
    if settings.api_key is not None and http.url.path not in OPEN:
        _check_key(http, settings.api_key)


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


def _check_page(http: Request, host: str | None) -> None:
    """Raise Refusal for a call that a browser makes for a page of another site."""
    foreign = [each for each in http.headers.getlist("origin") if _authority_of(each) != (host or "").lower()]
    sites = [each for each in http.headers.getlist("sec-fetch-site") if each not in ("same-origin", "none")]
    if foreign or sites:
        raise Refusal(403, f"this is called from another site's page ({one_line((foreign + sites)[0], 80)})")


def _authority_of(origin: str) -> str | None:
    """Host and port of an ``Origin``; None for one that names none."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _check_key(http: Request, key: str) -> None:
    scheme, _, given = http.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), key.encode()):
        raise Refusal(401, "the API key is missing or wrong; send it as Authorization: Bearer KEY")
