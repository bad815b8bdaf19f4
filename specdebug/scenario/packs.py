"""Probe packs: YAML files that say which probes are live and what they do, in the form of ``probes/README.md``.

Of the entries that cover a probe the last one decides; a probe that none covers is off.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from specdebug.async_probe.gate import ASSERT, KINDS, MODES, OFF, RECORD, Rule
from specdebug.async_probe.sites import Site
from specdebug.base.errors import ContentError, Where, did_you_mean, raise_all
from specdebug.base.schema import ANY_TEXT, Gather, Item, Key, Part, Schema, choice, form, list_of, nested
from specdebug.base.yamlio import Doc, load_yaml
from specdebug.kernel_memory.finding import KINDS as MEMORY_KINDS
from specdebug.kernel_memory.finding import KernelRule
from specdebug.patching.source import Patch

NAME = r"[a-z0-9]+(-[a-z0-9]+)*"
GLOB = r"[A-Za-z0-9_.*?\[\]!-]+"
MAX_ENTRIES = 1000
_ADDED = re.compile(r"""__specdebug_probes__\.(\w+)\(.*?["'](\w+(?:\.\w+)+)["']\s*\)""", re.DOTALL)
"""A call that an edit puts in: the kind of the probe, and the site, a dotted name and the last argument."""
LIVE_MODES = (RECORD, ASSERT)
AnyRule = TypeVar("AnyRule", Rule, KernelRule)


_MODE = choice(*MODES)


@dataclass(frozen=True)
class SiteEntry(Part):
    """An entry of ``sites``, as a file has it."""

    glob: Annotated[str, form(GLOB), "sites that it covers; `*` matches dots, too"]
    kinds: Annotated[tuple[str, ...], list_of(choice(*KINDS), at_least=1), "of the probes that it covers"] = KINDS
    mode: Annotated[str | None, _MODE, "what they do", Key(default="the pack's")] = None


@dataclass(frozen=True)
class KernelEntry(SiteEntry):
    """An entry of ``kernels``, as a file has it."""

    glob: Annotated[str, form(GLOB), "of `kernel.argument`; `*` matches dots, too"]
    kinds: Annotated[tuple[str, ...], list_of(choice(*MEMORY_KINDS), at_least=1), "of what it looks for"] = MEMORY_KINDS


@dataclass(frozen=True)
class PackEntry:
    """One entry of ``sites``, with its place in the file."""

    rule: Rule
    where: Where


@dataclass(frozen=True)
class ProbePack(Part):
    """A pack as read; the rule of every entry has a mode. ``kernels``: of the memory of kernels."""

    schema_beside: ClassVar[Schema] = {"anyOf": [{"required": ["sites"]}, {"required": ["kernels"]}]}

    name: Annotated[str, form(NAME), "lower-case words joined by hyphens"]
    description: Annotated[str, ANY_TEXT, "what it watches, in one sentence", Key(default="none")]
    mode: Annotated[str, choice(*LIVE_MODES), "of entries without one: end at the first finding, or note it and go on"]
    entries: Annotated[
        tuple[PackEntry, ...],
        list_of(nested(SiteEntry), at_least=1, at_most=MAX_ENTRIES, noun="entries"),
        "probes that are live",
        Key(name="sites", default="none"),
    ]
    path: str
    kernels: Annotated[
        tuple[KernelRule, ...],
        list_of(nested(KernelEntry), at_least=1, at_most=MAX_ENTRIES, noun="entries"),
        "memory of kernels that is watched",
    ] = ()

    @classmethod
    def given(cls, item: Item) -> dict[str, Any]:
        return {"path": item.doc.path}

    @classmethod
    def settle(cls, item: Item, table: Mapping[str, Item], values: dict[str, Any], gather: Gather) -> None:
        mode, doc = values.get("mode", RECORD), item.doc
        values["entries"] = tuple(
            PackEntry(Rule(each.glob, each.mode or mode, each.kinds), doc.where("sites", n, "glob"))
            for n, each in enumerate(values.get("entries", ()))
        )
        memory = (KernelRule(each.glob, each.mode or mode, each.kinds) for each in values.get("kernels", ()))
        values["kernels"] = tuple(memory)
        if not table.keys() & {"sites", "kernels"} and len(table) == len(item.entries()):
            gather.note(item.error("has neither 'sites' nor 'kernels'"), item.path)


def load_pack(path: Path | str) -> ProbePack:
    """Read a pack from a file. Raises ``ContentError`` with ``file:line:col`` for anything malformed."""
    return read_pack(load_yaml(path))


def read_pack(doc: Doc) -> ProbePack:
    """The pack a document holds. Raises ``ContentErrors`` with all that is wrong."""
    return ProbePack.read(doc.root)


def added_by(ranges: Mapping[str, Sequence[Patch]]) -> Iterator[Site]:
    """The sites of the probe calls that edits put in, as ``specdebug run`` knows them. Raises ContentErrors for a kind
    that no probe has."""
    wrong = list[ContentError]()
    for edit in (edit for patches in ranges.values() for patch in patches for edit in patch.edits):
        for kind, name in _ADDED.findall(edit.replacement):
            if kind in KINDS:
                yield Site(name, kind, edit.replacement_at.path, edit.replacement_at.line)
            else:
                wrong.append(ContentError(f"no kind of probe '{kind}'{did_you_mean(kind, KINDS)}", edit.replacement_at))
    raise_all(wrong)


def check_globs(pack: ProbePack, sites: Iterable[Site]) -> None:
    """Raise ``ContentErrors`` with every entry that covers none of ``sites``: most likely a misspelling."""
    known, wrong = list(sites), list[ContentError]()
    for entry in pack.entries:
        rule = entry.rule
        named = [site for site in known if fnmatchcase(site.name, rule.glob)]
        if not named:
            hint = did_you_mean(rule.glob, (site.name for site in known)) if known else ""
            # A list of every site would not be of help.
            hint = hint if "did you mean" in hint else "; `specdebug probes list` shows them"
            wrong.append(ContentError(f"no site matches '{rule.glob}'{hint}", entry.where))
        elif not any(rule.covers(site.name, site.kind) for site in named):
            kinds = ", ".join(sorted({site.kind for site in named}))
            wrong.append(ContentError(f"sites that match '{rule.glob}' probe {kinds} only", entry.where))
    raise_all(wrong)


def rules(packs: Sequence[ProbePack], mode: str | None = None) -> tuple[Rule, ...]:
    """The rules of several packs in order; ``mode`` (record or assert) replaces every mode but off."""
    return _in_mode((entry.rule for pack in packs for entry in pack.entries), mode)


def kernel_rules(packs: Sequence[ProbePack], mode: str | None = None) -> tuple[KernelRule, ...]:
    """As :func:`rules`, of the memory of kernels."""
    return _in_mode((rule for pack in packs for rule in pack.kernels), mode)


def _in_mode(found: Iterable[AnyRule], mode: str | None) -> tuple[AnyRule, ...]:
    return tuple(rule if mode is None or rule.mode == OFF else replace(rule, mode=mode) for rule in found)


def activate(packs: Sequence[ProbePack], mode: str | None = None) -> None:
    """Configure this process's probes as the packs say, and forget earlier findings. No packs: all off."""
    from specdebug import async_probe  # here, because probing needs torch and reading packs does not

    chosen = rules(packs, mode)
    async_probe.configure(RECORD if chosen else OFF, chosen)
