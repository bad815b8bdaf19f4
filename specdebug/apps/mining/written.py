"""A mined toggle as a file: facts of the fix, its edits, and what is known to show it."""

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specdebug.apps.mining.fitting import Fitted
from specdebug.apps.mining.fix import Fix
from specdebug.base.errors import one_line
from specdebug.patching.drift.dist import Dist
from specdebug.patching.source import walk_scopes
from specdebug.scenario.skeletons import mined, patches_text

DIMENSIONS: Mapping[str, str] = {
    "ranks": r"disaggreg|parallel|all_reduce|\b[td]p_|\bpp_|rank|nccl",
    "sampling": r"sampl|logprob|penalt|logit_bias|grammar|temperature",
    "CUDA graphs": r"graph|capture|replay",
    "drafting": r"specul|spec_|draft|propos|eagle|mtp|ngram|dflash|verify|accept",
    "KV cache": r"kv|cache|radix|alloc|pool|page|block",
    "attention": r"attention|attn|rope|mask",
    "scheduling": r"sched|batch|overlap|chunk|retract|queue",
    "serving": r"http|openai|tokenizer|server|entrypoint",
}
"""What a fix is about, by words in the names of its files and functions; where several fit, the one with most words."""

_FLAGS = re.compile(r"(server_args|args|config|cfg|spec|schedule)\Z")
_MANY = 8


@dataclass(frozen=True)
class Shown:
    """What shows a fix in a release: a scenario and the signature of its failure."""

    engine: str
    scenario: str
    signature: str


def dimensions(text: str) -> frozenset[str]:
    """All that the words of some names are about."""
    return frozenset(name for name, found in DIMENSIONS.items() if re.search(found, text.lower()))


def dimension(fix: Fix) -> str:
    """What a fix is about; ``other`` where no word says so."""
    text = "\n".join([*(each.source.path for each in fix.made), *fix.functions]).lower()
    counts = {name: len(re.findall(words, text)) for name, words in DIMENSIONS.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else "other"


def flags(fix: Fix) -> tuple[str, ...]:
    """Options that the functions of a fix read: attributes of ``server_args``, ``config`` and their like."""
    found = set[str]()
    for each in fix.made:
        nodes = [node for name, node in walk_scopes(each.source.tree) if name.replace("<locals>.", "") in each.edits]
        for node in (inner for outer in nodes for inner in ast.walk(outer)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
                owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                found |= {node.attr} if _FLAGS.search(owner) else set()
    return tuple(sorted(found))[:_MANY]


def edits_by_version(fix: Fix, fits: Mapping[Dist, Fitted]) -> dict[str, Mapping[str, Sequence[tuple[str, str]]]]:
    """The edits by target, as each release takes them; as the fix has them, for all versions, where none is given."""
    edits = [pairs for each in fix.made for pairs in each.edits.values()]
    plain = dict(zip(fix.functions, edits, strict=True))
    return {f"=={dist.version}": one.edits for dist, one in fits.items()} or {"": plain}


def toggle_text(
    fix: Fix,
    file: Path,
    edits: Mapping[str, Mapping[str, Sequence[tuple[str, str]]]],
    shown: Sequence[Shown] = (),
    notes: Sequence[str] = (),
) -> str:
    """The file of a toggle. ``edits``: by version range (empty for all versions), by target. ``notes``: lines to tell
    with it, such as what was moved and what was tried."""
    files = sorted({each.source.path for each in fix.made})
    facts = [
        f"Commit {fix.commit}.",
        *(f"File {each}." for each in files),
        *(f"Function {each}." for each in fix.functions),
        *(f"It reads the option {each}." for each in flags(fix)),
        *(f"Left out: {each}." for each in fix.left_out),
        *notes,
    ]
    symptom = f"{shown[0].signature} in {shown[0].scenario}" if shown else "not known; no scenario has shown it yet"
    return mined(
        fix.number, fix.title or f"commit {fix.commit[:10]}", fix.url, dimension(fix), symptom, facts, file
    ) + "".join([_detected(shown), "patches:\n", *_patches(edits)])


def _detected(shown: Sequence[Shown]) -> str:
    lines = [f'  {each.engine}: {{scenario: {each.scenario}, signature: "{each.signature}"}}\n' for each in shown]
    return "".join(["detected_in:\n", *lines]) if lines else ""


def _patches(edits: Mapping[str, Mapping[str, Sequence[tuple[str, str]]]]) -> list[str]:
    """The patches of each package, of one version range or several."""
    ranges = dict[str, list[tuple[str, str]]]()
    for versions, by_target in edits.items():
        whole = patches_text([(target, list(pairs)) for target, pairs in by_target.items()])
        for part in re.split(r"(?m)^(?=  \S)", whole)[1:]:
            head, _, body = part.partition("\n")
            ranges.setdefault(head.strip().partition(":")[0], []).append((versions, body))
    text = list[str]()
    for package, parts in ranges.items():
        text.append(f"  {package}:\n")
        for versions, body in parts:
            text.append(f'    "{versions}":\n{textwrap.indent(body, "  ")}' if versions else body)
    return text


def wrapped(note: str) -> str:
    """A note on one line, ended as a sentence."""
    return f"{one_line(note, 300).rstrip('.')}."
