"""Kill bisect, flake, minimise and replay at random moments, resume them, and compare with a run nobody disturbed.

``python tools/kills.py`` runs ``--cases`` cases. Each runs one command of ``COMMANDS`` in a folder of its own, sends
SIGKILL to one of its processes at a random moment (so long after its start, or after so many finished trials), and runs
the same command again at once, until it ends by itself. Seed and number fix what a case kills and when; ``--only
NUMBER`` with the same ``--seed`` repeats one.

**The same answer** is the whole JSON document, and every byte of the scenario that ``minimise`` writes, but for where
the journal lies and how many of its trials were resumed; of ``replay``, for each arm all but what a clock or the memory
gauge measured. And the exit code. By victim:

``parent``
    The command itself. It is run again, and gives the same answer.
``reaper``
    The process that ends what is left. The command goes on with another, and gives the same answer.
``fork server``, ``worker``
    A kill from outside says nothing of the code. A search runs the trials it lost once more under the same numbers and
    seeds, and gives the same answer by itself. An arm of ``replay`` that was lost is ``unknown`` (``machine: somebody
    killed a worker``), the exit code is then 125; the other arms are as ever, and the next run gives the same answer.
``command``
    What follows ``--``. How a command ends is its verdict, whoever killed it: servers kill themselves when they fail.
    So that trial has failed as ``crash:SIGKILL``; every other trial gives what its seed and its fixes make of it.
    ``bisect`` names the same culprit for the same signature, after another number of trials perhaps. ``flake`` counts
    it as one failure among the others, and so may have seen enough a few trials sooner or later.

**Finished trials once**: every row that was in the journal when the parent was dead is there in the end, unchanged,
each number once, and all of them counted as resumed. Every row says what the undisturbed run's row of that number says
(but for ``command``, as above, where a search may go another way).

**No orphan**: no process with the case's marker in its environment is left ``reaper.LIMIT_S`` after the kill, none when
the last run has ended, and no trial of the resumed search is begun while a process of the killed one lives.

**No lock**: the run after the kill is not refused, although it begins at once.

The exit code is 1 if anything of that is wrong.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from specdebug.workers.reaper import LIMIT_S  # noqa: E402

MARKER = "SPECDEBUG_KILLS_CASE"
LOOK_S = 0.005
RUN_S = 300.0
"""A run that takes longer hangs."""
RUNS = 4
"""Runs of a case at most; one kill needs two."""
CULPRIT = "27360"

SCRIPT = f"""#!/bin/bash
sleep 1000 &
sleep 0.0$((SPECDEBUG_TRIAL_SEED % 4 + 1))
case ",$SGLANG_DEBUG_REVERT_PR," in
    *,{CULPRIT},*) if [ $((SPECDEBUG_TRIAL_SEED % 10)) -lt 8 ]; then echo 'found nan@draft.hidden_states'; exit 1; fi;;
esac
exit 0
"""
SCENARIO = """
name: tiny
engine:
  model: tiny
  context_length: 16
  max_running_requests: 1
  speculative: {algorithm: EAGLE, num_steps: 2, eagle_topk: 1}
  cuda_graph: {enabled: false}
  memory: {num_slots: 64}
workload:
  - {id: first, prompt: {token_ids: [5]}, max_new_tokens: 2}
  - {id: again, prompt: {token_ids: [5]}, max_new_tokens: 2}
arms:
  fixed: {}
  plain: {engine: {speculative: null}, probes: []}
  positions: {revert: [25015]}
expect:
  fixed: {verdict: pass}
  plain: {verdict: pass}
  positions: {verdict: fail, signature: "oob@draft.forward.positions"}
