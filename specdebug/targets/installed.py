"""Targets that are releases of other engines, installed here by ``specdebug engines`` and started for each arm; the
folders that are made for them: one by which their processes find us, and checkpoints with another config."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import specdebug
from specdebug.base.errors import CheckpointError, SpecDebugError
from specdebug.base.files import cache_folder, name_beside, replace_file
from specdebug.base.interpreters import ENGINE_ENV
from specdebug.patching.toggles import load_registry
from specdebug.targets.base import Asked, Opening, OverThere
from specdebug.targets.http.target import asked_of_server
from specdebug.targets.inside.words import VARIABLE
from specdebug.targets.installs.fit import Mends, mends_of, patches_of
from specdebug.targets.installs.store import Installed, find_installed, store_folder
from specdebug.targets.launch.process import REVERTS, SCRATCH
from specdebug.targets.launch.target import StartedTarget
from specdebug.targets.options import OURS
from specdebug.targets.settings import ReleasedEngine
from specdebug.workers.machine_failure import blamed

if TYPE_CHECKING:
    from specdebug.targets.http.session import HttpSession


_CONFIG = "config.json"
_COMPILED = "TORCHINDUCTOR_CACHE_DIR"
"""Where torch keeps what it has compiled, for servers to come."""


def make_import_folder(folder: Path, files: Mapping[str, str]) -> Path:
    """Make the folder by which an engine's processes find us, below another, on their ``PYTHONPATH``: with a link to
    this package, so that nothing else of our environment gets into theirs, and some files by path. One of the same
    content is taken as it is. Raises SpecDebugError."""
    package = Path(specdebug.__file__).resolve().parent
    digest = hashlib.sha256(repr((sorted(files.items()), str(package))).encode()).hexdigest()[:12]
    site = folder / f"site-{digest}"
    try:
        site.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                replace_file(path, text.encode())
        link = site / "specdebug"
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


def remade(path: Path, config: dict[str, Any], below: Path, weights: Callable[[Path], None] | None = None) -> Path:
    """The folder, made ``below`` unless it is there, of a checkpoint with another config and links to its other files.
    ``weights``: writes tensors into it in the place of the checkpoint's. Raises SpecDebugError."""
    text = json.dumps(config, indent=1) + "\n"
    made = below / f"{path.name}-{hashlib.sha256(f'{path}{text}'.encode()).hexdigest()[:12]}"
    if (made / _CONFIG).exists():
        return made
    try:
        made.mkdir(parents=True, exist_ok=True)
        if weights is not None:
            weights(made)
        for file in path.iterdir():
            if file.name != _CONFIG and (weights is None or file.suffix != ".safetensors"):
                with contextlib.suppress(FileExistsError):  # another process was quicker
                    (made / file.name).symlink_to(file)
        replace_file(made / _CONFIG, text.encode())  # last: it says that all is there
    except OSError as error:
        raise blamed(SpecDebugError, f"cannot write {error.filename or made}: {error.strerror}", error) from None
    return made


class InstalledTarget(StartedTarget):
    """A release of an engine. A class that derives from it maps the options (:meth:`notes`, ``command``)."""

    def __init__(self, settings: ReleasedEngine) -> None:
        self._settings: ReleasedEngine = settings

    @abstractmethod
    def notes(self, options: Mapping[str, Any], here: Installed) -> tuple[str, ...]:
        """What differs there of some options, a line each. Raises SpecDebugError for what cannot be there."""

    def reserved(self, options: Mapping[str, Any]) -> int:
        """Tokens of the context that no request may have."""
        return 0

    def interprets(self, here: Installed) -> bool:
        """Return True if its Triton kernels run interpreted, where their memory can be looked at."""
        return False

    def asked(self, options: Mapping[str, Any]) -> Asked:
        config = OURS.read(options)  # what cannot be is told where it stands, before anything is started
        context = config.context_length - self.reserved(options)
        return replace(asked_of_server(self._settings, options), unused=(), context_length=context)

    def warm(self, options: Mapping[str, Any]) -> None:
        """Look up how the options and our probe sites fit the release, and import what asks a server."""
        for module in ("specdebug.targets.http.client", "httpcore", "anyio._backends._asyncio"):
            import_module(module)
        self.notes(options, self.installed())

    def open(self, options: Mapping[str, Any], seed: int, opening: Opening) -> HttpSession:
        here = self.installed()
        mends = self._mends(here, opening.over_there)
        notes = [*filter(None, (here.taken_as,)), *self.notes(options, here)]
        if mends.numbers:
            numbers = ", ".join(map(str, mends.numbers))
            notes.append(
                f"known bugs of {here.release} are mended: {numbers}; `mends: false` in the target leaves them in"
            )
        notes += mends.left_out
        if opening.over_there.kernels and not self.interprets(here):
            notes.append("kernels: none of this engine's run interpreted here, so none is looked at")
        for note in notes:
            opening.say("note", text=note)
        return super().open(options, seed, opening)

    def _mends(self, here: Installed, there: OverThere) -> Mends:
        """The fixes that the release lacks and is given: a bug that is known must not hide one that is not."""
        if not self._settings.mends:
            return Mends()
        return mends_of(here, there.toggles, load_registry(there.content).all)

    def installed(self) -> Installed:
        """The environment. Raises StoreError where there is none."""
        store = self._settings.store
        return find_installed(store_folder(None if store is None else Path(store)), self._settings.named)

    def environment(
        self, site: Path, here: Installed, there: OverThere, own: Mapping[str, str], **inside: Any
    ) -> dict[str, str]:
        """The variables of its processes: ours, the engine's ``own``, what is wanted ``inside``, and the user's. Raises
        SpecDebugError where a fix cannot be reverted."""
        env = {name: value for name, value in os.environ.items() if name not in (REVERTS, "PYTHONPATH")}
        patches = [*patches_of(here, there.toggles), *self._mends(here, there).patches]
        wanted = {"device": here.device, "release": here.version, "reverts": patches, **inside}
        ours = {
            **ENGINE_ENV,
            "PYTHONPATH": str(site),
            VARIABLE: json.dumps(wanted),
            "TMPDIR": SCRATCH,
            # torch's own choice is a folder of all temporary files, whose name anybody can guess and make first
            _COMPILED: os.environ.get(_COMPILED) or str(cache_folder("torchinductor")),
        }
        return env | dict(own) | ours | dict(self._settings.variables)
