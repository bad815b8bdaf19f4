"""What can be named on a command line: scenarios, probe packs and toggles, shipped or the user's own.

Read when asked for, and once. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from specdebug.async_probe.gate import OFF, Gate
from specdebug.async_probe.sites import Site, scan
from specdebug.content import content_files, content_roots, find
from specdebug.errors import ContentError, did_you_mean
from specdebug.harness.probe_packs import ProbePack, check_globs, load_pack
from specdebug.harness.scenario import KnownNames, engine_config, load_scenario
from specdebug.harness.scenario_model import Scenario
from specdebug.harness.text import load_tokenizer
from specdebug.harness.workload import Workload, expand
from specdebug.toggles import Registry, Toggle, load_registry


class Library:
    """Content of all folders; ``extra`` are the user's, from the command line."""

    def __init__(self, extra: Sequence[str | Path] = ()) -> None:
        self._extra = tuple(extra)
        self._packs: dict[str, ProbePack] = {}
        self._workloads: dict[tuple[Path, str, int], Workload] = {}

    @property
    def folders(self) -> list[Path]:
        """Roots in the order they are searched. Raises ContentError for one that is not there."""
        return content_roots(self._extra)

    @cached_property
    def registry(self) -> Registry:
        """All toggles. Raises ContentError."""
        return load_registry(self._extra)

    def toggles(self, numbers: Sequence[int]) -> tuple[Toggle, ...]:
        """The fixes of these numbers, each once. Raises SelectionError."""
        return self.registry.select(numbers) if numbers else ()

    def all_toggles(self) -> tuple[Toggle, ...]:
        """Every fix that this engine has, by number."""
        return tuple(self.registry.toggles.values())

    def packs(self, names: Sequence[str]) -> tuple[ProbePack, ...]:
        """The packs of these names. Raises ContentError for one that is missing or malformed."""
        return tuple(self._pack(name) for name in names)

    def all_packs(self) -> tuple[ProbePack, ...]:
        """Every pack, by name, its globs checked against the engine's sites."""
        return tuple(self.checked_pack(name) for name in self._pack_names)

    def checked_pack(self, name: str) -> ProbePack:
        """A pack, its globs checked against the engine's sites. Raises ContentError."""
        pack = self._pack(name)
        check_globs(pack, self._sites)
        return pack

    def scenario(self, name_or_path: str | Path) -> Scenario:
        """A scenario by file or shipped name. Raises ContentError."""
        elsewhere = tuple(number for toggle in self.registry.elsewhere.values() for number in toggle.numbers)
        known = KnownNames(tuple(self.registry.by_number), self._pack_names, elsewhere, checkpoints=True)
        return load_scenario(find("scenarios", name_or_path, self._extra), known)

    def workload(self, scenario: Scenario, arm: str, seed: int) -> Workload:
        """The requests of an arm. They depend on the model only, so arms of one model share them.

        Planned by the parent, which has the time: its workers are still importing torch. Raises ContentError.
        """
        model = engine_config(scenario, arm).model
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
    def _sites(self) -> list[Site]:
        return engine_sites()

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

    return scan(Path(specdebug.engine.__file__).parent)


def live_in(pack: ProbePack, sites: Sequence[Site]) -> set[str]:
    """Names of the sites at which the pack switches some probe on."""
    gate = Gate(pack.mode, [entry.rule for entry in pack.entries])
    return {site.name for site in sites if gate.mode(site.name, site.kind) != OFF}
