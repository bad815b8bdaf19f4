"""Which of our looks and stand-ins have their places in a release of SGLang, by its files alone: nothing is imported of
it and nothing started. The table is the one that the looks themselves go by (``inside/seats.py``)."""

from __future__ import annotations

from collections.abc import Iterator

from specdebug.targets.inside.source import Source
from specdebug.targets.installs.fit import FitPart, added_sites, sites_of, source_of
from specdebug.targets.installs.store import Installed
from specdebug.targets.sglang.inside import blocks, flashinfer, graphs, memory, probes, scheduler, stages, stand_ins
from specdebug.targets.sglang.inside.seats import NoSeat, Seat

_HELD = (scheduler.RUN, scheduler.TAKE, *scheduler.HELD_SEATS)
LOOKS: dict[str, tuple[Seat, ...]] = {
    "batches": (scheduler.RUN, scheduler.TAKE, scheduler.RELEASE, scheduler.RECEIVE, scheduler.SEND),
    probes.PROBES: tuple(probes.PROBE_SEATS.values()),
    scheduler.BOOKS: (*_HELD, *scheduler.BOOKS_SEATS),
    stages.LOOKS: (*scheduler.HELD_SEATS, *stages.LOOK_SEATS.values()),
    stages.RECORDING: tuple(stages.SITE_SEATS.values()),
    "faults": _HELD,
    memory.KERNEL_MEMORY: (
        memory.POOL,
        *memory.ALLOCATORS,
        *(seat for pair in memory.REPLAYS.values() for seat in pair if seat is not None),
    ),
}
"""The seats of each look."""


def parts_of(here: Installed) -> Iterator[FitPart]:
    """Every look, the added probe sites and, on a CPU, every stand-in."""
    source = source_of(here)
    of_blocks = tuple(seat for seats in blocks.BLOCK_SEATS.values() for seat in seats if source.has(seat.module))
    for what, seats in LOOKS.items():
        yield FitPart(what, False, _lacking(source, (*seats, *of_blocks) if what == stages.RECORDING else seats))
    patches = added_sites(here)
    lost = tuple(sites_of(here, patches)[1]) if patches else ("there are none for this release",)
    yield FitPart("added probe sites", False, lost)
    if here.device != "cpu":
        return
    yield FitPart("attention by FlashInfer", True, _lacking(source, (flashinfer.BACKEND,)))
    yield FitPart(graphs.GRAPHS, True, _lacking(source, graphs.NEEDED))
    for each in stand_ins.STAND_INS:
        there = [place for place in each.places if source.has(place)]
        if there or each.needed:
            lost = _lacking(source, (each.seat,))
            if each.kernel is not None and there:
                taken = sorted(each.kernel.takes - set(source.parameters(there[0])))
                lost += (f"SGLang's kernel {there[0]} has no argument {', '.join(taken)}",) if taken else ()
            yield FitPart([*there, each.places[0]][0], True, lost)


def _lacking(source: Source, seats: tuple[Seat, ...]) -> tuple[str, ...]:
    """The seats that a release lacks, in words, each once."""
    lacking: dict[str, None] = {}
    for seat in seats:
        try:
            seat.place(source)
        except NoSeat as error:
            lacking[str(error)] = None
    return tuple(lacking)
