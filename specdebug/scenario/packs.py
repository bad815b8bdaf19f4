"""Probe packs: YAML files that say which probes are live and what they do, in the form of ``probes/README.md``.

Of the entries that cover a probe the last one decides; a probe that none covers is off.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from specdebug.async_probe.gate import ASSERT, KINDS, MODES, OFF, RECORD, Rule
from specdebug.async_probe.sites import Site
from specdebug.base.errors import ContentError, Where, did_you_mean
from specdebug.base.schema import Item
from specdebug.base.yamlio import Doc, load_yaml
from specdebug.kernel_memory.finding import KINDS as MEMORY_KINDS
from specdebug.kernel_memory.finding import KernelRule

NAME = r"[a-z0-9]+(-[a-z0-9]+)*"
GLOB = r"[A-Za-z0-9_.*?\[\]!-]+"
MAX_ENTRIES = 1000
LIVE_MODES = (RECORD, ASSERT)
AnyRule = TypeVar("AnyRule", Rule, KernelRule)


@dataclass(frozen=True)
class PackEntry:
    """One entry of ``sites``, with its place in the file."""

    rule: Rule
    where: Where


@dataclass(frozen=True)
class ProbePack:
    """A pack as read; the rule of every entry has a mode. ``kernels``: of the memory of kernels."""

    name: str
    description: str
    mode: str
    entries: tuple[PackEntry, ...]
    path: str
    kernels: tuple[KernelRule, ...] = ()


def load_pack(path: Path | str) -> ProbePack:
    """Read a pack from a file. Raises ``ContentError`` with ``file:line:col`` for anything malformed."""
    return read_pack(load_yaml(path))


def read_pack(doc: Doc) -> ProbePack:
    """The pack a document holds. Raises ``ContentError``."""
    top = doc.root.table(required=("name", "mode"), optional=("description", "sites", "kernels"))
    mode = top["mode"].text(choices=LIVE_MODES)
    if "sites" not in top and "kernels" not in top:
        raise doc.root.error("has neither 'sites' nor 'kernels'")
    sites, kernels = (_entries(top, name) for name in ("sites", "kernels"))
    return ProbePack(
        name=top["name"].text(pattern=NAME),
        description=top["description"].text(empty=True) if "description" in top else "",
        mode=mode,
        entries=tuple(PackEntry(Rule(*_rule(item, mode, KINDS)), item.entries()["glob"].where) for item in sites),
        path=doc.path,
        kernels=tuple(KernelRule(*_rule(item, mode, MEMORY_KINDS)) for item in kernels),
    )


def check_globs(pack: ProbePack, sites: Iterable[Site]) -> None:
    """Raise ``ContentError`` at the first entry that covers none of ``sites``: most likely a misspelling."""
    known = list(sites)
    for entry in pack.entries:
        rule = entry.rule
        named = [site for site in known if fnmatchcase(site.name, rule.glob)]
        if not named:
            hint = did_you_mean(rule.glob, (site.name for site in known)) if known else ""
            # A list of every site would not be of help.
            hint = hint if "did you mean" in hint else "; `specdebug probes list` shows them"
            raise ContentError(f"no site matches '{rule.glob}'{hint}", entry.where)
        if not any(rule.covers(site.name, site.kind) for site in named):
            kinds = ", ".join(sorted({site.kind for site in named}))
            raise ContentError(f"sites that match '{rule.glob}' probe {kinds} only", entry.where)


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


def _entries(top: Mapping[str, Item], name: str) -> Sequence[Item]:
    found = top[name].items(at_least=1) if name in top else ()
    if len(found) > MAX_ENTRIES:
        raise top[name].error(f"has more than {MAX_ENTRIES} entries")
    return found


def _rule(item: Item, mode: str, known: tuple[str, ...]) -> tuple[str, str, tuple[str, ...]]:
    """Glob, mode and kinds of an entry, whose kinds are among ``known``."""
    table = item.table(required=("glob",), optional=("kinds", "mode"))
    kinds = table["kinds"].items(at_least=1) if "kinds" in table else ()
    found = tuple(kind.text(choices=known) for kind in kinds) or known
    own = table["mode"].text(choices=MODES) if "mode" in table else mode
    return table["glob"].text(pattern=GLOB), own, found
