"""Planned requests as text: one JSON object a line, prompts as token ids.

A scenario cuts its prompts out of the standard library's sources, which differ between versions of Python; ids do not.
Only what differs from :class:`PlannedRequest`'s defaults is written.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, fields
from typing import Any

from specdebug.errors import ContentError
from specdebug.scenario.grammar import REQUESTS, STEPS, TEMPERATURE, TOKEN_ID, TOKENS, TOP_K
from specdebug.scenario.workload import PlannedRequest, SamplingPlan, Workload
from specdebug.schema import Item
from specdebug.yamlio import parse_yaml

RID = r"[A-Za-z0-9_-]+(\.[0-9]+){1,2}"
_SAMPLING = tuple(field.name for field in fields(SamplingPlan) if field.name != "stop_token_ids")
_SEED = (0, 2**64 - 1)

MAX_REQUESTS = 1 << 16
MAX_TOKENS = 1 << 22
"""Of all prompts together; each is held as an integer."""


def write_requests(workload: Workload) -> str:
    """The requests, in order. Inverse: :func:`read_requests`."""
    return "".join(json.dumps(_plain(request), separators=(",", ":")) + "\n" for request in workload.requests)


def read_requests(text: str, name: str, groups: Collection[str]) -> tuple[PlannedRequest, ...]:
    """The requests that ``text`` holds.

    Args:
        name: of the text, in errors.
        groups: ids of the scenario's groups; every request must be of one.

    Raises ContentError with the line in ``name`` of whatever is wrong.
    """
    lines = text.count("\n")
    if lines > MAX_REQUESTS:
        raise ContentError(f"{name} holds {lines} requests, more than the {MAX_REQUESTS} it may hold")
    if text.count(" ") > MAX_TOKENS + 16 * lines:  # some are ours, between keys and values
        raise ContentError(f"{name} holds more tokens than the {MAX_TOKENS} it may hold")
    requests: dict[str, PlannedRequest] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        item = parse_yaml(line, f"{name}:{number}").root
        request = _read(item, tuple(groups))
        if request.rid in requests:
            raise item.error(f"repeats the request {request.rid}")
        if request.continues is not None and request.continues not in requests:
            raise item.error(f"continues {request.continues}, which is no request before it")
        requests[request.rid] = request
    if not requests:
        raise ContentError(f"{name} holds no request")
    return tuple(requests.values())


def _plain(request: PlannedRequest) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "rid": request.rid,
        "group": request.group,
        "new_ids": " ".join(map(str, request.new_ids)),
        "sampling": {key: value for key, value in asdict(request.sampling).items() if value != ()},
    }
    if not request.speculative:
        plain["speculative"] = False
    if request.continues is not None:
        plain["continues"] = request.continues
    if request.delay:
        plain["delay"] = request.delay
    if request.abort_after is not None:
        plain["abort_after"] = request.abort_after
    return plain


def _read(item: Item, groups: tuple[str, ...]) -> PlannedRequest:
    table = item.table(
        required=("rid", "group", "new_ids", "sampling"),
        optional=("speculative", "continues", "delay", "abort_after"),
    )
    # With jitter, or one request after the other, a delay is a sum of two of the scenario's numbers.
    low, high = 0, STEPS[1] * (REQUESTS[1] + 2)
    return PlannedRequest(
        rid=table["rid"].text(pattern=RID),
        group=table["group"].text(choices=groups),
        new_ids=_token_ids(table["new_ids"]),
        sampling=_sampling(table["sampling"]),
        speculative=table["speculative"].boolean() if "speculative" in table else True,
        continues=table["continues"].text(pattern=RID) if "continues" in table else None,
        delay=table["delay"].integer(low=low, high=high) if "delay" in table else 0,
        abort_after=table["abort_after"].integer(low=low, high=high) if "abort_after" in table else None,
    )


def _token_ids(item: Item) -> tuple[int, ...]:
    """Ids below the widest vocabulary that may be; whether the model has them the engine says."""
    ids = tuple(map(int, item.text(pattern=r"[0-9]{1,10}( [0-9]{1,10})*").split()))
    if len(ids) > TOKENS[1]:
        raise item.error(f"has {len(ids)} tokens, more than {TOKENS[1]}")
    if max(ids) > TOKEN_ID[1]:
        raise item.error(f"has the token {max(ids)}, more than {TOKEN_ID[1]}")
    return ids


def _sampling(item: Item) -> SamplingPlan:
    table = item.table(required=_SAMPLING, optional=("stop_token_ids",))
    stop = table["stop_token_ids"].items() if "stop_token_ids" in table else []
    return SamplingPlan(
        max_new_tokens=_bounded(table["max_new_tokens"], TOKENS),
        temperature=table["temperature"].number(low=0, high=TEMPERATURE[1]),
        top_k=_bounded(table["top_k"], TOP_K),
        top_p=table["top_p"].number(low=0, high=1),
        stop_token_ids=tuple(_bounded(each, TOKEN_ID) for each in stop),
        seed=table["seed"].integer(low=_SEED[0], high=_SEED[1]),
    )


def _bounded(item: Item, bounds: tuple[int, int]) -> int:
    return item.integer(low=bounds[0], high=bounds[1])
