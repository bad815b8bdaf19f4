"""``specdebug run``: a command with fixes reverted in whatever package it imports, and the proof that they were."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from specdebug.base.errors import SpecDebugError
from specdebug.cli import options as opt
from specdebug.cli.mined import FromCheckout
from specdebug.cli.output import UNDECIDED, check_writable, note, set_quiet, write_file
from specdebug.scenario.packs import rules
from specdebug.workers.foreground import run_here

if TYPE_CHECKING:
    from specdebug.patching.hook.folder import Told
    from specdebug.patching.toggles import Toggle


class ProbeMode(StrEnum):
    """What a probe that finds something does: it raises, or writes it down."""

    ASSERT = "assert"
    RECORD = "record"


class RunCommand(FromCheckout):
    """Run a command, and revert fixes in every Python process under it, whatever package they are in.

    Nothing is edited and nothing installed: the processes find an import hook on PYTHONPATH, which reverts a fix right
    before its package is imported, and counts how often the reverted lines run. It takes the place of an engine's own
    SGLANG_DEBUG_REVERT_PR, which is unset. A container needs the folder that SPECDEBUG_RUN names mounted at the same
    path, with SPECDEBUG_RUN and PYTHONPATH passed on. Python 3.9 or later; python -I, -E and -S look at no path.

    Exit code: the command's own; 125 where a fix could not be reverted, or none of its lines ran.
    """

    after_dashes = True
    example = "run --revert 27338 -- ./ci-job.sh"
    revert: list[str] | None = opt.revert_option("Revert these fixes in every process of the command.")
    probes: list[str] | None = opt.packs_option(
        "Add the probes of the folder probes/sites/, switched on as this pack says (repeatable)."
    )
    mode: ProbeMode | None = opt.option("Set the mode of every probe, over what the packs say.")
    record: Path | None = opt.option("Write what the processes told into this file, as JSON.", metavar="FILE")

    def run(self) -> int:
        from specdebug.patching.hook.folder import HookedRun, refused
        from specdebug.report.formats import to_json
        from specdebug.report.hooked import document, lines

        set_quiet(True)  # stderr is the command's
        words = opt.words_after_dashes(self.ctx)
        if not words:
            raise SpecDebugError("run needs a command after --, as in: specdebug run --revert 27338 -- ./job.sh")
        if self.record is not None:
            check_writable(self.record)
        library = self.library()
        registry = library.registry
        toggles = [registry.find(str(number)) for number in opt.numbers_of(self.revert)]
        packs = rules(library.packs(self.probes or ()), None if self.mode is None else self.mode.value)
        if (toggles or packs or self.record) and (why := refused(words)):
            raise SpecDebugError(why)
        added = library.added if packs else {}
        if packs and not added:
            raise SpecDebugError("no folder of content has probes/sites/PACKAGE.yaml, where probes are added")
        with HookedRun(toggles, packs, added) as run:
            begun = time.monotonic()
            status = run_here(words, run.environment(os.environ))
            told, seconds = run.told(), time.monotonic() - begun
        code = _code(status, toggles, told)
        for line in lines(toggles, told, probed=bool(packs)):
            note(line)
        if self.record is not None:
            write_file(self.record, to_json(document(words, status, code, seconds, toggles, told)) + "\n")
        return code


def _code(status: int, toggles: Sequence[Toggle], told: Told) -> int:
    return UNDECIDED if told.misfits or not all(told.hits(each.pr) for each in toggles) else status
