"""Everything that can be named on a command line: scenarios, probe packs and toggles, shipped or the user's own."""

import os
import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from specdebug.async_probe.gate import OFF, Gate
from specdebug.async_probe.sites import Site, find_sites
from specdebug.base.abilities import DEFAULT
from specdebug.base.content import (
    PATH_VARIABLE,
    Kind,
    content_files,
    content_roots,
    find,
    same_name,
    scenario_files,
    shipped_root,
)
from specdebug.base.errors import ContentError, ContentErrors, did_you_mean, raise_all
from specdebug.patching.source import Patch
from specdebug.patching.toggles import Registry, Toggle, load_registry
from specdebug.scenario.checks import KnownNames, asked_of, load_scenario
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.packs import ProbePack, added_by, check_globs, load_pack
from specdebug.scenario.target_ranges import environment_of
from specdebug.scenario.text import load_tokenizer
from specdebug.scenario.workload import Workload, expand
from specdebug.targets.installs.fit import read_sites
from specdebug.targets.settings import ReleasedEngine, TargetChoice, engine_of


class Library:
    """Content of all folders; ``extra`` are the user's, from the command line, where ``option`` names them."""

    def __init__(self, extra: Sequence[str | Path] = (), option: str = "--content") -> None:
        self._extra = tuple(extra)
        self._option = option
        self._packs: dict[str, ProbePack] = {}
        self._workloads: dict[tuple[Path, str, int], Workload] = {}

    @property
    def folders(self) -> list[Path]:
        """Roots in the order they are searched. Raises ContentError for one that is not there."""
        return content_roots(self._extra)

    @cached_property
    def registry(self) -> Registry:
        """Every toggle. Raises ContentError."""
        return load_registry(self._extra)

    def toggles(self, numbers: Sequence[int], target: TargetChoice = DEFAULT) -> tuple[Toggle, ...]:
        """The fixes of these numbers in a target's engine, each once. Raises SelectionError."""
        return self.registry.select(numbers, engine_of(target)) if numbers else ()

    def all_toggles(self, target: TargetChoice = DEFAULT) -> tuple[Toggle, ...]:
        """Every fix that a target's engine has, by number; of an installed release, those that have edits for it."""
        engine = engine_of(target)
        found = tuple(each for each in self.registry.all if each.is_in(engine) and engine not in each.mends)
        there = environment_of(target) if isinstance(target, ReleasedEngine) else None
        if there is None:
            return found
        return tuple(each for each in found if any(each.edits_in(engine, version) for version in there.versions))

    def file(self, kind: Kind, name_or_path: str | Path) -> Path:
        """The file of a name, or at a path. Raises ContentError."""
        return find(kind, name_or_path, self._extra)

    def files(self, kind: Kind) -> dict[str, Path]:
        """Every file of a kind, by name. Raises ContentError."""
        return content_files(kind, self._extra)

    def packs(self, names: Sequence[str]) -> tuple[ProbePack, ...]:
        """The packs of these names. Raises ContentError for one that is missing or malformed."""
        return tuple(self._pack(name) for name in names)

    def all_packs(self) -> tuple[ProbePack, ...]:
        """Every pack, by name, its globs checked against the engine's sites."""
        return tuple(self.checked_pack(name) for name in self._pack_names)

    def checked_pack(self, name: str) -> ProbePack:
        """A pack, its globs checked against :attr:`sites`. Raises ContentError."""
        pack = self._pack(name)
        check_globs(pack, self.sites)
        return pack

    def scenario(self, name_or_path: str | Path) -> Scenario:
        """A scenario by file or shipped name.

        Raises ContentError. When the file would be right with the content folder that it lies in, the error says how to
        use that: toggles are code, so it is not used unasked.
        """
        path = find("scenarios", name_or_path, self._extra)
        try:
            return self._load(path)
        except ContentError as error:
            raise self._explained(path, error) from None

    def _load(self, path: Path) -> Scenario:
        elsewhere = tuple(number for toggle in self.registry.elsewhere.values() for number in toggle.numbers)
        known = KnownNames(tuple(self.registry.by_number), self._pack_names, elsewhere, checkpoints=True)
        return load_scenario(path, known)

    def _beside(self, path: Path) -> Path | None:
        """The nearest folder around a scenario file that has toggles or probes of its own, unless it is in use."""
        used = self.folders
        for folder in (path.absolute().parent, path.absolute().parent.parent):
            if (folder / "toggles").is_dir() or (folder / "probes").is_dir():
                return None if folder.resolve() in used else folder
        return None

    def _explained(self, path: Path, error: ContentError) -> ContentError:
        """The same error; what of it the content folder around the file would mend says how to use that folder."""
        beside = self._beside(path)
        if beside is None:
            return error
        try:
            Library((*self._extra, beside))._load(path)
            left: tuple[ContentError, ...] = ()
        except ContentError as more:
            left = more.problems
        if any(each.where is None or each.where.path != str(path) for each in left):
            return error
        there = " and ".join(f"{kind}/" for kind in ("toggles", "probes") if (beside / kind).is_dir())
        hint = f"{there} in {beside} would be used with {self._option} {shlex.quote(str(beside))}"
        hint += f", or {PATH_VARIABLE}={beside}"
        places = {each.where for each in left}
        return ContentErrors(
            each if each.where in places else ContentError(f"{each.message}; {hint}", each.where)
            for each in error.problems
        )

    def gather(self, named: Sequence[str]) -> list[Scenario]:
        """The scenarios of files, names and folders, in this order, each file once. Raises ContentError."""
        found: dict[str, Scenario] = {}
        wrong: list[ContentError] = []
        for name in named:
            for file in scenario_files(name) if self.is_folder(name) else (name,):
                try:
                    scenario = self.scenario(file)
                    found.setdefault(os.path.realpath(scenario.path), scenario)
                except ContentError as error:
                    wrong += error.problems
        raise_all(wrong)
        return list(found.values())

    def is_folder(self, name: str) -> bool:
        """Return True if a name means every scenario in a folder: a scenario of that name comes first."""
        names = content_files("scenarios", self._extra)
        return os.path.isdir(name) and not any(same_name(name, other) for other in names)

    def workload(self, scenario: Scenario, arm: str, seed: int) -> Workload:
        """The requests of an arm, shared by arms of one model. Planned by the parent, which has the time: its workers
        are still importing torch. Raises ContentError."""
        model = asked_of(scenario, arm).model
        key = (scenario.path, model, seed)
        if key not in self._workloads:
            self._workloads[key] = expand(scenario, load_tokenizer(model), seed)
        return self._workloads[key]

    def scenarios(self) -> tuple[Scenario, ...]:
        """Every scenario, by name."""
        return tuple(self.scenario(path) for path in content_files("scenarios", self._extra).values())

    @cached_property
    def _pack_names(self) -> tuple[str, ...]:
        return tuple(content_files("probes", self._extra))

    @cached_property
    def added(self) -> dict[str, Mapping[str, tuple[Patch, ...]]]:
        """The patches by which the user's ``probes/sites/`` add probes, by package and version range; the shipped ones
        call probes that only their target has. Raises ContentError."""
        return {file.stem: read_sites(file) for file in self.site_files}

    @property
    def site_files(self) -> list[Path]:
        """The user's files ``probes/sites/PACKAGE.yaml``. Raises ContentError."""
        own = (folder for folder in self.folders if folder.resolve() != shipped_root().resolve())
        return [file for folder in own for file in sorted(folder.glob("probes/sites/*.yaml"))]

    @cached_property
    def sites(self) -> list[Site]:
        """Every probe call of the embedded engine, and those that are added to packages. Raises ContentError."""
        return [*engine_sites(), *(site for ranges in self.added.values() for site in added_by(ranges))]

    def _pack(self, name: str) -> ProbePack:
        if name not in self._packs:
            files = content_files("probes", self._extra)
            if name not in files:
                raise ContentError(f"no probe pack '{name}'{did_you_mean(name, files)}")
            self._packs[name] = load_pack(files[name])
        return self._packs[name]


def engine_sites() -> list[Site]:
    """Every probe call of the embedded engine, read from its source."""
    import specdebug.engine

    return find_sites(Path(specdebug.engine.__file__).parent)


def live_in(pack: ProbePack, sites: Sequence[Site]) -> set[str]:
    """Names of the sites at which the pack switches some probe on."""
    if not pack.entries:  # of kernels only; without rules a gate has every probe live
        return set()
    gate = Gate(pack.mode, [entry.rule for entry in pack.entries])
    return {site.name for site in sites if gate.mode(site.name, site.kind) != OFF}
