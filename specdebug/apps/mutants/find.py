"""The mutants of an engine: each one change of one function, as a patch with an id that says where and what."""

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

import specdebug
from specdebug.apps.mutants.operators import Change, changes
from specdebug.base.abilities import DEFAULT
from specdebug.base.errors import SpecDebugError
from specdebug.patching.match import dedent
from specdebug.patching.source import ModuleSource, Patch, walk_scopes
from specdebug.targets.installs.fit import source_of
from specdebug.targets.registry import find_target
from specdebug.targets.settings import ReleasedEngine, TargetChoice
from specdebug.targets.sglang.target import SglangTarget

PARTS = (
    "engine/textbook/scheduler.py",
    "engine/textbook/sampler.py",
    "engine/textbook/*/*.py",
    "engine/workers/*.py",
    "engine/memory/*.py",
    "engine/graph/*.py",
    "engine/attention/*.py",
    "engine/kernels/*.py",
)
"""The files of our engine that are mutated; the kernels' torch references are among them, their Triton twins are
not."""
SPARED = (
    "engine/memory/arena.py:FillPolicy.*",  # is what the harness fills memory with
    "engine/kernels/twin.py",  # chooses between a kernel and its reference
)
"""Files of those that are not, or functions in them."""
CHECKS = (
    "check_guards",
    "watch_guards",
    "damage_seen",
    "assert_fits",
    "probe_written",
    "probe_indices",
    "_probe",
)
"""Functions that watch, and do none of the work."""
_EXPLAINING = ("__str__", "__repr__")
SGLANG_PARTS = (
    "srt/speculative/*.py",
    "srt/mem_cache/*.py",
    "srt/mem_cache/allocator/*.py",
    "srt/mem_cache/unified_cache/*.py",
    "srt/mem_cache/rust_tree_core/*.py",
    "srt/managers/schedule_batch.py",
    "srt/managers/schedule_policy.py",
    "srt/managers/scheduler.py",
    "srt/managers/scheduler_components/batch_result_processor.py",
    "srt/managers/overlap_utils.py",
    "kernels/ops/speculative/*.py",
    "kernels/ops/memory/*.py",
)
"""The files of SGLang that are mutated: drafting and verifying, memory and its trees, what forms batches and takes
their results, and the kernels of these."""


@dataclass(frozen=True)
class Mutant:
    """One changed function. ``file``: below the ``package``; ``lines``: first and last of the changed statement there.

    ``old`` lines become ``new``; ``edit`` says so as a text to match, found nowhere else, and what takes its place.
    ``number``: among those of its line and operator.
    """

    file: str
    function: str
    line: int
    operator: str
    number: int
    lines: tuple[int, int]
    old: tuple[str, ...]
    new: str
    edit: tuple[str, str]
    package: str = specdebug.__name__

    @property
    def id(self) -> str:
        """A name that stays what it is as long as the file does."""
        return f"{self.file}:{self.line}:{self.operator}:{self.number}"

    @property
    def diff(self) -> str:
        head = [f"{mark} {self.path}" for mark in ("---", "+++")]
        place = f"@@ -{self.line},{len(self.old)} +{self.line} @@ {self.function}"
        return "\n".join([*head, place, *("-" + each for each in self.old), "+" + self.new])

    @property
    def path(self) -> str:
        """The file, from the package on."""
        return f"{self.package}/{self.file}"

    @property
    def patch(self) -> Patch:
        return Patch.of(f"mutant {self.id}", f"{_module(self.path)}:{self.function}", self.edit)


