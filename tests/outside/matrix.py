"""What may happen to a command from outside, every command of the command line, and how each of them then ends.

The one declaration that ``test_outside.py`` plays for real and ``tools/outside.py`` makes ``docs/interruptions.md`` of.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
MINI = str(ROOT / "tests/cli/mini.yaml")
LOG = str(ROOT / "tests/logs/quoted/own-topk_kv_indices.txt")
NIGHTS = str(Path(__file__).with_name("nights"))
INPUTS = "{inputs}"
"""In a command line: a folder that holds ``b.specdebug``, a bundle of MINI's first arm."""

SCHEMAS = {f"schemas/{name}.json": "properties" for name in ("scenario", "toggle", "probe-pack")}
"""What `specdebug new` writes besides."""

Kind = Literal["signals", "pipe", "stdout", "disk", "folder", "descriptors"]


@dataclass(frozen=True)
class Condition:
    """Something that happens from outside. ``kind`` says how it is played, and decides the exit code; ``meaning`` and
    ``after`` are for a reader; ``signals`` are sent one after the other."""

    name: str
    kind: Kind
    meaning: str
    after: str
    signals: tuple[str, ...] = ()


_GO_ON = (
    "Workers and commands under test are ended, what is known is printed and written, arms that were not done are "
    "`unknown`. `bisect`, `flake`, `minimise`, `mutants` and `hunt` keep every finished trial: the same "
    "command goes on from there. Of `replay` run the arms that are missing (`--arm`)."
)

CONDITIONS = (
    Condition("TERM", "signals", "`SIGTERM`: `kill`, a CI job that is cancelled.", _GO_ON, ("SIGTERM",)),
    Condition("HUP", "signals", "`SIGHUP`: the terminal or the connection is gone.", "As after TERM.", ("SIGHUP",)),
    Condition("INT", "signals", "`SIGINT`: a Ctrl-C.", "As after TERM.", ("SIGINT",)),
    Condition(
        "INT, INT",
        "signals",
        "A second Ctrl-C while the first is being answered.",
        "As after TERM: a second signal cuts short only how long workers may take to be gone.",
        ("SIGINT", "SIGINT"),
    ),
    Condition(
        "PIPE",
        "pipe",
        "Who reads stdout goes away: `| head`, a pager that is left.",
        "That is no error: the rest of the report is dropped, the command goes on to its end, writes its files "
        "and ends with its own exit code. To end it, too, send it a signal.",
    ),
    Condition(
        "full stdout",
        "stdout",
        "stdout cannot be written: it is a file on a full disk (`/dev/full` is one).",
        "One line says so, and the exit code is 125. Result files (`--json-file`, `--junit`, `--html`, `-o`) are "
        "written all the same; of a search the same command prints its report again from the journal, without a trial.",
    ),
    Condition(
        "full disk",
        "disk",
        "The disk that result files and journals lie on is full by the time they are written.",
        "The report is on stdout. A result file is written whole or not at all, and what it was before stays. A "
        "journal holds the trials that had room: make room, and the same command goes on. The exit code is 125: "
        "the machine failed.",
    ),
    Condition(
        "read-only",
        "folder",
        "The working directory takes no files, and result files are to go there.",
        "Nothing is begun, for nothing could be kept: one line names the file. Name another place (`--journal` for "
        "that of a search). Commands that write no file do not mind.",
    ),
    Condition(
        "12 descriptors",
        "descriptors",
        "The process may have 12 files and pipes open at a time (`ulimit -n 12`).",
        "What can be had is used; a worker that cannot be started for want of one is the machine's failure (see "
        "[machines](machines.md)): one line, no verdict. Raise the limit and run it again.",
    ),
)


@dataclass(frozen=True)
class Row:
    """A command line, and what it comes to: ``plain`` is its exit code when nothing happens.

    ``workers``: how many stand-ins for workers end well before the signal comes, or the disk is full; None of a command
    that starts none. ``told``: on stdout after a signal, ``reported``: after the disk was full. ``files``: what it is
    to write, and what each holds after a signal; None: it is not written then. ``known``: what is told, for a reader.
    """

    command: str
    argv: tuple[str, ...] = ()
    plain: int = 0
    workers: int | None = None
    told: str = ""
    reported: str = ""
    files: Mapping[str, str | None] = field(default_factory=dict)
    journal: bool = False
    variant: str = ""
    known: str = "nothing: it ends at once"

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"{self.command} {self.variant}".strip()

    def exit_codes(self, condition: Condition) -> tuple[int, ...]:
        """How it may end then: one code, or its own and that of a worker that could not be started."""
        match condition.kind:
            case "signals":
                return (128 + Signals[condition.signals[0]],)
            case "stdout":
                return (125,)
            case "disk" if self.files or self.journal:
                return (125,)
            case "folder" if self.files or self.journal:
                return (2,)
            case "descriptors" if self.workers is not None:
                return tuple(dict.fromkeys((self.plain, 125)))
        return (self.plain,)


