"""Who may call: names of the server, pages of other sites, keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.apps.serve.serving import Serving

CHANGING = ["/generate", "/flush_cache", "/abort_request", "/v1/completions", "/v1/chat/completions"]


@pytest.fixture(scope="module")
def named() -> Iterator[Serving]:
    with Serving(hosts=frozenset({"localhost", "my.name"}), enable_metrics=True) as server:
        yield server


@pytest.fixture(scope="module")
def keyed() -> Iterator[Serving]:
    with Serving(api_key="s3cret", enable_metrics=True) as server:
        yield server


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:30000", "127.0.0.1", "127.0.0.1:80", "127.8.9.1", "[::1]", "[::1]:30000", "my.name:1",
     "[::ffff:127.0.0.1]:5"],
)  # fmt: skip
def test_names_of_this_machine_are_taken(named: Serving, host: str) -> None:
    assert named.http.get("/v1/models", headers={"Host": host}).status_code == 200
    assert named.http.post("/flush_cache", headers={"Host": host, "Origin": f"http://{host}"}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:30000", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]:1",
     "0.0.0.0", "[::]", "me@127.0.0.1", "127.0.0.1:80:80", "[::1", "::1", "127.1", "2130706433", "localhost/x", "",
     "127.0.0.1\\evil", "[evil.example]"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/flush_cache", "/health", "/metrics"])
def test_other_names_are_refused_on_every_route(named: Serving, host: str, path: str) -> None:
    method = "POST" if path in CHANGING else "GET"
    answer = named.http.request(method, path, headers={"Host": host})
    assert answer.status_code == 403
    assert "--api-key" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://[::1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", [*CHANGING, "/health_generate"])
def test_pages_of_other_sites_change_nothing(
    named: Serving, keyed: Serving, path: str, headers: dict[str, str]
) -> None:
    method = "POST" if path in CHANGING else "GET"
    for server in (named, keyed):
        key = {"Authorization": "Bearer s3cret"}
        assert server.http.request(method, path, headers={**key, **headers}, content=b"{}").status_code == 403


def test_a_link_from_another_site_to_what_only_tells_is_followed(named: Serving) -> None:
    assert named.http.get("/health", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


def test_a_key_may_be_sent_under_any_name(keyed: Serving) -> None:
    headers = {"Host": "what.ever", "Authorization": "bearer  s3cret"}
    assert keyed.http.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("given", [None, "Bearer", "Bearer s3cre", "Basic s3cret", "s3cret", "Bearer s3crét"])
@pytest.mark.parametrize("path", [*CHANGING, "/health_generate", "/server_info", "/v1/models"])
def test_without_the_key_nothing_is_done_or_told(keyed: Serving, path: str, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given.encode("latin-1")}
    method = "POST" if path in CHANGING else "GET"
    answer = keyed.http.request(method, path, headers=headers, content=b"not even read")  # type: ignore[arg-type]
    assert answer.status_code == 401


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_who_watches_needs_no_key(keyed: Serving, path: str) -> None:
    assert keyed.http.get(path).status_code == 200
