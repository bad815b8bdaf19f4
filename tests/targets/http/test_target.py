"""The target itself: what an arm asks of a server, and a server that is not there or is none."""

from __future__ import annotations

from typing import Any

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.targets.http.target import HttpTarget
from specdebug.targets.requests import NoServer
from specdebug.targets.settings import HttpServer
from tests.targets.http.fake import FakeServer, serving
from tests.targets.http.opened import opened


def asked(options: dict[str, Any], **settings: Any) -> Any:
    return HttpTarget(HttpServer(url="http://127.0.0.1:1", **settings)).asked(options)


def test_an_arm_asks_for_the_model_and_the_dtype_and_the_rest_means_nothing() -> None:
    wishes = asked({"model": "tiny", "dtype": "bfloat16", "page_size": 4, "speculative": {"threshold_acc": 0.5}})
    assert (wishes.model, wishes.dtype, wishes.drafts, wishes.exact) == ("tiny", "bfloat16", True, False)
    assert (wishes.server, wishes.device, wishes.unused) == (True, "cpu", ("page_size",))
    assert asked({"model": "tiny"}, model="/models/a", dtype="float16").model == "/models/a"
    with pytest.raises(SpecDebugError, match=r"engine\.model"):
        asked({"model": 3})


@pytest.mark.parametrize(
    ("switches", "told"),
    [
        ({"health": 503}, "is not well: /health answers 503"),
        ({"key": "secret"}, "is no server of SGLang's interface: 401, wrong key; name the variable"),
        ({"status": {"/generate": 404}}, "is no server of SGLang's interface: 404"),
    ],
)
def test_a_server_that_is_none_of_the_interface(switches: dict[str, Any], told: str) -> None:
    with serving(FakeServer(**switches)) as fake, pytest.raises(NoServer, match=told):
        opened(fake)


def test_a_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(FakeServer(key="secret")) as fake:
        with pytest.raises(SpecDebugError, match=r"target\.api_key: the environment variable THE_KEY is not set"):
            opened(fake, api_key="THE_KEY")
        monkeypatch.setenv("THE_KEY", "secret")
        opened(fake, api_key="THE_KEY").close(True)
