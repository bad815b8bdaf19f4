"""Whatever happens to a content file, its loader returns or says what is wrong in one line with a place.

Every shipped scenario, toggle and pack is mutated, as bytes, as lines and as values, from seeded streams.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from specdebug.base.errors import ContentError
from specdebug.base.trial import stream
from specdebug.base.yamlio import load_yaml
from specdebug.patching.toggles import load_toggle
from specdebug.scenario.checks import KnownNames, scenario_of
from specdebug.scenario.packs import read_pack

ROOT = Path(__file__).parents[2]
MUTATIONS = 6000

PLACED = re.compile(r"^mutant\.yaml:\d+:\d+: \S")
"""What every complaint about a file's content starts with."""

KNOWN = KnownNames(range(1, 100_000), ("default",))

# Values that have broken YAML readers, number parsers and terminals before.
SCALARS = [
    "null", "~", "true", "no", "-1", "0", "1e400", "-1e-400", ".inf", "-.inf", ".nan", "9" * 41,
    "0x" + "f" * 39, "1_000", "1:30", "0o17", "2026-11-21", "''", '"\\0"', '"\\x1b[31m"',
    "!!python/object/apply:os.system [id]", "!!binary aGk=", "!local x", "&a [*a]", "*nothing", "<<",
    "{<<: {a: 1}}", "[]", "{}", "[[[[[[]]]]]]", "{? [a]: b}", "|\n  block", ">-\n  folded", "'unclosed",
    "[unclosed", "é", "\U0001f600", "\u2028", "\ufeff", "\x07", "\ud7ff", "%YAML 1.1", "---", "...",
    "a: b: c", "@x", "`x`", "\t", "# comment", "guard@", "@", "*@*",
]  # fmt: skip
VALUES = [None, True, -1, 0, 10**30, 2.5, float("inf"), "word", "", [], [1, "a"], {}, {"a": {}}]
BOMBS = [
    "[" * 5000,
    "{a: " * 3000,
    "- " * 3000,
    "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60)),
    "x" * 200_000,
    "? " * 2000,
    "\n" * 50_000,
    "&a " * 500 + "x",
]  # fmt: skip

TOKEN = re.compile(rb"[A-Za-z0-9_.@*-]+|[^\w\s]|\s+")


def flip_bytes(raw, rng, _all):
    mutant = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        mutant[rng.randrange(len(mutant))] = rng.randrange(256)
    return bytes(mutant)


def drop_bytes(raw, rng, _all):
    start = rng.randrange(len(raw))
    return raw[:start] + raw[start + rng.randint(1, 40) :]


def cut(raw, rng, _all):
    return raw[: rng.randrange(len(raw))]


def shuffle_lines(raw, rng, _all):
    lines = raw.split(b"\n")
    chosen = rng.randrange(len(lines))
    line = lines.pop(chosen)
    if rng.random() < 0.5:
        for _ in range(rng.randint(1, 3)):
            lines.insert(rng.randrange(len(lines) + 1), line)
    return b"\n".join(lines)


def indent_line(raw, rng, _all):
    lines = raw.split(b"\n")
    chosen = rng.randrange(len(lines))
    lines[chosen] = rng.choice([b" ", b"    ", b"\t", b"- "]) + lines[chosen]
    return b"\n".join(lines)


def swap_tokens(raw, rng, _all):
    tokens = TOKEN.findall(raw)
    first, second = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    tokens[first], tokens[second] = tokens[second], tokens[first]
    return b"".join(tokens)


def replace_token(raw, rng, _all):
    words = [match.span() for match in re.finditer(rb"[A-Za-z0-9_.@*-]+", raw)]
    start, stop = rng.choice(words)
    return raw[:start] + rng.choice(SCALARS).encode("utf-8", "surrogatepass") + raw[stop:]


def misspell(raw, rng, _all):
    words = [match.span() for match in re.finditer(rb"[A-Za-z_]{3,}", raw)]
    start, stop = rng.choice(words)
    at = rng.randrange(start, stop - 1)
    return raw[:at] + raw[at + 1 : at + 2] + raw[at : at + 1] + raw[at + 2 :]


def splice(raw, rng, everything):
    other = rng.choice(everything)
    return raw[: rng.randrange(len(raw))] + other[rng.randrange(len(other)) :]


def bomb(raw, rng, _all):
    lines = raw.decode().split("\n")
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(BOMBS))
    return "\n".join(lines).encode()


def change_value(raw, rng, _all):
    """A value somewhere in the tree becomes one of another type, or its key another key."""
    data = yaml.safe_load(raw)
    holder = data
    while True:
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        if not keys:
            return raw
        key = rng.choice(keys)
        below = holder[key]
        if not isinstance(below, dict | list) or rng.random() < 0.2:
            break
        holder = below
    if isinstance(holder, dict) and rng.random() < 0.2:
        holder[rng.choice(["x", "name", 7, None, True])] = holder.pop(key)
    else:
        holder[key] = rng.choice(VALUES)
    return yaml.safe_dump(data, allow_unicode=rng.random() < 0.5).encode()


MUTATORS: list[Callable] = [
    flip_bytes, drop_bytes, cut, shuffle_lines, indent_line, swap_tokens, replace_token, misspell, splice,
    change_value, change_value, replace_token,
]  # fmt: skip

LOADERS = {
    "scenarios": lambda path: scenario_of(load_yaml(path), KNOWN),
    "toggles": load_toggle,
    "probes": lambda path: read_pack(load_yaml(path)),
}
SEEDS = {kind: [path.read_bytes() for path in sorted((ROOT / kind).glob("*.yaml"))] for kind in LOADERS}


def verdict(load, path):
    """None when the loader took the file, else its complaint, which must be one placed line."""
    try:
        load(path)
    except ContentError as error:
        said = str(error)
        assert "\n" not in said, said
        assert said.isprintable(), ascii(said)
        assert len(said) < 2000, len(said)
        assert PLACED.match(said), said
        return said
    return None


@pytest.mark.parametrize("kind", LOADERS)
def test_mutants_load_or_are_told_off_in_one_line(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("mutant.yaml")
    outcomes = {"taken": 0, "refused": 0}
    seeds = SEEDS[kind]
    assert seeds
    for number in range(MUTATIONS // len(LOADERS)):
        rng = stream(0, "fuzz", kind, number)
        mutator = bomb if number % 100 == 0 else rng.choice(MUTATORS)
        mutant = mutator(rng.choice(seeds), rng, seeds)
        path.write_bytes(mutant)
        try:
            outcomes["refused" if verdict(LOADERS[kind], path) else "taken"] += 1
        except Exception as error:
            pytest.fail(f"{kind} mutant {number} by {mutator.__name__}: {error!r}\n{mutant[:2000]!r}")
    # Comments and free text make some mutants harmless, but many must be noticed.
    assert outcomes["refused"] > outcomes["taken"] / 2


@pytest.mark.parametrize("kind", LOADERS)
def test_shipped_files_are_taken(kind):
    for path in sorted((ROOT / kind).glob("*.yaml")):
        LOADERS[kind](path)
