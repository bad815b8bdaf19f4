"""Which of our looks and stand-ins have their places in a release of SGLang, by its files alone: nothing is imported of
it and nothing started. The table is the one that the looks themselves go by (``inside/seats.py``)."""

from __future__ import annotations

from collections.abc import Iterator

from specdebug.targets.inside.source import Source
from specdebug.targets.installs.fit import FitPart, added_sites, sites_of, source_of
from specdebug.targets.installs.store import Installed
from specdebug.targets.sglang.inside import (
    batches,
    books,
    flashinfer,
    graph_buffers,
    graph_runners,
    kv_slots,
    looks,
    plugin,
    probes,
    requests,
    stand_ins,
    tape,
)
from specdebug.targets.sglang.inside.seats import NoSeat, Seat

_HELD = (batches.RUN, batches.TAKE, *requests.NEEDED)
LOOKS: dict[str, tuple[Seat, ...]] = {
    "what it counted": (plugin.ANSWER,),
    probes.PROBES: (batches.RUN, batches.TAKE, *probes.NEEDED),
    books.BOOKS: (*_HELD, *books.NEEDED),
    looks.LOOKS: (*requests.NEEDED, *looks.NEEDED),
    tape.RECORDING: tuple(tape.SEATS.values()),
    "faults": _HELD,
    graph_buffers.KERNEL_MEMORY: (
        kv_slots.POOL,
        *kv_slots.ALLOCATORS,
        *(seat for pair in graph_buffers.REPLAYS.values() for seat in pair if seat is not None),
    ),
}
"""The seats of each look."""


def parts_of(here: Installed) -> Iterator[FitPart]:
    """Every look, the added probe sites and, on a CPU, every stand-in."""
    source = source_of(here)
    for what, seats in LOOKS.items():
        yield FitPart(what, False, tuple(dict.fromkeys(_lacking(source, seats))))
    patches = added_sites(here)
    lost = tuple(sites_of(here, patches)[1]) if patches else ("there are none for this release",)
    yield FitPart("added probe sites", False, lost)
    if here.device == "cpu":
        yield from _stand_ins(source)


def _stand_ins(source: Source) -> Iterator[FitPart]:
    yield FitPart("attention by FlashInfer", True, tuple(_lacking(source, (flashinfer.BACKEND,))))
    yield FitPart(graph_runners.GRAPHS, True, tuple(dict.fromkeys(_lacking(source, graph_runners.NEEDED))))
    for each in stand_ins.STAND_INS:
        there = [place for place in each.places if source.has(place)]
        if there or each.needed:
            lost = [*_lacking(source, (each.seat,)), *_arguments(source, each, there)]
            yield FitPart(there[0] if there else each.places[0], True, tuple(lost))


def _lacking(source: Source, seats: tuple[Seat, ...]) -> Iterator[str]:
    """Yield the seats that a release lacks, in words."""
    for seat in seats:
        try:
            seat.place(source)
        except NoSeat as error:
            yield str(error)


def _arguments(source: Source, stand_in: stand_ins.StandIn, there: list[str]) -> Iterator[str]:
    """Yield the arguments of a stand-in that its Triton kernel does not take."""
    if stand_in.kernel is not None and there:
        lacking = sorted(stand_in.kernel.takes - set(source.parameters(there[0])))
        if lacking:
            yield f"SGLang's kernel {there[0]} has no argument {', '.join(lacking)}"
