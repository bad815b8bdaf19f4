"""Targets that are releases of other engines, installed here by ``specdebug engines`` and started for each arm; the
folders that are made for them: one by which their processes find us, and checkpoints with another config."""

from __future__ import annotations

import hashlib
import json
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import specdebug
from specdebug.base.errors import CheckpointError, SpecDebugError
from specdebug.base.files import made_once, name_beside, replace_file
from specdebug.patching import Patch
from specdebug.patching.toggles import Toggle, load_registry
from specdebug.targets.base import Asked, Opening, OverThere, Target
from specdebug.targets.installs.fit import Mends, mends_of, patches_of
from specdebug.targets.installs.release import RUNNERS, order
from specdebug.targets.installs.store import Installed, find_installed, look, store_folder
from specdebug.targets.installs.trees import laid_over
from specdebug.targets.options import SPACES, options_of
from specdebug.targets.relations import NoTwin, Relation, Twin, option_twin, said
from specdebug.targets.settings import ReleasedEngine
from specdebug.workers.machine_failure import blamed

_found: dict[tuple[Any, ...], dict[int, list[Patch]]] = {}
_CONFIG = "config.json"


def make_import_folder(folder: Path, files: Mapping[str, str], packages: Sequence[Path] = ()) -> Path:
    """Make the folder by which an engine's processes find us, below another, on their ``PYTHONPATH``: with links to
    this package and to other ``packages`` of our environment, so that nothing else of that gets into theirs, and some
    files by path. One of the same content is taken as it is. Raises SpecDebugError."""
    linked = (Path(specdebug.__file__).resolve().parent, *packages)
    digest = hashlib.sha256(repr((sorted(files.items()), *map(str, linked))).encode()).hexdigest()[:12]
    site = folder / f"site-{digest}"
    try:
        site.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                replace_file(path, text.encode())
        for package in linked:
            link = site / package.name
            if not link.is_symlink():
                beside = name_beside(link)  # another process may link at the same time
                beside.symlink_to(package)
                os.replace(beside, link)
    except OSError as error:
        raise blamed(SpecDebugError, f"cannot write {error.filename or site}: {error.strerror}", error) from None
    return site


