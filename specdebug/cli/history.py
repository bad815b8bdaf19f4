"""``specdebug history``: outcomes by night."""

import datetime
from pathlib import Path

from specdebug.base.errors import SpecDebugError
from specdebug.cli import options as opt
from specdebug.cli.output import note, tell


class HistoryCommand(opt.PageOptions):
    """Keep the outcomes of a night's commands in a folder, and say what is new in the last night.

    --add takes JSON documents that `replay`, `toggles verify`, `faults verify`, `flake`, `bisect` and `eval` wrote with
    --json or --json-file. The folder holds a file a night, and may be the checkout of a branch. A failure that its
    scenario expects is good.

    Exit code 0 when the last night is as it should be, 1 when something failed or an accept length left the band of the
    nights before, 125 when there is no night, or none of it came to a verdict.
    """

    example = "history nights --add replay.json --html history.html"
    folder: Path = opt.argument("The folder of the nights; --add makes it.", default=..., metavar="DIR")
    add: list[Path] | None = opt.option("Keep the outcomes that this JSON document tells (repeatable).", metavar="FILE")
    night: str | None = opt.option("Keep what --add names under this night; today unless given.", metavar="YYYY-MM-DD")
    since: str | None = opt.option("Look at nights from this one on.", metavar="YYYY-MM-DD")

    def run(self) -> int:
        from specdebug.apps.history import Nights, add, check_night
        from specdebug.report.history import history_report

        self.check_outputs()
        if self.night is not None and not self.add:
            raise SpecDebugError("--night is for --add")
        if self.since is not None:
            check_night(self.since, "--since")
        if self.add:
            for file, count in add(self.folder, self.add, self.night or str(datetime.date.today())).items():
                note(f"{file}: {count} kept")
        if not self.folder.is_dir():
            raise SpecDebugError(f"{self.folder}: no such folder; --add FILE.json makes it")
        return tell(history_report(Nights(self.folder, self.since or ""), self.folder), self)
