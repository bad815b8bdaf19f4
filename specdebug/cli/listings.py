"""Commands that look something up: scenarios, probes, this installation, the settings in force."""

import os
import time
from pathlib import Path

from specdebug.base import configuration
from specdebug.base.content import KINDS, PATH_VARIABLE, Kind
from specdebug.cli import complete
from specdebug.cli import options as opt
from specdebug.cli.output import check_writable, complain, workers, write, write_file
from specdebug.engine.workers.registry import workers_at
from specdebug.report.words import counted, shown
from specdebug.scenario.library import live_in
from specdebug.scenario.packs import added_by


class ListOptions(opt.JsonFlag, opt.ContentOptions):
    """A list of content."""


class ProbeList(ListOptions):
    """List every site with its kinds, which packs switch it on, and what passes it.

    Workers of the engine do, or a package, to which a folder's probes/sites/ adds them (`specdebug run --probes`).
    """

    example = "probes list"

    def run(self) -> int:
        from specdebug.report.listings import probe_list

        library = self.library()
        packs, found = library.all_packs(), library.sites
        names = dict.fromkeys(site.name for site in found)
        sites = {name: list(dict.fromkeys(site.kind for site in found if site.name == name)) for name in names}
        lit = {pack.name: live_in(pack, found) for pack in packs}
        live = {name: [pack for pack, names in lit.items() if name in names] for name in sites}
        workers = {name: workers_at(name) for name in sites}
        workers |= {site.name: (package,) for package, ranges in library.added.items() for site in added_by(ranges)}
        return self.answer(probe_list(packs, sites, live, workers))


class ScenarioList(ListOptions):
    """List every scenario that can be named, with its arms."""

    example = "scenarios list"

    def run(self) -> int:
        from specdebug.report.listings import scenario_list

        return self.answer(scenario_list(self.library().scenarios()))


def about(command: opt.Command) -> Kind:
    """The kind of content that a command is about: the name of its group."""
    return next(kind for kind in KINDS if command.ctx.parent is not None and kind == command.ctx.parent.info_name)


class Validate(ListOptions):
    """Check files without running anything, and say all that is wrong; exit code 2 when anything is.

    Of a toggle the edits of this package's engine must fit it; `specdebug toggles check` matches those of others. Of
    probes/sites/ the kinds of the calls are checked. The JSON document is a list of the files: each with file, ok,
    problems, and its arms, targets, globs or sites. A problem has
    file, line and column (0 where unknown) and message.
    """

    example = "{group} validate mine.yaml"
    files: list[str] | None = opt.argument(
        "Files, folders of them, or names of content; all unless given.",
        metavar="[FILE]...",
        complete=complete.content_named,
    )

    def run(self) -> int:
        from specdebug.report.formats import to_json
        from specdebug.scenario.validation import validate

        checked = list(validate(self.library(), about(self), self.files or ()))
        if self.as_json:
            write(to_json([each.to_dict() for each in checked]))
        for each in () if self.as_json else checked:
            if not each.problems:
                write(shown(f"{each.file}: ok, {counted(len(each.parts), each.noun)}"))
            for problem in each.problems:
                complain(str(problem))
        return 2 if any(each.problems for each in checked) else 0


class SchemaCommand(opt.Command):
    """Print the JSON schema of such files, for editors that complete and check YAML."""

    example = "{group} schema -o schema.json"
    output: Path | None = opt.option("Write it into this file.", "-o", "--output", metavar="FILE")

    def run(self) -> int:
        from specdebug.report.formats import to_json
        from specdebug.scenario.validation import GRAMMARS

        text = to_json(GRAMMARS[about(self)].json_schema())
        if self.output is None:
            write(text)
        else:
            check_writable(self.output)
            write_file(self.output, text + "\n")
        return 0


CHECKS: dict[str, type[opt.Command]] = {"validate": Validate, "schema": SchemaCommand}
SCENARIOS: dict[str, type[opt.Command]] = {"list": ScenarioList, **CHECKS}
PROBES: dict[str, type[opt.Command]] = {"list": ProbeList, **CHECKS}


class DoctorCommand(ListOptions):
    """Say what is installed, what will be used, and whether a worker runs; exit code 1 when a part is missing."""

    example = "doctor"

    def run(self) -> int:
        from specdebug.apps.doctor import examine
        from specdebug.report.listings import doctor_report

        began = time.monotonic()
        with workers(1) as pool:
            facts, problems = examine(pool, self.library())
        facts["examined in"] = f"{time.monotonic() - began:.1f} s"
        return self.answer(doctor_report(facts, problems))


class ConfigCommand(opt.JsonFlag):
    """Say which options a configuration file sets here, and in which line of it.

    It is the nearest .specdebug.toml, or pyproject.toml with a table tool.specdebug. What the command line names goes
    over it. Folders of SPECDEBUG_PATH are searched beside those of content.
    """

    example = "config"

    def run(self) -> int:
        from specdebug.report.listings import settings_list

        return self.answer(settings_list(configuration.load(), PATH_VARIABLE, os.environ.get(PATH_VARIABLE)))