def config_of(path: Path) -> dict[str, Any]:
    """The config of a checkpoint's folder. Raises CheckpointError."""
    try:
        config: dict[str, Any] = json.loads((path / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / _CONFIG} cannot be read: {error}") from None
    return config


def key_value_heads(path: Path) -> int:
    """Heads of keys and values of a checkpoint. Raises CheckpointError."""
    config = config_of(path)
    return int(config.get("num_key_value_heads") or config.get("num_attention_heads", 1))


def remade(path: Path, config: dict[str, Any], below: Path, weights: Callable[[Path], None] | None = None) -> Path:
    """The folder, made ``below`` unless it is there, of a checkpoint with another config and links to its other files.
    ``weights``: writes tensors into it in the place of the checkpoint's. Raises SpecDebugError."""
    text = json.dumps(config, indent=1) + "\n"
    made = below / f"{path.name}-{hashlib.sha256(f'{path}{text}'.encode()).hexdigest()[:12]}"

    def write(folder: Path) -> None:
        if weights is not None:
            weights(folder)
        for file in path.iterdir():
            if file.name != _CONFIG and (weights is None or file.suffix != ".safetensors"):
                (folder / file.name).symlink_to(file)
        (folder / _CONFIG).write_text(text, encoding="utf-8")

    try:
        made_once(made, write)
    except OSError as error:
        raise blamed(SpecDebugError, f"cannot write {error.filename or made}: {error.strerror}", error) from None
    return made


class InstalledTarget(Target):
    """A release of an engine. A class that derives from it maps the options (:meth:`notes`) and opens sessions."""

    coins: frozenset[str] = frozenset()
    """Relations under which a sampled request draws the same coins."""
    no_twins: Mapping[str, str] = MappingProxyType({})
    """Relations that have no meaning for it, and why."""

    def __init__(self, settings: ReleasedEngine) -> None:
        self._settings: ReleasedEngine = settings

    def twin(self, relation: Relation, options: Mapping[str, Any], prompt: int) -> Twin:
        name = relation.name
        if name in self.no_twins:
            raise NoTwin(self.no_twins[name])
        if name == "reference":
            return Twin("the model of transformers in its environment")
        if name == "release":
            here = self.installed()
            store = store_folder(None if self._settings.store is None else Path(self._settings.store))
            like = [each for each in look(store)[0] if (each.engine, each.device) == (here.engine, here.device)]
            others = [each for each in like if each.version != here.version and each.complete and not each.gone]
            older = [each for each in others if order(each.version) < order(here.version)]
            if not others:
                raise NoTwin(f"beside {here.release} no other release of {here.engine} is installed")
            other = (older or others[::-1])[0].release
            return Twin(f"{other}", target=replace(self._settings, release=str(other)))
        whole = options_of(self._settings).completed(options)
        over = self.options_of_twin(name, whole, prompt)
        found = super().twin(relation, options, prompt) if over is None else Twin(said(whole, over), over)
        return replace(found, coins=name in self.coins)

    def options_of_twin(self, relation: str, options: Mapping[str, Any], prompt: int) -> dict[str, Any] | None:
        """As ``relations.option_twin``."""
        return option_twin(relation, options, prompt, SPACES[self._settings.kind])

    @abstractmethod
    def notes(self, options: Mapping[str, Any], here: Installed) -> tuple[str, ...]:
        """What differs there of some options, a line each. Raises SpecDebugError for what cannot be there."""

    def reserved(self, options: Mapping[str, Any]) -> int:
        """Tokens of the context that no request may have."""
        return 0

    def interprets(self, here: Installed) -> bool:
        """Return True if its Triton kernels run interpreted, where their memory can be looked at."""
        return False

    def room(self, options: Mapping[str, Any]) -> int:
        """Tokens of prompt and output that a request may have. Raises SpecDebugError, before anything is started."""
        return options_of(self._settings).read(options).context_length - self.reserved(options)

    def warm(self, options: Mapping[str, Any]) -> None:
        """Look up how the options and our probe sites fit the release."""
        self.notes(options, self.installed())

    def notes_of(self, options: Mapping[str, Any], here: Installed, there: OverThere) -> list[str]:
        """All that a reader of a run on it is to know. Raises SpecDebugError."""
        mends = self._mends(here, there.toggles, there.content)
        settings, notes = self._settings, [*filter(None, (here.taken_as, here.mix)), *self.notes(options, here)]
        if settings.tree is not None:
            commit = "" if settings.commit is None else f", commit {settings.commit[:12]}"
            notes.insert(0, f"the code is that of {settings.tree}{commit}, beside the dependencies of {here.release}")
        if mends.numbers:
            numbers = ", ".join(map(str, mends.numbers))
            notes.append(
                f"known bugs of {here.release} are mended: {numbers}; `mends: false` in the target leaves them in"
            )
        notes += mends.left_out
        if there.kernels and not self.interprets(here):
            notes.append("kernels: none of this engine's run interpreted here, so none is looked at")
        return notes

    def begun(self, options: Mapping[str, Any], opening: Opening) -> tuple[Installed, Asked]:
        """The environment and the arm's wishes, once the notes and the stack of a session that is opened are told."""
        from specdebug.workers.device import claim

        here, asked = self.installed(), self.asked(options)
        for note in self.notes_of(options, here, opening.over_there):
            opening.say("note", text=note)
        stack = claim(asked.device, str(asked.attention_backend), asked.dtype, opening.label)
        opening.say("stack", **stack, served={"engine": str(here.release)})
        opening.before()
        opening.busy.said(f"building {here.release}")
        return here, asked

    def patches(self, toggles: Sequence[Toggle], content: Sequence[str] = ()) -> dict[int, list[Patch]]:
        """As ``base.Target.patches``: beside the fixes to revert, the mends of known bugs and our probe sites. Each
        trial of a search asks, so what was found is kept."""
        here = self.installed()
        key = (
            here.python,
            here.version,
            here.tree,
            self._settings.mends,
            *((toggle.pr, str(toggle.path)) for toggle in toggles),
        )
        if key not in _found:
            _found[key] = self._fitting(here, toggles, content)
        return _found[key]

    def _fitting(self, here: Installed, toggles: Sequence[Toggle], content: Sequence[str]) -> dict[int, list[Patch]]:
        by_fix = {toggle.pr: patches_of(here, [toggle]) for toggle in toggles if here.engine not in toggle.mends}
        others = [patch for toggle in toggles if here.engine in toggle.mends for patch in patches_of(here, [toggle])]
        return by_fix | {0: [*others, *self._mends(here, toggles, content).patches, *self.sites(here)]}

    def sites(self, here: Installed) -> Sequence[Patch]:
        """The patches that add probe sites to it."""
        return ()

    def _mends(self, here: Installed, toggles: Sequence[Toggle], content: Sequence[str]) -> Mends:
        """The fixes that the release lacks and is given: a bug that is known must not hide one that is not."""
        if not self._settings.mends:
            return Mends()
        return mends_of(here, toggles, load_registry(content).all)

    def installed(self) -> Installed:
        """The environment, with the checkout's code in the place of its own if one is named. Raises StoreError where
        there is none, SpecDebugError."""
        settings = self._settings
        here = find_installed(store_folder(None if settings.store is None else Path(settings.store)), settings.named)
        if settings.runner is not None and here.engine not in RUNNERS:
            raise SpecDebugError(f"target.runner: {here.engine} has one model runner")
        if settings.tree is None and settings.commit is not None:
            raise SpecDebugError(f"target.commit: {settings.commit} is one of a checkout, which target.tree names")
        return here if settings.tree is None else laid_over(here, settings.tree, settings.commit)
