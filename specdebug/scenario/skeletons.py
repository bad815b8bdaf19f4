"""New files of content: commented, right as they stand, and with a first line by which editors find their schema."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from specdebug.base.content import KINDS, Kind
from specdebug.base.schema import Schema
from specdebug.scenario.validation import GRAMMARS

SCHEMAS: Mapping[Kind, str] = {"scenarios": "scenario.json", "toggles": "toggle.json", "probes": "probe-pack.json"}
_SCENARIO = """\
# What is asked of an engine, what must hold, and the ways to run it. docs/scenarios.md has every key.
#   specdebug scenarios validate {file}
#   specdebug replay {file}
name: {name}  # lower-case words, joined by hyphens
description: Two requests share a long prefix, and the second one hits the cache.
# target: {{launch: [./my-server, --port, "{{port}}"]}}  # your server (docs/your-engine.md), not the embedded engine
engine:
  model: tiny
  context_length: 256
  speculative: {{algorithm: EAGLE, num_steps: 3, eagle_topk: 1}}
workload:  # groups of requests alike
  - id: cold
    prompt: {{corpus: stdlib, tokens: 100, offset: 0}}
    max_new_tokens: 16
  - id: hit
    prompt: {{corpus: stdlib, tokens: 120, offset: 0}}  # slices of one offset are prefixes of each other
    max_new_tokens: 16
    arrive: {{after: cold}}
probes: [default]  # packs: `specdebug probes list`
arms:  # each is a run in a process of its own
  fixed: {{}}
  # reverted: {{revert: [27338]}}  # `specdebug toggles list` has the numbers
expect:
  fixed: {{verdict: pass}}
  # reverted: {{verdict: fail, signature: "oob@*"}}
"""
_PACK = """\
# Which probes are live, and what they do when they find something. probes/README.md has every key.
#   specdebug probes list               the sites
#   specdebug probes validate {file}
name: {name}  # lower-case words, joined by hyphens
description: What it watches, in one sentence.
mode: record  # record: note it and go on; assert: end the run at the first finding
sites:  # of the entries that cover a probe the last one decides; a probe that none covers is off
  - glob: "draft*"  # '*' matches dots, too
    kinds: [nan, inf]  # nan, inf, oob, page_aligned; all if absent
  - glob: "verify.*"
"""
_TOGGLE = """\
# A fix, as the edits that take it out again. toggles/README.md has every key.
#   specdebug toggles validate {file}
#   specdebug run --content {root} --revert {name} -- ./my-job.sh
pr: {name}  # selects it, as in --revert {name}
title: {title}
# url: https://github.com/OWNER/REPOSITORY/pull/{name}
family: unsorted  # a word or two for bugs of one kind
symptom: what a user sees where the fix is missing
patches:
"""
_MINED = """\
# yaml-language-server: $schema={schema}
# Mined from git. toggles/README.md has every key.
#   specdebug toggles validate {file}
pr: {number}
title: {title}
{url}family: {family}
symptom: {symptom}
description: |
{facts}
"""
_EDITS = [("the fixed lines, as they stand in the function", "the lines as they were before the fix")]


def root_of(kind: Kind, file: Path) -> Path:
    """The folder of content that a file is for: that around ``scenarios/`` and its like, else the file's own."""
    return file.parent.parent if file.absolute().parent.name == kind else file.parent


def schemas(root: Path) -> dict[Path, Schema]:
    """The JSON schema of each kind of content, by the file that new content names."""
    return {root / "schemas" / SCHEMAS[kind]: GRAMMARS[kind].json_schema() for kind in KINDS}


def skeleton(kind: Kind, name: str, file: Path, title: str = "what the fix does, on one line") -> str:
    """A new file. That of a toggle goes on with :func:`patches_text`."""
    body = {"scenarios": _SCENARIO, "probes": _PACK, "toggles": _TOGGLE}[kind]
    filled = body.format(name=name, file=file, root=root_of(kind, file), title=_scalar(title))
    return f"# yaml-language-server: $schema={_schema_beside(kind, file)}\n{filled}"


def mined(number: int, title: str, url: str, family: str, symptom: str, facts: Iterable[str], file: Path) -> str:
    """A toggle of a fix in git, up to its patches. ``facts``: lines of its description."""
    return _MINED.format(
        schema=_schema_beside("toggles", file),
        file=file,
        number=number,
        title=_scalar(title),
        url=f"url: {url}\n" if url else "",
        family=_scalar(family),
        symptom=_scalar(symptom),
        facts="\n".join(f"  {fact}" for fact in facts),
    )


def patches_text(targets: Iterable[tuple[str, list[tuple[str, str]]]]) -> str:
    """The patches of a toggle, by the package that each target (``package.module:function``) is in."""
    by_package: dict[str, list[str]] = {}
    for target, edits in targets:
        package = target.partition(":")[0].partition(".")[0]
        lines = by_package.setdefault(
            package, [f'  {package}:  # for every version; by version: {{">=0.5,<0.7": [...]}}']
        )
        lines += [f"    - target: {target}", "      edits:"]
        for match, replacement in edits:
            lines += [f"        - match: {_block(match)}", f"          replacement: {_block(replacement)}"]
    return "\n".join(line for lines in by_package.values() for line in lines) + "\n"


def _schema_beside(kind: Kind, file: Path) -> str:
    """The path of the schema from the folder of a file."""
    return Path(os.path.relpath(root_of(kind, file) / "schemas" / SCHEMAS[kind], file.parent)).as_posix()


def placeholder(target: str) -> str:
    """The patches of a toggle whose edits are still to be written."""
    return patches_text([(target, _EDITS)])


def _scalar(text: str) -> str:
    """Text on one line as YAML has it."""
    return json.dumps(text, ensure_ascii=False)


def _block(text: str) -> str:
    """Lines as a block of YAML; where one would not come back as it is, a string in quotes."""
    lines = text.split("\n")
    if not text.strip() or lines[0] != lines[0].lstrip() or not all(each.isprintable() for each in lines):
        return _scalar(text)
    return "\n".join(["|", *(f"            {line}".rstrip() for line in lines)])
