"""The pack of scenarios for servers: found by its name, presented alike, and the same on an engine and on a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdebug.base.content import content_files
from specdebug.cli.main import run

ROOT = Path(__file__).parents[2]
PACK = {name: path for name, path in content_files("scenarios").items() if name.startswith("server/")}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["embedded", "serve"])
@pytest.mark.parametrize("name", PACK)
def test_the_pack_passes(
    name: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["replay", name, "--target", target, "--json"]) == 0
    (arm,) = json.loads(capsys.readouterr().out)["arms"]
    assert arm["complete"]
    if name == "server/flush_between_rounds":
        cached = {request["rid"]: request["cached_tokens"] for request in arm["requests"]}
        assert min(cached[f"hit.{n}"] for n in range(3)) > 100
        assert cached["flushed.0"] == 0
