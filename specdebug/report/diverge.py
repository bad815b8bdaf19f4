"""The place where two arms part, for a terminal and as one JSON document."""

from collections.abc import Iterator
from typing import Any

from specdebug import __version__
from specdebug.diverge.align import Difference, Looked
from specdebug.diverge.run import Divergence
from specdebug.report.parts import Column, Line, Report, lines, plain, table
from specdebug.report.words import not_engine_code


def divergence_report(scenario: str, answer: Divergence) -> Report:
    """The answer, what differs right after, and the circumstances."""
    title = f"{scenario}: {' against '.join(answer.names)}"
    told = answer.words
    after = (
        Column("step", "key", lambda one: one.when),
        Column("site", "key", lambda one: one.site or one.what),
        Column("request", "key", lambda one: one.owner or "batch"),
        Column("what differs", "prose", lambda one: one.text or one.what),
    )
    arms = zip(answer.names, (each.not_engine_code for each in answer.outcomes), strict=False)
    return Report(
        command="diverge",
        title=title,
        summary=told[0],
        exit_code=answer.exit_code,
        document=_document(scenario, answer),
        parts=(
            Line(title, "bold"),
            *lines(told),
            *((Line("right after:"), table(answer.after, *after)) if answer.after else ()),
            *lines((*not_engine_code(arms, short=True), *_circumstances(answer))),
        ),
    )


def _document(scenario: str, answer: Divergence) -> dict[str, Any]:
    rounding, looked = answer.rounding, answer.looked
    return {
        "specdebug": __version__,
        "scenario": scenario,
        "exit_code": answer.exit_code,
        "arms": list(answer.names),
        "comparable": not answer.reason,
        **plain(answer, "reason interrupted alike steps"),
        "diverged": answer.first is not None,
        "first": answer.first and difference_document(answer.first),
        "values": None if answer.values is None else answer.values.to_dict(),
        "after": [difference_document(each) for each in answer.after],
        "rounding": {
            **plain(rounding, "shares widest"),
            "first": rounding.first and difference_document(rounding.first),
            "parted": [difference_document(each) for each in rounding.parted],
            "unseen": [difference_document(each) for each in rounding.unseen],
        },
        "rescheduled": answer.rescheduled,
        "looked": looked
        and {
            **plain(looked, "what sites"),
            "only": [list(each) for each in looked.only],
            **{name: dict(getattr(looked, name)) for name in ("alone", "left_out", "unlike")},
            "prompts": looked.prompts and list(looked.prompts),
        },
        "outcomes": [plain(each, "verdict signature detail not_engine_code") for each in answer.outcomes],
    }


def difference_document(found: Difference) -> dict[str, Any]:
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


def _circumstances(answer: Divergence) -> Iterator[str]:
    if answer.reason or answer.interrupted:
        return
    rounding, looked = answer.rounding, answer.looked
    if (first := rounding.first) is not None:
        yield (
            f"rounding, and not counted: {rounding.shares} tensors differ by at most {rounding.widest:.1e} of a row's "
            f"largest value, from step {first.when}, {first.site}, on"
        )
    for each in rounding.parted:
        why = f"at {each.site} the arms chose otherwise, each rightly by its own numbers, which differ by rounding"
        yield f"{each.owner} is compared up to step {each.when} only: {why}"
    for each in rounding.unseen:
        why = f"drafts differ ({each.site}), perhaps by rounding, for what one arm chose them from is not shown"
        yield f"{each.owner} is compared up to step {each.when} only: {why}"
    yield from () if looked is None else _compared(looked)
    if looked is not None and looked.what == "arms" and answer.rescheduled is not None:
        yield (
            f"the arms are not alike, and schedule otherwise from step {answer.rescheduled} on: requests "
            "were compared step by step of their own; slots and places in the batch were not"
        )
    for name, outcome in zip(answer.names, answer.outcomes, strict=False):
        if outcome.verdict != "pass":
            yield f"{name} ends with {outcome.verdict}: {outcome.signature or outcome.detail}"


def _compared(looked: Looked) -> Iterator[str]:
    sides = ("first", "second")
    if looked.what != "arms" or any(looked.only):
        rest = [f"{len(only)} are the {which} arm's alone" for only, which in zip(looked.only, sides, strict=True)]
        yield f"two {looked.what}: {len(looked.sites)} sites of both were compared, {' and '.join(rest)}"
    if looked.prompts is not None:
        both, *alone = looked.prompts
        rest = [f"{count} the {which} arm alone" for count, which in zip(alone, sides, strict=True)]
        yield f"positions of prompts: {both} were computed by both and compared, {' and '.join(rest)}"
    if looked.unlike:
        count, where = sum(looked.unlike.values()), ", ".join(sorted(looked.unlike))
        yield f"tensors not compared, where a worker rightly has other rows: {count} at {where}"
    yield from (f"{rid} was not compared: it {why}" for rid, why in looked.alone.items())
    yield from (f"{rid} was compared up to a step only: it {why}" for rid, why in looked.left_out.items())
