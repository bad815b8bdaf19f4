"""The trials that searches choose, as a script: the same on every processor, or the search is not reproducible.

    python tests/search/path_of_search.py              # every scene: each trial, then a line with the digest
    python tests/search/path_of_search.py --digest     # only that line
    python tests/search/path_of_search.py FILE.sqlite  # what a search would try next after each trial kept

Run it under other settings (``OPENBLAS_CORETYPE=Haswell``, ``NPY_DISABLE_CPU_FEATURES=X86_V3``, ``OMP_NUM_THREADS=2``)
or elsewhere and compare. ``trials`` is of what was chosen, ``bits`` of the probabilities behind it, to the last bit.
"""

import argparse
import hashlib
import itertools
import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from specdebug.search.bisect import Bisector, OrderedBisector
from specdebug.search.subset import Probe, SubsetSearch, TrialRates

RECORDED = Path(__file__).with_name("observations.json")

Line = tuple[str, str]
"""A trial as text, and the exact numbers behind it."""


def drawn(*what: object) -> float:
    """A number from 0 to 1 that depends on the text of ``what`` alone."""
    digest = hashlib.blake2b(":".join(map(str, what)).encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


def exact(*numbers: float) -> str:
    return " ".join(float(number).hex() for number in numbers)


def members(trial: frozenset[str]) -> str:
    return ",".join(sorted(trial)) or "nothing"


def state(search: Bisector | OrderedBisector) -> str:
    rates = search.rates
    probabilities = [probability for _, probability in search.posterior(20)]
    return exact(*probabilities, rates.manifest.mean, rates.false_failure.mean)


def replayed(names: list[str], trials: list[tuple[frozenset[str], bool | None]], seed: int) -> Iterator[Line]:
    """What comes next after each recorded trial, alone and with the two trials that came after it still running."""
    search = Bisector(names, seed=seed)
    for number, (trial, failed) in enumerate(trials):
        running = [other for other, _ in trials[number : number + 2]]
        yield members(search.next_trial()), exact(search.expected_bits())
        yield members(search.next_trial(running)), state(search)
        search.observe(trial, failed)
    yield members(search.next_trial()), state(search)


def sets(seed: int) -> Iterator[Line]:
    """A pair among 24, one candidate that breaks most trials, false failures; three trials run at a time."""
    names = [f"fix-{n}" for n in range(24)]
    search, running = Bisector(names, seed=seed), list[frozenset[str]]()
    for number in range(70):
        while len(running) < 3:
            running.append(search.next_trial(running))
            yield members(running[-1]), ""
        trial = running.pop(0)
        fails = {"fix-3", "fix-17"} <= trial and drawn(seed, number, "shows") < 0.6
        broken = "fix-8" in trial and drawn(seed, number, "breaks") < 0.8
        search.observe(trial, None if broken else fails or drawn(seed, number, "false") < 0.03)
        yield "stalled" if search.stalled else "goes on", state(search)


def commits(count: int, seed: int) -> Iterator[Line]:
    """A flaky culprit among thousands of commits, some of which do not build; two trials run at a time."""
    search, running = OrderedBisector([str(n) for n in range(count)]), list[frozenset[str]]()
    culprit = int(count * drawn(seed, "culprit"))
    for number in range(30):
        while len(running) < 2:
            running.append(search.next_trial(running))
            yield next(iter(running[-1]), "-1"), ""
        trial = running.pop(0)
        at = int(next(iter(trial), "-1"))
        fails = at >= culprit and drawn(seed, number, "shows") < 0.5
        search.observe(trial, None if drawn(seed, at // 40, "builds") < 0.1 else fails)
        yield "stalled" if search.stalled else "goes on", state(search)


def subsets(seed: int) -> Iterator[Line]:
    """Minimising forty elements of which three are needed, by a flake; two trials run at a time."""
    fresh = itertools.count()
    search = SubsetSearch(40, TrialRates(0.4, 0.6, 0.012), lambda: next(fresh), (-1, -2, -3), lambda removed: True)
    running: list[Probe] = []
    for number in range(80):
        while len(running) < 2 and (probe := search.next_probe(running)) is not None:
            running.append(probe)
            yield f"{sorted(probe.removed)} seed {probe.seed}", ""
        if not running:
            break
        probe = running.pop(0)
        search.observe(probe, not probe.removed & {5, 21, 30} and drawn(seed, probe.seed, number) < 0.5)
        yield f"without {sorted(search.removed)}", exact(*search.needed, *vars(search.rates).values())


def recorded(path: Path) -> tuple[list[str], list[tuple[frozenset[str], bool | None]]]:
    """Candidates and trials of a recorded search: a journal, or a JSON file as :data:`RECORDED`.

    A journal of the command line does not hold the candidates: they are what its trials have switched on.
    """
    if path.suffix == ".json":
        found = json.loads(path.read_text("utf-8"))
        return found["candidates"], [(frozenset(names), failed) for names, failed in found["trials"]]
    verdicts = {"pass": False, "fail": True, "untestable": None}
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as journal:
        rows = journal.execute("SELECT reverted, outcome FROM trials ORDER BY number").fetchall()
    trials = [(frozenset(json.loads(reverted)), verdicts[outcome]) for reverted, outcome in rows]
    return sorted(frozenset().union(*(trial for trial, _ in trials))), trials


def scenes() -> Iterator[tuple[str, Iterator[Line]]]:
    """Everything there is to see."""
    yield f"after {RECORDED.name}", replayed(*recorded(RECORDED), seed=0)
    yield "sets", sets(seed=1)
    yield "commits", commits(4000, seed=3)
    yield "minimising", subsets(seed=4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journal", type=Path, nargs="?", help="follow this journal instead of the scenes")
    parser.add_argument("--seed", type=int, default=0, help="of the search after a journal")
    parser.add_argument("--digest", action="store_true", help="print the last line only")
    options = parser.parse_args()
    shown = scenes()
    if options.journal is not None:
        try:
            shown = iter([(f"after {options.journal}", replayed(*recorded(options.journal), seed=options.seed))])
        except (OSError, sqlite3.Error, ValueError, KeyError) as error:
            parser.error(f"{options.journal} cannot be read as a journal: {error}")
    trials, bits = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=8)
    for title, lines in shown:
        for number, (trial, numbers) in enumerate(lines):
            trials.update(f"{trial}\n".encode())
            bits.update(f"{numbers}\n".encode())
            if not options.digest:
                print(f"{title} {number}: {trial}")
    print(f"trials {trials.hexdigest()} bits {bits.hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