_ARMS = "every arm that ended, as it would be; the others `unknown`"

ROWS = (
    Row(
        "replay",
        (MINI, "-j", "1", "--json-file", "r.json", "--junit", "j.xml", "--html", "h.html", "--perfetto", "p.json"),
        workers=1,
        told="fixed",
        reported="fixed",
        files={
            "r.json": '"interrupted before it was done"',
            "j.xml": 'classname="specdebug.mini" name="fixed"',
            "h.html": "fixed",
            "p.json": "fixed",
        },
        known=_ARMS,
    ),
    Row(
        "replay",
        (f"{INPUTS}/b.specdebug", "--json-file", "r.json"),
        plain=0,
        workers=0,
        told="interrupted; recorded is pass",
        reported="recorded",
        files={"r.json": '"interrupted before it was done"'},
        variant="of a bundle",
        known="what was recorded, and that this run was interrupted",
    ),
    Row(
        "compare",
        (MINI, "-j", "1", "--json-file", "r.json", "--junit", "j.xml", "--html", "h.html"),
        workers=1,
        told="fixed",
        reported="fixed",
        files={"r.json": '"fixed"', "j.xml": 'name="fixed"', "h.html": "fixed"},
        known="the arm that ended; nothing is compared",
    ),
    Row(
        "diverge",
        (MINI, "--arm", "fixed", "--arm", "positions", "-j", "1", "--json-file", "r.json"),
        plain=1,
        workers=1,
        told="interrupted",
        files={"r.json": "interrupted"},
        known="that it was interrupted; with one recording nothing is aligned",
    ),
    Row(
        "twins",
        (MINI, "--relation", "alone", "-j", "1", "--json-file", "r.json", "--junit", "j.xml"),
        workers=1,
        told="interrupted",
        reported="1 hold",
        files={"r.json": '"interrupted": true', "j.xml": 'name="fixed, alone"'},
        known="that it was interrupted; nothing is compared",
    ),
    Row(
        "bundle",
        (MINI, "-o", "new.specdebug", "--json-file", "r.json"),
        workers=0,
        told="interrupted before it was done",
        reported="fixed",
        files={"new.specdebug": None, "r.json": None},
        known="the arm, `unknown`; no bundle is written",
    ),
    Row(
        "bisect",
        (MINI, "-j", "1", "--max-trials", "4", "--json-file", "r.json", "--html", "h.html"),
        plain=125,
        workers=2,
        told="after 2 trials",
        reported="after 2 trials",
        files={"r.json": '"trials": 2', "h.html": "after 2 trials"},
        journal=True,
        known="what is known after the trials that ended, which are in the journal",
    ),
    Row(
        "bisect",
        ("--max-trials", "4", "--json-file", "r.json", "--no-proof", "--", f"{INPUTS}/job"),
        plain=125,
        workers=2,
        told="after 2 trials",
        reported="after 2 trials",
        files={"r.json": '"trials": 2'},
        journal=True,
        variant="-- CMD",
        known="the same; the command under test is ended with all it started",
    ),
    Row(
        "flake",
        (MINI, "-j", "1", "--max-trials", "4", "--json-file", "r.json", "--junit", "j.xml", "--html", "h.html"),
        workers=2,
        told="0 of 2 failed",
        reported="0 of 2 failed",
        files={"r.json": '"runs": 2', "j.xml": "0 of 2 failed", "h.html": "0 of 2"},
        journal=True,
        known="the rate over the trials that ended, which are in the journal",
    ),
    Row(
        "flake",
        ("--max-trials", "4", "--json-file", "r.json", "--no-proof", "--", f"{INPUTS}/job"),
        workers=2,
        told="0 of 2 failed",
        reported="0 of 2 failed",
        files={"r.json": '"runs": 2'},
        journal=True,
        variant="-- CMD",
        known="the same; the command under test is ended with all it started",
    ),
    Row(
        "minimise",
        (MINI, "--arm", "positions", "-j", "1", "--max-trials", "4", "-o", "small.yaml", "--json-file", "r.json"),
        plain=125,
        workers=2,
        told="interrupted after 2 trials",
        reported="after 2 trials",
        files={"small.yaml": None, "r.json": '"interrupted"'},
        journal=True,
        known="what could be taken away by then; the small scenario is written if one is known to fail",
    ),
    Row(
        "mutants",
        (MINI, "--sample", "3", "--seed", "1", "-j", "1", "--json-file", "r.json", "--html", "h.html"),
        workers=0,
        told="stopped after 0 of 3",
        reported="stopped after 0 of 3",
        files={"r.json": '"interrupted"', "h.html": "3 mutants not run"},
        journal=True,
        known="the score of the mutants that were run, which are in the journal",
    ),
    Row(
        "hunt",
        ("-o", "hunt", "--count", "3", "--small", "0", "-j", "1", "--json-file", "r.json"),
        workers=1,
        told="interrupted; 1 scenario on embedded",
        reported="3 scenarios on embedded",
        files={"r.json": '"interrupted": true', "hunt/report.md": "1 scenario", "hunt/hunt.jsonl": '"pass"'},
        known="every scenario that ended, in the folder: the same command goes on from there",
    ),
    Row("history", (NIGHTS, "--json-file", "r.json"), files={"r.json": None}, reported="as it should be"),
    Row("triage", (LOG, "--json-file", "r.json"), files={"r.json": None}, reported="to run next:"),
    Row(
        "triage",
        (LOG, "--run", "-j", "1", "--json-file", "r.json"),
        workers=0,
        told="to run next:",
        reported="to run next:",
        files={"r.json": '"commands"'},
        variant="--run",
        known="what the log told, and the candidates that were tried",
    ),
    Row(
        "solve",
        (LOG, "--max-time", "20", "--json-file", "r.json", "--html", "h.html"),
        plain=125,
        workers=1,
        told="undecided: the search is not over",
        reported="the log: guard@",
        files={"r.json": '"undecided"', "h.html": "undecided"},
        known="what its stages told by then; the same command goes on from there",
    ),
    Row(
        "eval",
        ("--num-questions", "8", "--json-file", "r.json"),
        workers=0,
        told="8 of 8 questions have no answer",
        reported="score",
        files={"r.json": '"interrupted": true'},
        known="the score and the accept length of the answers that came; no threshold is judged",
    ),
    Row("new scenario", ("mine", "-o", "mine.yaml"), files={"mine.yaml": "workload", **SCHEMAS}),
    Row("new toggle", ("501", "--target", "toy:f", "-o", "501.yaml"), files={"501.yaml": "patches", **SCHEMAS}),
    Row("new probe-pack", ("mine", "-o", "mine.yaml"), files={"mine.yaml": "sites", **SCHEMAS}),
    Row("new schemas", files=SCHEMAS),
    Row("toggles list", reported="27338"),
    Row("toggles show", ("27338",), reported="27338"),
    Row(
        "toggles verify",
        ("25015", "27338", "-j", "1", "--json-file", "r.json"),
        workers=2,
        told="25015",
        reported="25015",
        files={"r.json": "25015"},
        known="every fix whose arms ended; the others `interrupted`",
    ),
    Row(
        "toggles verify",
        ("27338", "--json-file", "r.json", "--no-proof", "--", f"{INPUTS}/job"),
        plain=125,
        workers=2,
        told="interrupted: no fix was tried",
        reported="passes 5 of 5 times with nothing reverted",
        files={"r.json": '"reason": "interrupted"'},
        variant="-- CMD",
        known="the trials that ended, by fix; the command under test is ended with all it started",
    ),
    Row("toggles check", ("--against", str(ROOT)), reported="27338"),
    Row("toggles missing", ("--engine", str(ROOT)), plain=125, reported="no fix is known of"),
    Row("toggles siblings", ("27338", "--against", str(ROOT)), reported="like the code before 27338"),
    Row("toggles mine", ("--repo", str(ROOT), "--commit", "HEAD", "-o", "mined"), plain=1, reported="0 of 1 fixes"),
    Row("toggles validate", ("27338",), reported="27338"),
    Row("toggles schema", reported="patches"),
    Row("probes list", reported="draft"),
    Row("probes validate", ("kv",), reported="kv"),
    Row("probes schema", reported="sites"),
    Row("scenarios list", reported="cache_hit"),
    Row("scenarios validate", (MINI,), reported="mini"),
    Row("scenarios schema", reported="workload"),
    Row("engines list", reported="sglang==0.5.13"),
    Row("faults list", reported="nan_logits"),
    Row("faults show", ("nan_logits",), reported="nan_logits"),
    Row(
        "faults verify",
        ("--class", "nan_logits", "--seeds", "1", "-j", "1", "--json-file", "r.json", "--html", "h.html"),
        workers=1,
        told="stopped after 1 of 10 runs",
        reported="nan_logits",
        files={"r.json": '"runs"', "h.html": "not made"},
        known="the matrix of the runs that ended",
    ),
    Row("doctor", workers=0, told="", reported="torch", known="nothing: its worker is ended"),
    Row("config", reported="every option has its default"),
)

ENDLESS = {"serve", "run"}
"""Commands that come to no result of their own: they end by a signal (tests/apps/serve/test_process.py), or with the
command that they run."""

INSTALLING = {"engines check", "engines install", "engines measure", "engines remove"}
"""Commands that need another engine; tests/targets/installs and tests/engines play what happens to them."""

FAST = {
    ("replay", "TERM"),
    ("flake", "INT, INT"),
    ("config", "PIPE"),
    ("scenarios list", "HUP"),
    ("toggles show", "full stdout"),
    ("replay", "read-only"),
    ("flake -- CMD", "full disk"),
    ("minimise", "12 descriptors"),
}
"""These stand for the others in the ordinary suite: each condition, and each kind of command."""