@dataclass(frozen=True)
class Code:
    """Code that is mutated: ``parts`` of a ``package``, globs below its folder ``root``, but for what is ``spared``
    (files, or functions of them) and functions named as ``checks``."""

    package: str
    root: Path
    parts: tuple[str, ...]
    spared: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()

    def files(self, *globs: str) -> list[str]:
        """The files that are mutated, below the package; without ``globs`` all. Each is one of a path or of its end,
        and must fit some file: SpecDebugError says which does not."""
        found = self._files
        if not globs:
            return found
        chosen: set[str] = set()
        for glob in globs:
            wanted = glob.removeprefix(f"{self.package}/")
            fitting = [file for file in found if fnmatchcase(file, wanted) or fnmatchcase(file, f"*/{wanted}")]
            if not fitting:
                raise SpecDebugError(
                    f"--file {glob}: no file of the engine that is mutated has such a name; see --list"
                )
            chosen.update(fitting)
        return sorted(chosen)

    @cached_property
    def _files(self) -> list[str]:
        found = sorted(path.relative_to(self.root).as_posix() for part in self.parts for path in self.root.glob(part))
        return [file for file in found if not any(fnmatchcase(file, spared) for spared in self.spared)]

    def source(self, file: str) -> ModuleSource:
        path = self.root / file
        return ModuleSource(_module(f"{self.package}/{file}"), str(path), path.read_text(encoding="utf-8"))

    def mutants_of(self, file: str) -> list[Mutant]:
        source = self.source(file)
        found: list[Mutant] = []
        numbers: Counter[tuple[int, str]] = Counter()
        for name, node in walk_scopes(source.tree):
            spared = any(fnmatchcase(f"{file}:{name}", each) for each in self.spared)
            spared = spared or node.name in (*self.checks, *_EXPLAINING)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not spared:
                for change in changes(node):
                    numbers[change.node.lineno, change.operator] += 1
                    number = numbers[change.node.lineno, change.operator]
                    found.append(_mutant(source, f"{self.package}/{file}", name, change, number))
        return found

    def mutants(self, *globs: str) -> list[Mutant]:
        return [mutant for file in self.files(*globs) for mutant in self.mutants_of(file)]


OURS = Code(specdebug.__name__, Path(specdebug.__file__).parent, PARTS, SPARED, CHECKS)


def code_of(target: TargetChoice) -> Code:
    """The code of a target's engine that is mutated. Raises SpecDebugError where there is none here that is known, and
    StoreError where the release is not installed."""
    if target == DEFAULT:
        return OURS
    engine = find_target(target)
    if not isinstance(target, ReleasedEngine) or not isinstance(engine, SglangTarget):
        raise SpecDebugError(f"mutants are made of our own engine and of releases of sglang, not of {target}")
    return Code("sglang", source_of(engine.installed()).folder, SGLANG_PARTS)


def _module(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def _mutant(source: ModuleSource, path: str, function: str, change: Change, number: int) -> Mutant:
    node, statement = change.node, change.statement
    first, last = node.lineno, node.end_lineno or node.lineno
    before = source.lines[first - 1].encode()[: node.col_offset].decode()
    after = source.lines[last - 1].encode()[node.end_col_offset :].decode()
    new = before + change.text + after
    body: Sequence[ast.stmt] = getattr(statement, "body", ())
    end = max(statement.lineno, body[0].lineno - 1) if body else statement.end_lineno or statement.lineno
    package, _, file = path.partition("/")
    return Mutant(
        file=file,
        function=function,
        line=first,
        operator=change.operator,
        number=number,
        lines=(statement.lineno, end),
        old=tuple(source.lines[first - 1 : last]),
        new=new,
        edit=_unique(source, function, (first, last), new),
        package=package,
    )


def _unique(source: ModuleSource, function: str, span: tuple[int, int], new: str) -> tuple[str, str]:
    """The text to match and its replacement, with as many lines around them as tell the place from others."""
    spans = source.spans[function.replace("<locals>.", "")]
    lowest, highest = min(spans)[0], max(stop for _, stop in spans)
    first, last = span

    def places(wanted: list[str]) -> int:
        """The number of places of the function that read so, whatever their indentation."""
        size, text = len(wanted), dedent(wanted)[0]
        starts = (at for start, stop in spans for at in range(start - 1, stop - size + 1))
        return sum(dedent(source.lines[at : at + size])[0] == text for at in starts)

    while places(source.lines[first - 1 : last]) > 1:
        if first > lowest:
            first -= 1
        elif last < highest:
            last += 1
        else:
            break
    above, below = source.lines[first - 1 : span[0] - 1], source.lines[span[1] : last]
    return "\n".join(source.lines[first - 1 : last]), "\n".join([*above, new, *below])
