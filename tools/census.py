"""Renew the table of upstream's fixes of speculative decoding in docs/upstream.md, from checkouts. Facts only.

    python tools/census.py sglang=~/src/sglang vllm=~/src/vllm --since 2025-08-01
    python tools/census.py sglang=~/src/sglang --since 2025-08-01 -o table.md     # into a file that has the two marks

A commit counts if its subject has a word of a fix and a pull request's number, and its subject or one of its Python
files, tests left out, names speculative decoding. Of each the table has the number, the day of the commit, how many
files it changed and the first of them that is about drafting, dimensions by words of its subject and its files, and
what its code needs to run. No words of upstream are taken over. Rows of engines that are not named stay as they are.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from specdebug.apps.mining.fix import number_of
from specdebug.base.errors import SpecDebugError
from specdebug.base.git import git
from specdebug.patching.reversal import is_test

PAGE = Path(__file__).resolve().parents[1] / "docs" / "upstream.md"
BEGIN, END = "<!-- census -->", "<!-- end of census -->"
HEAD = "| engine | fix | day | files | first file | dimensions | needs |\n|---|---|---|---|---|---|---|"

FIX = re.compile(r"\b(bug\s?fix|fix(es|ed)?|hotfix|bug|repair|correct(s|ed)?)\b", re.IGNORECASE)
SPECULATIVE = re.compile(
    r"specul|spec[_ -]?dec|draft|eagle|\bmtp\b|_mtp|mtp_|d_?flash|dspark|n-?gram|medusa", re.IGNORECASE
)
DIMENSIONS = {
    "F": r"dflash|dspark|parallel.draft",
    "H": r"mamba|gdn|hybrid|linear_attn|short_conv",
    "D": r"\bdsa\b|nsa|dsv4|deepseek_?v4|indexer|sparse",
    "R": r"rank|nccl|distributed|\b[tdep]p\b|parallel_state|expert.parallel",
    "C": r"hicache|offload|host.cache|kv.pool",
    "P": r"disagg|\bpd\b|mooncake|nixl|kv_transfer|llmdatadist",
    "S": r"\bswa\b|sliding",
    "G": r"grammar|structured|bitmask",
    "M": r"multimodal|\bmm_|vision|\bvl\b|mrope",
    "Q": r"quant|fp8|fp4|awq|gptq|w[48]a[48]",
    "N": r"n-?gram|standalone|suffix|medusa",
    "V": r"adaptive|dynamic.(length|spec)",
    "L": r"\blora\b",
    "W": r"load(er)?\b|weight|config",
}
"""By letter of a dimension, words of subjects and files; one that no word tells is of the core, A."""
NEEDS = {
    "a kernel": r"\.(cu|cuh|cpp|hip)\b|csrc/|triton|/kernels?/|/ops/",
    "ranks": r"distributed/|parallel_state|disaggreg|kv_transfer|mooncake|nccl|/eplb",
    "other hardware": r"npu|ascend|amd|rocm|/hip|xpu|tpu|musa|hpu",
}
"""By what the code of a fix needs, words of its files."""


@dataclass(frozen=True, order=True)
class Row:
    """A fix: facts, and nothing of its words."""

    engine: str
    day: str
    number: int
    files: int
    first: str
    dimensions: str
    needs: str

    def text(self) -> str:
        cells = (self.engine, self.number, self.day, self.files, f"`{self.first}`", self.dimensions, self.needs)
        return f"| {' | '.join(map(str, cells))} |"


def rows(engine: str, checkout: Path, since: str) -> Iterator[Row]:
    """The fixes of a checkout's branch since a day. Raises SpecDebugError where it is no checkout."""
    form = "--format=%x1e%H%x1f%cs%x1f%s%x1f"
    told = git(checkout, "log", "--no-merges", "--no-renames", f"--since={since}", "--name-only", form)
    if told.returncode:
        raise SpecDebugError(f"{checkout} is no checkout: {told.stderr.decode(errors='replace').strip()}")
    for record in told.stdout.decode(errors="replace").split("\x1e")[1:]:
        commit, day, subject, names = record.split("\x1f")
        number, known = number_of(subject, commit)
        if known and FIX.search(subject) and (row := _row(engine, number, day, subject, names.split("\n"))):
            yield row


def _row(engine: str, number: int, day: str, subject: str, names: Sequence[str]) -> Row | None:
    files = [name for name in names if name.endswith(".py") and not is_test(name.replace("/", ".").removesuffix(".py"))]
    drafting = [name for name in files if SPECULATIVE.search(name)]
    if not files or not (drafting or SPECULATIVE.search(subject)):
        return None
    text = "\n".join([subject, *names]).lower()
    letters = "".join(letter for letter, words in DIMENSIONS.items() if re.search(words, text))
    needs = ", ".join(what for what, words in NEEDS.items() if re.search(words, "\n".join(names).lower()))
    return Row(engine, day, number, len(files), (drafting or files)[0], letters or "A", needs)


def named(text: str) -> tuple[str, Path]:
    """An engine and its checkout, of ``NAME=DIR``. Raises ArgumentTypeError for other text."""
    name, found, folder = text.partition("=")
    if not found or not re.fullmatch(r"[\w.-]+", name):
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=DIR, as in sglang=~/src/sglang")
    return name, Path(folder).expanduser()


def renewed(page: str, engines: Collection[str], found: Sequence[Row]) -> str:
    """A page with the rows of these engines made anew, newest first. Raises SpecDebugError where it has no marks."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise SpecDebugError(f"the page needs a line {BEGIN}, and below it a line {END}")
    before, _, rest = page.partition(BEGIN)
    old, _, after = rest.partition(END)
    kept = [line for line in old.splitlines() if re.match(r"\| (?!engine )\w", line)]
    kept = [line for line in kept if line.split("|")[1].strip() not in engines]
    lines = [HEAD, *sorted(kept), *(row.text() for row in sorted(found, reverse=True))]
    return f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}"


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Renew the table of upstream's fixes from checkouts.")
    parser.add_argument("checkouts", nargs="+", type=named, metavar="NAME=DIR")
    parser.add_argument("--since", required=True, metavar="DAY", help="take commits since this day, as in 2025-08-01")
    parser.add_argument("-o", "--output", type=Path, default=PAGE, help="renew the table in this file")
    given = parser.parse_args(words)
    try:
        found = [row for engine, checkout in given.checkouts for row in rows(engine, checkout, given.since)]
        page = renewed(given.output.read_text(), [engine for engine, _ in given.checkouts], found)
    except (SpecDebugError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    given.output.write_text(page)
    for engine, _ in given.checkouts:
        print(f"{engine}: {sum(row.engine == engine for row in found)} fixes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
