"""SGLang imported, with its stand-ins for a CPU in place, for sessions of processes that are forked from this one. What
cannot be imported each of them meets again, and says so."""

from contextlib import suppress

from specdebug.targets.sglang.inside.stand_ins import import_for_cpu

with suppress(Exception):
    import_for_cpu()
