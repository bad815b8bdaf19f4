"""What a server says of itself, and whether it is one of the interface at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CheckpointError, one_line
from specdebug.targets.http.checked import MODEL_INFO, SERVER_INFO, Check
from specdebug.targets.http.client import Declined, ServerClient, Unreachable
from specdebug.targets.serving import NoServer

MAX_DENSE_BYTES = 2 << 30
"""Weights that the dense reference, which computes in float32 on the CPU, is asked to load unless told."""
PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ServerInfo:
    """A server by its own words. ``switch``: it takes ``"speculative": false`` with a request. ``incremental``: its
    events hold what is new. ``told``: all of ``/server_info``."""

    model: str = ""
    version: str = "unknown"
    dtype: str | None = None
    speculative: bool = False
    switch: bool = False
    incremental: bool = False
    ids: bool = True
    told: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own(self) -> Mapping[str, Any]:
        """What only our own server says."""
        return own_words(self.told)


def own_words(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of ``/server_info`` what only our own server says."""
    own: Mapping[str, Any] = told.get("specdebug", {})
    return own


async def ask_server(client: ServerClient) -> ServerInfo:
    """Ask a server what it is, and for one token. Raises NoServer for one that says itself that it is not well, or one
    of FAILURES."""
    health = await client.ask("GET", "/health")
    if health.status_code != 200:
        raise NoServer(f"the server at {client.url} is not well: /health answers {health.status_code}")
    told = await server_info(client)
    model = await first_of(client, MODEL_INFO, "/model_info", "/get_model_info")
    token = await client.post("/generate", one_token())
    dtype = told.get("dtype", "").removeprefix("torch.")
    algorithm = told.get("speculative_algorithm")
    return ServerInfo(
        model=model.get("model_path") or told.get("model_path") or "",
        version=one_line(told.get("version") or "unknown", 40),
        dtype=dtype if dtype in PRECISIONS else None,
        speculative=algorithm not in (None, "", "none", "NONE"),
        switch=own_words(told).get("speculative_switch", False),
        incremental=bool(told.get("stream_output") or told.get("incremental_streaming_output")),
        ids="output_ids" in token,
        told=told,
    )


def no_server(error: Exception, url: str) -> NoServer:
    """What it means that a server which is said to be there failed what :func:`ask_server` asked."""
    if isinstance(error, Unreachable):
        return NoServer(f"no server answers at {url} ({error}); start one, or name the one that runs")
    status, hint = "", ""
    if isinstance(error, Declined):
        status = f"{error.status}, "
        hint = "; name the variable with its key as api_key" if error.status in (401, 403) else ""
    return NoServer(f"{url} is no server of SGLang's interface: {status}{error}{hint}")


async def server_info(client: ServerClient) -> dict[str, Any]:
    """The facts that a server tells of itself."""
    return await first_of(client, SERVER_INFO, "/server_info", "/get_server_info")


async def first_of(client: ServerClient, check: Check, *paths: str) -> dict[str, Any]:
    """The answer of the first of some routes that there is: newer and older names of one."""
    for path in paths[:-1]:
        try:
            return await client.get_json(path, check)
        except Declined as error:
            if error.status not in (404, 405):
                raise
    return await client.get_json(paths[-1], check)


def one_token() -> dict[str, Any]:
    """A request for one token."""
    return {"input_ids": [1], "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}}


def is_same_model(name: str, served: str) -> bool:
    """Return True if a scenario's word for a checkpoint and a server's mean the same one."""
    if not served:
        return False
    try:
        here = os.path.realpath(checkpoint_path(name))
    except CheckpointError:
        return name == served
    try:
        return here == os.path.realpath(checkpoint_path(served))
    except CheckpointError:  # of another machine
        return Path(served).name == Path(here).name


def can_be_dense(name: str) -> bool:
    """Return True if the dense reference can load a checkpoint: it is here, of its architecture, and small enough."""
    from specdebug.reference.config import read_config

    try:
        path = checkpoint_path(name)
        read_config(path)
    except CheckpointError:
        return False
    sizes = [file.stat().st_size for file in path.glob("*.safetensors")]
    return 0 < sum(sizes) <= MAX_DENSE_BYTES


def vocab_of(name: str) -> int:
    """The size of a checkpoint's vocabulary; that of any token id where its config does not say."""
    from specdebug.reference.config import read_config

    try:
        return read_config(checkpoint_path(name)).vocab_size
    except CheckpointError:
        return 2**31
