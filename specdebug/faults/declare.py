"""Faults as people write them: an item of a scenario's ``faults:``, or the text after ``--fault``."""

import contextlib
import json
from dataclasses import replace

from specdebug.base.errors import ContentError, ContentErrors, did_you_mean, raise_all
from specdebug.base.schema import Gather, Item
from specdebug.base.yamlio import one_line, parse_yaml
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.model import BadFault, Fault, FaultClass, Steps

BOUNDS = {"step": (1, 10**9), "row": (0, 511), "rank": (0, 63), "times": (1, 10**6), "seed": (0, 2**63 - 1)}
"""Inclusive bounds of whole numbers."""
KEYS = ("fault", "step", "request", "row", "rank", "site", "probability", "times", "seed")


def read_fault(item: Item) -> Fault:
    """One item of ``faults:``. Raises ContentError at the value that is wrong."""
    gather = Gather()
    table = gather.table(item, required=("fault",), optional=KEYS[1:])
    kind = gather.read(table, "fault", _class, None)
    if kind is None:
        raise ContentErrors(gather.problems)
    for key in table:
        if key not in ("fault", *kind.keys):
            message = f"{kind.name} cannot be addressed by '{one_line(key, 40)}'{did_you_mean(key, kind.keys)}"
            gather.note(ContentError(message, table[key].where_key), table[key].path)
    addressed = {key: value for key, value in table.items() if key in kind.keys}
    fault = Fault(
        kind.name,
        step=gather.read(addressed, "step", _steps, None),
        request=gather.read(addressed, "request", Item.text, None),
        row=gather.read(addressed, "row", lambda each: _whole(each, "row"), None),
        rank=gather.read(addressed, "rank", lambda each: _whole(each, "rank"), None),
        site=gather.read(addressed, "site", lambda each: each.text(choices=kind.sites), None),
        probability=gather.read(addressed, "probability", _probability, 1.0),
        times=gather.read(addressed, "times", lambda each: _whole(each, "times"), 1),
        seed=gather.read(addressed, "seed", lambda each: _whole(each, "seed"), None),
        where=item.where,
    )
    raise_all(gather.problems)
    if fault.step is not None and fault.step[0] > fault.step[1]:
        raise fault.error(f"step {fault.step[0]} to {fault.step[1]} runs backwards; put the first step first")
    if fault.request is not None and fault.row is not None:
        raise fault.error("address a request or a row, not both")
    return fault


def _class(item: Item) -> FaultClass:
    try:
        return find_class(item.text())
    except BadFault as error:
        raise ContentError(str(error), item.where) from None


def parse_fault(text: str) -> Fault:
    """``NAME[:key=value,...]``, as in ``nan_kv_in_use:step=2..5,request=g0.1,probability=0.5``. Raises BadFault."""
    name, colon, address = text.partition(":")
    find_class(name, "--fault: ")
    plain: dict[str, object] = {"fault": name}
    for pair in address.split(",") if colon else ():
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not value:
            raise BadFault(f"--fault {name}: '{one_line(pair, 60)}' is not key=value, as in step=3")
        if key in plain:
            raise BadFault(f"--fault {name}: '{key}' is given twice")
        ends = value.split("..", 1) if key == "step" else [value]
        read = [end if key in ("request", "site") else _number(end) for end in ends]
        plain[key] = read if len(read) > 1 else read[0]
    try:
        fault = read_fault(parse_yaml(json.dumps(plain)).root)
    except ContentError as error:
        message = error.message.removeprefix(f"fault {name}: ").removeprefix(f"{name} ")
        more = "; a range is written 2..5" if message.startswith("step must") else ""
        raise BadFault(f"--fault {name}: {message}{more}") from None
    return replace(fault, where=None)


def _number(text: str) -> int | float | str:
    """The number that a text is, else the text, of which the reader says what is wrong with it."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def find_class(name: str, prefix: str = "") -> FaultClass:
    """The class of that name. Raises BadFault, which begins with ``prefix``, with the nearest one."""
    if name not in CLASSES:
        hint = did_you_mean(name, CLASSES)
        hint = hint if "did you mean" in hint else "; `specdebug faults list` shows them"
        raise BadFault(f"{prefix}no fault '{one_line(name, 60)}'{hint}")
    return CLASSES[name]


def _steps(item: Item) -> Steps:
    if not isinstance(item.value, list):
        step = _whole(item, "step")
        return step, step
    if len(item.value) != 2:
        raise item.expected("a step or a range [first, last]")
    first, last = (_whole(each, "step") for each in item.items())
    return first, last


def _whole(item: Item, bound: str) -> int:
    low, high = BOUNDS[bound]
    return item.integer(low=low, high=high)


def _probability(item: Item) -> float:
    value = item.number(low=0, high=1)
    if value == 0:
        raise item.error("must be above 0: such a fault would never be injected")
    return value