"""

COMMANDS: dict[str, tuple[str, ...]] = {
    "bisect command": ("bisect", "--json", "--", "./flaky.sh"),
    "bisect scenario": ("bisect", "tiny.yaml", "--jobs", "1", "--json"),
    "flake command": ("flake", "--revert", CULPRIT, "--jobs", "2", "--max-trials", "24", "--json", "--", "./flaky.sh"),
    "flake scenario": ("flake", "tiny.yaml", "--arm", "positions", "--max-trials", "6", "--json"),
    "minimise": ("minimise", "tiny.yaml", "--arm", "positions", "-o", "small.yaml", "--json"),
    "replay": ("replay", "tiny.yaml", "--jobs", "2", "--json"),
}
OFTEN = {"bisect command": 4, "bisect scenario": 2, "flake command": 4, "flake scenario": 2, "minimise": 1, "replay": 2}
"""How often each is run, by what it costs."""
OF_COMMAND = ("parent", "command", "reaper")
OF_SCENARIO = ("parent", "fork server", "worker", "reaper")
WEIGHTS = {"parent": 3, "command": 2, "fork server": 1, "worker": 2, "reaper": 1}

BOOKKEEPING = ("resumed", "journal")
MEASURED = ("metrics", "log_tail", "stages_s", "wall_s")


@dataclass(frozen=True)
class Case:
    """What one case kills and when. ``trials``: how many are to have ended by then; None goes by the clock. ``part``:
    of the undisturbed run's length, or of a trial's after those ``trials``."""

    number: int
    command: str
    victim: str
    trials: int | None
    part: float


@dataclass(frozen=True)
class Row:
    """A row of a journal; ``rest`` is what differs from run to run."""

    number: int
    reverted: str
    seed: int
    outcome: str
    signature: str | None
    rest: tuple[Any, ...] = ()

    @property
    def result(self) -> tuple[str, int, str, str | None]:
        """What is the same whenever the trial is run."""
        return self.reverted, self.seed, self.outcome, self.signature


@dataclass(frozen=True)
class Answer:
    """What a run ended with. ``written``: the scenario that ``minimise`` wrote."""

    status: int
    document: Mapping[str, Any]
    written: str = ""
    rows: tuple[Row, ...] = ()
    seconds: float = 0.0


@dataclass
class Result:
    """What became of a case. ``wrong`` holds what is, under the name of the column it belongs to."""

    case: Case
    hit: bool = False
    runs: int = 0
    seconds: float = 0.0
    wrong: dict[str, list[str]] = field(default_factory=dict)

    def add(self, column: str, *problems: str) -> None:
        """Note what is wrong."""
        if problems:
            self.wrong.setdefault(column, []).extend(problems)


def command_of(seed: int, number: int) -> str:
    """The command of the case of that number."""
    return random.Random(f"{seed}:{number}:command").choices(tuple(OFTEN), tuple(OFTEN.values()))[0]


def draw(seed: int, number: int, trials: int) -> Case:
    """The case of that number; ``trials`` says how many an undisturbed run of its command makes."""
    chance, command = random.Random(f"{seed}:{number}"), command_of(seed, number)
    victims = OF_COMMAND if command.endswith("command") else OF_SCENARIO
    victim = chance.choices(victims, [WEIGHTS[one] for one in victims])[0]
    done = chance.randrange(trials) if chance.random() < 0.5 else None
    return Case(number, command, victim, done, chance.random())


# -- what is right ----------------------------------------------------------------------------------------------------


def answer_problems(case: Case, expected: Answer, found: Answer, hit: bool) -> list[str]:
    """How a final answer differs from the undisturbed one in what must be the same."""
    wanted, told = (_essence(case.command, one.document) for one in (expected, found))
    if case.victim == "command" and hit:
        killed = [row for row in found.rows if row.signature == "crash:SIGKILL"]
        if len(killed) > 1:
            return [f"{len(killed)} trials were killed, not one"]
        if killed:
            return _after_a_killed_command(case.command, wanted, told, found.rows)
    problems = [f"{key} is {_short(told.get(key))}, not {_short(wanted.get(key))}" for key in _differing(wanted, told)]
    if found.status != expected.status:
        problems.append(f"exit code {found.status}, not {expected.status}")
    if found.written != expected.written:
        problems.append("another scenario was written")
    return problems


def _after_a_killed_command(
    command: str, wanted: Mapping[str, Any], told: Mapping[str, Any], rows: Sequence[Row]
) -> list[str]:
    if command.startswith("bisect"):
        keys = ("verdict", "exit_code", "signature")
        problems = [f"{key} is {told[key]}, not {wanted[key]}" for key in keys if told[key] != wanted[key]]
        if told["culprits"] != wanted["culprits"]:
            problems.append(f"culprits are {told['culprits']}, not {wanted['culprits']}")
        return problems
    counted = [row for row in rows if row.number < told["trials"]]
    due = {"runs": len(counted), "failures": sum(row.outcome == "fail" for row in counted)}
    due |= {"trials": len(counted), "exit_code": wanted["exit_code"]}
    return [f"{key} is {told[key]}, not {value}" for key, value in due.items() if told[key] != value]


def _essence(command: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """A document without what may differ from run to run."""
    if command != "replay":
        return {key: value for key, value in document.items() if key not in BOOKKEEPING}
    arms = {arm["arm"]: arm for arm in document.get("arms", ())}
    told: dict[str, Any] = {
        name: {key: value for key, value in arm.items() if key not in MEASURED} for name, arm in arms.items()
    }
    return {**told, "exit_code": document.get("exit_code")}


def interrupted_replay_problems(expected: Answer, found: Answer) -> list[str]:
    """What is wrong with a replay that lost workers: each arm must be as ever, or unknown because of the kill."""
    wanted, told = (_essence("replay", one.document) for one in (expected, found))
    lost, problems = 0, []
    for arm in _differing(wanted, told):
        outcome = told.get(arm)
        if arm == "exit_code":
            continue
        machine = (outcome or {}).get("machine") or {}
        if outcome is None or outcome["verdict"] != "unknown" or machine.get("cause") != "killed":
            problems.append(f"arm {arm} is {_short(outcome)}, neither as ever nor lost to the kill")
        lost += 1
    due = 125 if lost else expected.status
    if found.status != due:
        problems.append(f"exit code {found.status}, not {due}")
    return problems


def journal_problems(case: Case, expected: Sequence[Row], before: Sequence[Row], after: Sequence[Row]) -> list[str]:
    """What is wrong with a journal, given the undisturbed run's, and what it held when the parent was dead."""
    problems = [f"trial {number} is there {n} times" for number, n in Counter(r.number for r in after).items() if n > 1]
    now = {row.number: row for row in after}
    problems += [f"trial {row.number} was changed or lost" for row in before if now.get(row.number) != row]
    killed = [row for row in after if row.signature == "crash:SIGKILL"]
    known = {row.number: row for row in expected}
    for row in after:
        if case.victim == "command" and killed:
            wrong = row not in killed and row.result[2:] != what_script_does(row)
        else:
            wrong = row.number in known and row.result != known[row.number].result
        if wrong:
            problems.append(f"trial {row.number} says {row.result}")
    if case.command != "replay" and (not after or [row.number for row in after] != list(range(len(after)))):
        problems.append(f"trials {[row.number for row in after]} are there")
    return problems


