"""Where scenarios, toggles and probe packs live: what specdebug ships, then folders of ``--content`` and its variable.

Each root holds any of the folders :data:`KINDS`; every ``*.yaml`` directly inside counts, by its name, ``-`` and
``_`` alike.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from specdebug.base.errors import ContentError, Where, did_you_mean
from specdebug.base.yamlio import one_line

Kind: TypeAlias = Literal["probes", "toggles", "scenarios"]
KINDS: tuple[Kind, ...] = ("probes", "toggles", "scenarios")
PATH_VARIABLE = "SPECDEBUG_PATH"
_ENDINGS = (".yaml", ".yml")


def shipped_root() -> Path:
    """Folder of the content that comes with specdebug."""
    package = Path(__file__).resolve().parents[1]
    packaged = package / "_content"
    return packaged if packaged.is_dir() else package.parent


class FromFile(Protocol):
    """Something that was read from a file of content."""

    @property
    def path(self) -> str | Path: ...


def content_of(every: Sequence[FromFile]) -> tuple[str, ...]:
    """The roots that these are from, beside what is shipped."""
    folders = {Path(each.path).resolve().parent for each in every}  # within a bundle there is none
    roots = {folder.parent for folder in folders if folder.name in KINDS and folder.is_dir()}
    return tuple(sorted(map(str, roots - {shipped_root()})))


def words_for(every: Sequence[FromFile]) -> list[str]:
    """The words of a command line, in this folder and environment, by which it finds these."""
    found = [os.path.realpath(root) for root in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if root]
    roots = [Path(root) for root in content_of(every) if root not in found]
    here = Path.cwd()
    shown = [root.relative_to(here) if root.is_relative_to(here) else root for root in roots]
    return [word for root in shown for word in ("--content", str(root))]


def content_roots(extra: Sequence[str | Path] = ()) -> list[Path]:
    """The roots in order, each once. Raises ContentError for a folder that is missing or holds no content folder."""
    named = [(Path(root), "") for root in extra]
    from_path = os.environ.get(PATH_VARIABLE, "").split(os.pathsep)
    named += [(Path(root), f" of {PATH_VARIABLE}") for root in from_path if root]
    roots = [shipped_root()]
    for root, origin in named:
        try:
            exists, resolved = root.is_dir(), root.resolve()
            filled = any((root / kind).is_dir() for kind in KINDS)
        except (OSError, ValueError, RuntimeError):
            exists = filled = False
        if not exists:
            raise ContentError(f"the content folder{origin} does not exist", Where(one_line(str(root))))
        if not filled:
            message = f"the content folder{origin} holds none of {', '.join(f'{kind}/' for kind in KINDS)}"
            raise ContentError(message, Where(str(root)))
        if resolved not in roots:
            roots.append(resolved)
    return roots


def content_files(kind: Kind, extra: Sequence[str | Path] = ()) -> dict[str, Path]:
    """Every file of a kind by name, sorted. Raises ContentError: two have one name, or a user's folder is missing."""
    found: dict[str, Path] = {}
    for root in content_roots(extra):
        for own, file in _named(root / kind, packs=kind == "scenarios"):
            twin = next((path for name, path in found.items() if same_name(name, own)), None)
            if twin is not None:
                raise ContentError(f"has the same name as {twin}; rename one of them", Where(str(file)))
            found[own] = file
    return dict(sorted(found.items()))


def _named(folder: Path, *, packs: bool, pack: str = "") -> Iterator[tuple[str, Path]]:
    """The files of a folder, each with its name, and with ``packs`` those of the folders in it."""
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if _counts(file):
            yield pack + file.stem, file
        elif packs and file.is_dir() and not file.name.startswith("."):
            yield from _named(file, packs=False, pack=f"{file.name}/")


def find(kind: Kind, name_or_path: str | Path, extra: Sequence[str | Path] = ()) -> Path:
    """The file of a name, or at a path (with a folder or a YAML ending). Raises ContentError, with the nearest name."""
    text = str(name_or_path)
    ends, has_folder = text.endswith(_ENDINGS), os.sep in text
    if (ends or has_folder) and os.path.exists(text):
        return Path(text)
    files = content_files(kind, extra)
    if not ends:
        for name, path in files.items():
            if same_name(name, text):
                return path
    what = (
        "no such file"
        if ends or has_folder
        else f"no {'probe pack' if kind == 'probes' else kind.removesuffix('s')} of this name"
    )
    raise ContentError(f"{what}{did_you_mean(Path(text).stem, files)}", Where(one_line(text) or "''"))


def scenario_files(folder: str | Path) -> list[Path]:
    """The YAML files directly inside a folder of scenarios, by name. Raises ContentError when there is none."""
    found = [file for file in sorted(Path(folder).iterdir()) if _counts(file)]
    if not found:
        raise ContentError("holds no scenario (*.yaml); name a folder of scenarios, or files", Where(str(folder)))
    return found


def _counts(file: Path) -> bool:
    return file.suffix in _ENDINGS and not file.name.startswith(".") and file.is_file()


def same_name(name: str, other: str) -> bool:
    """Return True if two names mean the same file: ``-`` and ``_`` are one."""
    return name.replace("-", "_") == other.replace("-", "_")
