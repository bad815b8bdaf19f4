"""Planned requests as text: one JSON object a line, prompts as token ids.

A scenario cuts its prompts out of the standard library's sources, which differ between versions of Python; ids do not.
Only what differs from :class:`WorkloadRequest`'s defaults is written.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any

from specdebug.base.errors import ContentError
from specdebug.base.features import Features
from specdebug.base.schema import FLAG, Item, choice, form, real, whole
from specdebug.base.yamlio import as_json, parse_yaml
from specdebug.scenario.grammar import REQUESTS, STEPS, STOPS, TEMPERATURE, TOKEN_ID, TOKENS, TOP_K
from specdebug.scenario.workload import RequestSampling, Workload, WorkloadRequest

RID = form(r"[A-Za-z0-9_-]+(\.[0-9]+){1,2}")

_SAMPLING: dict[str, Callable[[Item], Any]] = {
    "max_new_tokens": whole(*TOKENS).read,
    "temperature": real(*TEMPERATURE).read,
    "top_k": whole(*TOP_K).read,
    "top_p": real(0, 1).read,
    "stop_token_ids": lambda item: tuple(map(whole(*TOKEN_ID).read, item.items())),
    "stop": STOPS.read,
    "seed": whole(0, 2**64 - 1).read,
    "features": Features.read,
}
_ASKED_RARELY = {"stop_token_ids", "stop", "features"}
_OPTIONAL = ("speculative", "continues", "delay", "abort_after", "flush")
MAX_REQUESTS = 1 << 16
MAX_TOKENS = 1 << 22  # of all prompts together; each is held as an integer


def write_requests(workload: Workload) -> str:
    """The requests, in order. Inverse: :func:`read_requests`."""
    return "".join(as_json(_plain(request)) + "\n" for request in workload.requests)


def read_requests(text: str, name: str, groups: Collection[str]) -> tuple[WorkloadRequest, ...]:
    """The requests that ``text`` holds. ``name``: of the text, in errors. ``groups``: ids of the scenario's groups;
    every request must be of one. Raises ContentError with the line in ``name`` of whatever is wrong."""
    lines = text.count("\n")
    if lines > MAX_REQUESTS:
        raise ContentError(f"{name} holds {lines} requests, more than the {MAX_REQUESTS} it may hold")
    if text.count(" ") > MAX_TOKENS + 16 * lines:  # some are ours, between keys and values
        raise ContentError(f"{name} holds more tokens than the {MAX_TOKENS} it may hold")
    requests, readers = dict[str, WorkloadRequest](), _readers(groups)
    for number, line in enumerate(text.splitlines(), start=1):
        item = parse_yaml(line, f"{name}:{number}").root
        request = WorkloadRequest(**_fields(item, readers, _OPTIONAL))
        if request.rid in requests:
            raise item.error(f"repeats the request {request.rid}")
        if request.continues is not None and request.continues not in requests:
            raise item.error(f"continues {request.continues}, which is no request before it")
        requests[request.rid] = request
    if not requests:
        raise ContentError(f"{name} holds no request")
    return tuple(requests.values())


def _plain(request: WorkloadRequest) -> dict[str, Any]:
    plain = {each.name: getattr(request, each.name) for each in fields(request)}
    sampling = {**vars(request.sampling), "features": request.sampling.features.asked}
    for name in _ASKED_RARELY:
        if not sampling[name]:
            del sampling[name]
    plain |= {"new_ids": " ".join(map(str, request.new_ids)), "sampling": sampling}
    return {each.name: plain[each.name] for each in fields(request) if plain[each.name] != each.default}


def _readers(groups: Collection[str]) -> dict[str, Callable[[Item], Any]]:
    # With jitter, or one request after the other, a delay is a sum of two of the scenario's numbers.
    steps = whole(0, STEPS[1] * (REQUESTS[1] + 2))
    return {
        "rid": RID.read,
        "group": choice(*groups).read,
        "new_ids": _token_ids,
        "sampling": lambda item: RequestSampling(**_fields(item, _SAMPLING, _ASKED_RARELY)),
        "speculative": FLAG.read,
        "continues": RID.read,
        "delay": steps.read,
        "abort_after": steps.read,
        "flush": FLAG.read,
    }


def _fields(item: Item, readers: Mapping[str, Callable[[Item], Any]], optional: Collection[str]) -> dict[str, Any]:
    required = [name for name in readers if name not in optional]
    table = item.table(required=required, optional=tuple(optional))
    return {name: read(table[name]) for name, read in readers.items() if name in table}


def _token_ids(item: Item) -> tuple[int, ...]:
    """Ids below the widest vocabulary that may be; whether the model has them the engine says."""
    ids = tuple(map(int, item.text(pattern=r"[0-9]{1,10}( [0-9]{1,10})*").split()))
    if len(ids) > TOKENS[1]:
        raise item.error(f"has {len(ids)} tokens, more than {TOKENS[1]}")
    if max(ids) > TOKEN_ID[1]:
        raise item.error(f"has the token {max(ids)}, more than {TOKEN_ID[1]}")
    return ids
