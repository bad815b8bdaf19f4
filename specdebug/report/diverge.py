"""The place where two arms part, for a terminal and as one JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specdebug import __version__
from specdebug.diverge.align import Difference, Looked
from specdebug.diverge.run import Divergence
from specdebug.report.parts import Column, Line, Part, Report, Table, columns, lines
from specdebug.report.words import not_engine_code

AFTER = (*columns("step", "site", "request", key=True), Column("what differs", prose=True))


def divergence_report(scenario: str, answer: Divergence) -> Report:
    """The answer, what differs right after, and the circumstances."""
    left, right = answer.names
    told = _answer(answer)
    rows = [(_step(one), one.site or one.what, one.owner or "batch", one.text or one.what) for one in answer.after]
    after: list[Part] = [Line("right after:"), Table(AFTER, rows)] if rows else []
    arms = zip(answer.names, (each.not_engine_code for each in answer.outcomes), strict=False)
    return Report(
        command="diverge",
        title=f"{scenario}: {left} against {right}",
        summary=told[0],
        exit_code=answer.exit_code,
        document=_document(scenario, answer),
        parts=(
            Line(f"{scenario}: {left} against {right}", "bold"),
            *lines(told),
            *after,
            *lines((*not_engine_code(arms, short=True), *_circumstances(answer))),
        ),
    )


def _document(scenario: str, answer: Divergence) -> dict[str, Any]:
    """The same as plain data."""
    rounding = answer.rounding
    return {
        "specdebug": __version__,
        "scenario": scenario,
        "exit_code": answer.exit_code,
        "arms": list(answer.names),
        "comparable": not answer.reason,
        "reason": answer.reason,
        "interrupted": answer.interrupted,
        "alike": answer.alike,
        "steps": list(answer.steps),
        "diverged": answer.first is not None,
        "first": answer.first and _difference(answer.first),
        "values": None if answer.values is None else answer.values.to_dict(),
        "after": [_difference(each) for each in answer.after],
        "rounding": {
            "shares": rounding.shares,
            "widest": rounding.widest,
            "first": rounding.first and _difference(rounding.first),
            "parted": [_difference(each) for each in rounding.parted],
            "unseen": [_difference(each) for each in rounding.unseen],
        },
        "rescheduled": answer.rescheduled,
        "looked": answer.looked and _looked(answer.looked),
        "outcomes": [
            {
                "verdict": each.verdict,
                "signature": each.signature,
                "detail": each.detail,
                "not_engine_code": list(each.not_engine_code),
            }
            for each in answer.outcomes
        ],
    }


def _answer(answer: Divergence) -> list[str]:
    first, seen = answer.first, answer.values
    if answer.interrupted:
        return ["interrupted before both arms were through"]
    if answer.reason:
        return [f"cannot be compared: {answer.reason}"]
    if first is None:
        rounding = answer.rounding
        rounded = " but for rounding" if rounding.shares or rounding.parted or rounding.unseen else ""
        return [f"nothing diverged{rounded} in {answer.steps[1]} steps"]
    who = f", request {first.owner}" if first.owner is not None else ""
    if first.what != "value":
        site = f" at {first.site}" if first.site else ""
        return [f"diverged at step {_step(first)}{site}{who}: {first.text}"]
    nth = first.right.nth if first.right is not None else 0
    again = f" (call {nth + 1} of it in the step)" if nth else ""
    where = f"diverged at step {_step(first)}{who}, site {first.site}{again}"
    if seen is None:
        return [where, "  the values could not be read again: a second run did not come to the same place"]
    dtype = first.right.descriptor.dtype if first.right is not None else ""
    place = f"[{', '.join(map(str, seen.index))}]" if seen.index else ""
    more = f"; {seen.count} of its {seen.size} elements differ" if seen.size > 1 else ""
    return [where, f"  {dtype} {place}: {seen.left!r} in the first arm, {seen.right!r} in the second{more}"]


def _circumstances(answer: Divergence) -> list[str]:
    if answer.reason or answer.interrupted:
        return []
    told: list[str] = []
    rounding = answer.rounding
    if rounding.first is not None:
        told.append(
            f"rounding, and not counted: {rounding.shares} tensors differ by at most {rounding.widest:.1e} of a row's "
            f"largest value, from step {_step(rounding.first)}, {rounding.first.site}, on"
        )
    for each in rounding.parted:
        told.append(
            f"{each.owner} is compared up to step {_step(each)} only: at {each.site} the arms chose otherwise, each "
            "rightly by its own numbers, which differ by rounding"
        )
    for each in rounding.unseen:
        told.append(
            f"{each.owner} is compared up to step {_step(each)} only: drafts differ ({each.site}), perhaps by "
            "rounding, for what one arm chose them from is not shown"
        )
    looked = answer.looked
    told += [] if looked is None else _compared(looked)
    if looked is not None and looked.what == "arms" and answer.rescheduled is not None:
        told.append(
            f"the arms are not alike, and schedule otherwise from step {answer.rescheduled} on: requests "
            "were compared step by step of their own; slots and places in the batch were not"
        )
    for name, outcome in zip(answer.names, answer.outcomes, strict=False):
        if outcome.verdict != "pass":
            told.append(f"{name} ends with {outcome.verdict}: {outcome.signature or outcome.detail}")
    return told


def _compared(looked: Looked) -> Iterator[str]:
    """What was compared, and what was not."""
    rest = [
        f"{len(only)} are the {which} arm's alone" for only, which in zip(looked.only, ("first", "second"), strict=True)
    ]
    if looked.what != "arms" or any(looked.only):
        yield (f"two {looked.what}: {len(looked.sites)} sites of both were compared, {' and '.join(rest)}")
    if looked.prompts is not None:
        both, *alone = looked.prompts
        rest = [f"{count} the {which} arm alone" for count, which in zip(alone, ("first", "second"), strict=True)]
        yield (f"positions of prompts: {both} were computed by both and compared, {' and '.join(rest)}")
    if looked.unlike:
        yield (
            f"tensors not compared, where a worker rightly has other rows: {sum(looked.unlike.values())} at "
            f"{', '.join(sorted(looked.unlike))}"
        )
    yield from (f"{rid} was not compared: it {why}" for rid, why in looked.alone.items())
    yield from (f"{rid} was compared up to a step only: it {why}" for rid, why in looked.left_out.items())


def _looked(looked: Looked) -> dict[str, Any]:
    return {
        "what": looked.what,
        "sites": list(looked.sites),
        "only": [list(each) for each in looked.only],
        "alone": dict(looked.alone),
        "left_out": dict(looked.left_out),
        "prompts": looked.prompts and list(looked.prompts),
        "unlike": dict(looked.unlike),
    }


def _step(found: Difference) -> str:
    """The step's number; in both arms where they differ."""
    if found.left and found.right and found.left.step != found.right.step:
        return f"{found.left.step}/{found.right.step}"
    return str(found.step)


def _difference(found: Difference) -> dict[str, Any]:
    part = found.right or found.left
    return {
        "what": found.what,
        "step": found.step,
        "steps": [None if each is None else each.step for each in (found.left, found.right)],
        "site": found.site or None,
        "call": None if part is None else part.nth + 1,
        "request": found.owner,
        "dtype": None if part is None else part.descriptor.dtype,
        "text": found.text,
    }