def what_script_does(row: Row) -> tuple[str, str | None]:
    """Outcome and signature of a trial of ``SCRIPT``."""
    if CULPRIT in json.loads(row.reverted) and row.seed % 10 < 8:
        return "fail", "nan@draft.hidden_states"
    return "pass", None


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in {*one, *other} if one.get(key) != other.get(key))


def _short(value: object) -> str:
    return json.dumps(value, default=str)[:200]


# -- processes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """A living process of a case."""

    pid: int
    parent: int
    words: tuple[str, ...]


def marked(marker: str) -> dict[int, Process]:
    """Living processes with that marker in their environment. A zombie has none."""
    wanted = f"{MARKER}={marker}".encode()
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if wanted not in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                continue
            words = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace").split("\0")
            parent = int(Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except OSError:  # gone, or another user's
            continue
        found[int(name)] = Process(int(name), parent, tuple(words))
    return found


def role(process: Process, parent: int, processes: Mapping[int, Process]) -> str:
    """What a process is to the command whose process id is ``parent``."""
    if process.pid == parent:
        return "parent"
    if any(word.endswith("reaper.py") for word in process.words):
        return "reaper"
    if any("specdebug.workers.forkserver" in word for word in process.words):
        above = processes.get(process.parent)
        under_server = above is not None and any("specdebug.workers.forkserver" in word for word in above.words)
        return "worker" if under_server else "fork server"
    return "command" if any(word.endswith("flaky.sh") for word in process.words) else "other"


def kill(pid: int, marker: str) -> bool:
    """Kill that process if it is one of the case, whoever may have its number by now."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if f"{MARKER}={marker}".encode() not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(handle)


def survivors(marker: str, until: float) -> list[str]:
    """Processes that still live at that time."""
    while (left := marked(marker)) and time.monotonic() < until:
        time.sleep(LOOK_S)
    return [f"process {one.pid} ({' '.join(one.words)[:80]}) is left" for one in left.values()]


# -- runs -------------------------------------------------------------------------------------------------------------


@contextmanager
def started(command: str, folder: Path, marker: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run of a command, with its output in ``out`` and ``err`` of the folder."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SPECDEBUG", "SGLANG"))}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), MARKER: marker}
    words = [sys.executable, "-m", "specdebug", *COMMANDS[command]]
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def prepare(folder: Path) -> None:
    """Put script and scenario there."""
    folder.mkdir(parents=True)
    (folder / "tiny.yaml").write_text(SCENARIO)
    (folder / "flaky.sh").write_text(SCRIPT)
    (folder / "flaky.sh").chmod(0o755)


def answer(folder: Path, status: int, seconds: float) -> Answer:
    """What the last run in a folder ended with."""
    written = folder / "small.yaml"
    try:
        document = json.loads((folder / "out").read_bytes())
    except ValueError:
        document = {}
    text = written.read_text() if written.exists() else ""
    return Answer(status, document, text, tuple(rows_in(folder)), seconds)


def rows_in(folder: Path) -> list[Row]:
    """The rows of the folder's journal, read from a copy: what a killed process left unfinished stays for the next."""
    journals = [*folder.glob(".specdebug/*.sqlite")]
    if not journals:
        return []
    with tempfile.TemporaryDirectory() as place:
        for file in journals[0].parent.glob(f"{journals[0].name}*"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(file, place)
        columns = "number, reverted, seed, outcome, signature, seconds, besides, digest, at"
        with contextlib.closing(sqlite3.connect(Path(place, journals[0].name))) as database:
            if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                return []
            found = database.execute(f"SELECT {columns} FROM trials ORDER BY number").fetchall()
    return [Row(*row[:5], tuple(row[5:])) for row in found]


def finished(folder: Path) -> int:
    """How many trials, or arms, the run has reported the end of; ``flake`` reports failures, and few of the passes."""
    lines = (folder / "err").read_text(errors="replace").splitlines()
    arms = ("fixed: ", "plain: ", "positions: ", "what is left: ")
    return sum(line.startswith(("trial ", *arms)) and not line.endswith("starting") for line in lines)


def undisturbed(command: str, folder: Path) -> Answer:
    """A run to compare with."""
    prepare(folder)
    began = time.monotonic()
    with started(command, folder, f"{folder.name}.undisturbed") as process:
        status = process.wait(RUN_S)
    return answer(folder, status, time.monotonic() - began)


def disturb(case: Case, folder: Path, marker: str, process: subprocess.Popen[bytes], expected: Answer) -> bool:
    """Wait for the case's moment and kill its victim, or the next that takes its place; False if there was none."""
    began = time.monotonic()
    if case.trials is None:
        due = began + case.part * expected.seconds
    else:
        while finished(folder) < case.trials and process.poll() is None:
            time.sleep(LOOK_S)
        due = time.monotonic() + case.part * expected.seconds / 2 / max(1, len(expected.rows) or 3)
    while time.monotonic() < due and process.poll() is None:
        time.sleep(min(LOOK_S, max(0.0, due - time.monotonic())))
    chance = random.Random(case.part)
    while process.poll() is None and time.monotonic() < began + RUN_S:
        processes = marked(marker)
        victims = [one for one in processes.values() if role(one, process.pid, processes) == case.victim]
        if victims and kill(chance.choice(victims).pid, marker):
            return True
        time.sleep(LOOK_S)
    return False


def run_case(case: Case, folder: Path, expected: Answer) -> Result:
    """Run one case to its end."""
    prepare(folder)
    began = time.monotonic()
    result = Result(case)
    markers = [f"{os.getpid()}.{folder.name}.{run}" for run in range(RUNS)]
    with started(case.command, folder, markers[0]) as process:
        result.hit = disturb(case, folder, markers[0], process, expected)
        killed_at = time.monotonic()
        status = _wait(process, result)
    before = rows_in(folder)
    found = answer(folder, status, 0.0)
    result.runs = 1
    if case.command == "replay" and result.hit and case.victim in ("fork server", "worker"):
        result.add("answer", *interrupted_replay_problems(expected, found))
    elif result.hit and case.victim != "parent" and status != expected.status:
        result.add("answer", f"it did not go on: exit code {status}, {_last_line(folder)}")
    while result.runs < RUNS and status != expected.status:
        with started(case.command, folder, markers[result.runs]) as process:
            beside = _beside(process, markers[result.runs - 1], markers[result.runs])
            if case.command != "replay":  # which has no journal to guard
                result.add("orphans", *beside)
            result.add("orphans", *survivors(markers[result.runs - 1], killed_at + LIMIT_S))
            status = _wait(process, result)
        if "is in use by" in (folder / "err").read_text(errors="replace"):
            result.add("locks", _last_line(folder))
        result.runs += 1
    last = answer(folder, status, 0.0)
    result.add("answer", *answer_problems(case, expected, last, result.hit))
    result.add("kept", *journal_problems(case, expected.rows, before, last.rows))
    if case.command != "replay" and result.runs > 1:
        due = sum(row.number < last.document.get("trials", 0) for row in before)
        if last.document.get("resumed") != due:
            result.add("kept", f"{last.document.get('resumed')} trials were resumed, not {due}")
    result.add("orphans", *(line for marker in markers[: result.runs] for line in survivors(marker, 0.0)))
    result.seconds = time.monotonic() - began
    return result


def _wait(process: subprocess.Popen[bytes], result: Result) -> int:
    try:
        return process.wait(RUN_S)
    except subprocess.TimeoutExpired:
        result.add("answer", f"a run did not end within {RUN_S:g} s")
        process.kill()
        return process.wait()


def _beside(process: subprocess.Popen[bytes], old: str, new: str) -> list[str]:
    """Watch until nothing is left of the killed run, or the new one has begun a trial: what then still lives."""
    while process.poll() is None:
        now = marked(new)
        left = [one for one in marked(old).values() if role(one, 0, {}) != "reaper"]
        if not left:
            return []
        if any(role(one, process.pid, now) in ("command", "fork server") for one in now.values()):
            return [f"a trial began beside process {one.pid} ({' '.join(one.words)[:80]})" for one in left]
        time.sleep(LOOK_S)
    return []


def _last_line(folder: Path) -> str:
    lines = (folder / "err").read_text(errors="replace").splitlines()
    return lines[-1] if lines else "nothing on stderr"


# -- the campaign -----------------------------------------------------------------------------------------------------


def table(results: Sequence[Result]) -> Table:
    """One row for every command and victim."""
    shown = Table(title="kill -9 and resume")
    for column in ("command", "victim", "cases", "killed", "resumed", "same answer", "trials once", "orphans", "locks"):
        shown.add_column(column, justify="left" if column in ("command", "victim") else "right")
    groups = sorted({(one.case.command, one.case.victim) for one in results})
    for command, victim in [*groups, ("all", "")]:
        mine = [one for one in results if command == "all" or (one.case.command, one.case.victim) == (command, victim)]
        fine = {name: sum(name not in one.wrong for one in mine) for name in ("answer", "kept", "orphans", "locks")}
        counts = [len(mine), sum(one.hit for one in mine), sum(one.runs > 1 for one in mine)]
        counts += [fine["answer"], fine["kept"], len(mine) - fine["orphans"], len(mine) - fine["locks"]]
        shown.add_row(command, victim, *map(str, counts))
    return shown


def campaign(numbers: Sequence[int], seed: int, jobs: int, place: Path, tell: Callable[[str], None]) -> list[Result]:
    """Run the undisturbed commands, then the cases; a folder is kept if something is wrong in it."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        # Only what is needed: a single case is repeated often.
        wanted = {command_of(seed, number) for number in numbers}
        kinds = [command for command in COMMANDS if command in wanted]
        runs = pool.map(lambda kind: undisturbed(kind, place / kind.replace(" ", "-")), kinds)
        expected = dict(zip(kinds, runs, strict=True))
        for kind, one in expected.items():
            tell(f"{kind}: {len(one.rows)} trials, exit code {one.status}, {one.seconds:.1f} s")
        trials = {kind: len(one.rows) or len(one.document["arms"]) for kind, one in expected.items()}
        cases = [draw(seed, number, trials[command_of(seed, number)]) for number in numbers]
        begun = [pool.submit(run_case, case, place / str(case.number), expected[case.command]) for case in cases]
        results = []
        try:
            for future in concurrent.futures.as_completed(begun):
                result = future.result()
                results.append(result)
                tell(line_of(result, len(results), len(cases)))
                if not result.wrong:
                    shutil.rmtree(place / str(result.case.number))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            tell(f"interrupted after {len(results)} of {len(cases)} cases")
    return results


def line_of(result: Result, done: int, of: int) -> str:
    """How a case went, in a line, and below it what is wrong."""
    case = result.case
    when = f"{case.part:.0%} of its time" if case.trials is None else f"trial {case.trials}"
    how = f"{case.victim} at {when}" if result.hit else f"no {case.victim} left at {when}"
    said = "wrong" if result.wrong else "ok"
    text = f"{done}/{of} case {case.number}: {case.command}, {how}, {result.runs} runs, {result.seconds:.1f} s: {said}"
    return "\n   ".join([text, *(f"{name}: {line}" for name, lines in result.wrong.items() for line in lines)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, help="of what is killed and when; a new one unless given")
    parser.add_argument("--only", type=int, action="append", help="run the case of this number alone (repeatable)")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--folder", type=Path, help="where they run (a temporary folder unless given)")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    place = options.folder or Path(tempfile.mkdtemp(prefix="specdebug-kills-"))
    began = time.monotonic()
    numbers = options.only or range(options.cases)
    results = campaign(numbers, seed, options.jobs, place, lambda line: print(line, flush=True))
    Console(width=None if sys.stdout.isatty() else 120).print(table(results))
    wrong = sorted(one.case.number for one in results if one.wrong)
    print(f"{len(results) - len(wrong)} of {len(results)} cases are right, in {time.monotonic() - began:.0f} s")
    if wrong:
        again = " ".join(f"--only {number}" for number in wrong[:10])
        print(f"repeat what is wrong with: python tools/kills.py --seed {seed} {again}; what they left is in {place}")
    elif not options.folder:
        shutil.rmtree(place)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
