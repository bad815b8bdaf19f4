"""``specdebug new``: files of content to begin with, and the schemas by which editors complete and check them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from specdebug.base.content import Kind
from specdebug.base.errors import SpecDebugError
from specdebug.base.yamlio import parse_yaml
from specdebug.cli import options as opt
from specdebug.cli.output import OutputError, check_writable, not_written, note, write, write_file
from specdebug.patching.toggles import OWN_ENGINE, load_registry, read_toggle

if TYPE_CHECKING:
    from specdebug.patching.reversal import Reversal


class NewFile(opt.Command):
    """A command that writes a new file."""

    kind: ClassVar[Kind]

    name: str = opt.argument("The name of what is written; a toggle's is its number.", default=..., metavar="NAME")
    output: Path | None = opt.option(
        "Write it into this file; unless given, into scenarios/, toggles/ or probes/ in this folder.",
        "-o",
        "--output",
        metavar="FILE",
    )
    force: bool = opt.option("Write over a file that is there.", default=False)

    def body(self, file: Path) -> str:
        """The text of the file. Raises SpecDebugError."""
        from specdebug.scenario.skeletons import skeleton

        return skeleton(self.kind, self.name, file)

    def run(self) -> int:
        from specdebug.scenario.skeletons import root_of
        from specdebug.scenario.validation import GRAMMARS

        file = self.output or Path(self.kind) / f"{self.name}.yaml"
        text = self.body(file)
        GRAMMARS[self.kind].read(parse_yaml(text, str(file)).root)
        if file.exists() and not self.force:
            raise OutputError(f"{file} is there already; --force writes over it")
        written(file, text)
        write_schemas(root_of(self.kind, file))
        write(f"wrote {file}; check it with: specdebug {self.kind} validate {file}")
        return 0


class NewScenario(NewFile):
    """Write a scenario to begin with; it runs as it stands, on the embedded engine.

    Beside its folder, in schemas/, the JSON schemas are written, which its first line names for editors.
    """

    example = "new scenario cache-hit"
    kind = "scenarios"


class NewPack(NewFile):
    """Write a probe pack to begin with.

    Beside its folder, in schemas/, the JSON schemas are written, which its first line names for editors.
    """

    example = "new probe-pack numbers"
    kind = "probes"


class NewToggle(NewFile):
    """Write a toggle to begin with, for a function that --target names, or with the edits that take a commit back.

    --commit makes the edits from a fix in git, --from-diff from a unified diff of it. They are tried: with them, each
    module has the syntax tree that it had before. NAME is the number that is to select it. Beside its folder, in
    schemas/, the JSON schemas are written, which its first line names for editors.
    """

    example = "new toggle 501 --repo ~/src/engine --commit 3f2a91c"
    kind = "toggles"

    target: str | None = opt.option(
        "Begin a toggle for the function that the fix changed: package.module:Class.function."
    )
    from_diff: str | None = opt.option("Take the fix from this unified diff; - reads it from stdin.", metavar="FILE|-")
    commit: str | None = opt.option("Take the fix from this commit of --repo.", metavar="REV")
    repo: Path = opt.option("Read the fixed code from this source tree.", default=Path("."), metavar="DIR")

    def body(self, file: Path) -> str:
        from specdebug.scenario.skeletons import patches_text, placeholder, skeleton

        taken = {str(number): toggle.path for toggle in load_registry().all for number in toggle.numbers}
        if self.name in taken:
            raise SpecDebugError(f"{self.name} is taken by {taken[self.name]}; choose another number")
        if [self.target, self.from_diff, self.commit].count(None) != 2:
            raise SpecDebugError("new toggle needs one of --target, --from-diff and --commit")
        if self.target is not None:
            not_ours(self.target)
            return skeleton("toggles", self.name, file) + placeholder(self.target)
        made, title = self._from_commit(self.commit) if self.commit else (self._from_diff(), "")
        for each in made:
            not_ours(each.source.name)
        targets = [
            (f"{each.source.name}:{name}" if name else each.source.name, edits)
            for each in made
            for name, edits in each.edits.items()
        ]
        text = skeleton("toggles", self.name, file, *filter(None, [title])) + patches_text(targets)
        self._try(text, made)
        return text

    def _from_commit(self, commit: str) -> tuple[Sequence[Reversal], str]:
        """Return the edits that take a commit back, and its subject."""
        from specdebug.apps.mining.fix import fix_of
        from specdebug.campaign.trials.commits import commit_of, top_of

        top = top_of(self.repo)
        fix = fix_of(top, commit_of(top, commit, "commit"), note)
        return fix.made, fix.title

    def _from_diff(self) -> Sequence[Reversal]:
        from specdebug.apps.mining.fix import taken_back

        def text_of(path: str) -> str | None:
            file = self.repo / path
            return _text(file.read_bytes()) if file.is_file() else None

        if self.from_diff == "-":
            return taken_back(sys.stdin.read(), text_of, note)[0]
        try:
            diff = _text(Path(str(self.from_diff)).read_bytes())
        except OSError as error:
            raise SpecDebugError(f"{self.from_diff} cannot be read: {error.strerror}") from None
        return taken_back(diff, text_of, note)[0]

    def _try(self, text: str, made: Sequence[Reversal]) -> None:
        """Raise SpecDebugError unless the toggle as written leads back to what was before the fix."""
        from specdebug.patching.reversal import check

        toggle = read_toggle(parse_yaml(text, "the toggle"))
        check(made, [patch for ranges in toggle.foreign.values() for patches in ranges.values() for patch in patches])


def not_ours(target: str) -> None:
    """Raise SpecDebugError for a target in specdebug, whose toggles also need what shows the fix."""
    if target.partition(":")[0].partition(".")[0] == OWN_ENGINE:
        raise SpecDebugError(
            "a toggle of specdebug's own engine also has detected_by: toggles/README.md says how it is written"
        )


class NewSchemas(opt.Command):
    """Write the JSON schemas of scenarios, toggles and probe packs into schemas/ of a folder of content.

    Editors that know YAML's language server (VS Code, Neovim, Helix, Emacs, Zed) complete and check a file whose first
    line names its schema, as those of `specdebug new` do; this line is printed for each.
    """

    example = "new schemas mine"

    folder: Path = opt.argument("The folder that has scenarios/, toggles/ and probes/.", default=Path("."))

    def run(self) -> int:
        for schema in write_schemas(self.folder):
            write(f"wrote {schema}; first line of files: # yaml-language-server: $schema=../schemas/{schema.name}")
        return 0


def _text(found: bytes) -> str:
    return found.decode(errors="replace")


def write_schemas(root: Path) -> list[Path]:
    from specdebug.report.formats import to_json
    from specdebug.scenario.skeletons import schemas

    made = schemas(root)
    for schema, document in made.items():
        written(schema, to_json(document) + "\n")
    return list(made)


def written(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(str(file), error) from None
    check_writable(file)
    write_file(file, text)


COMMANDS: dict[str, type[opt.Command]] = {
    "scenario": NewScenario,
    "toggle": NewToggle,
    "probe-pack": NewPack,
    "schemas": NewSchemas,
}
