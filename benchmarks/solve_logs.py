"""Make twelve red logs, each of a real run with one fix reverted, and measure what ``specdebug solve`` makes of them.

``python benchmarks/solve_logs.py DIR [--only NAME ...] [--solve] [--max-time 600]`` writes ``DIR/NAME.log``; with
``--solve`` each is solved in a folder of its own, and a table says which fix is named first, how and in which time.
Five need ``specdebug engines install sglang==0.5.23``.

The logs are what CI would keep: our reports, JUnit and pytest's output, a user's own tests that fail with our message,
and servers' logs below their command lines. What tells of the revert is taken out, for a job whose engine lacks the fix
would not print it, and so are the folders of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specdebug.base.engine_flags import ENGINE_FLAGS, arguments_of
from specdebug.patching.hook import REVERT_VARIABLE
from specdebug.report.parts import Column, table
from specdebug.report.terminal import text_of
from specdebug.scenario.library import Library

SGLANG = "sglang==0.5.23"
PORT = 30417
SPECDEBUG = (sys.executable, "-c", "from specdebug.cli.main import main; main()")
OWN_TEST = '''\
"""A user's own test: the engine serves, and nothing that looks on complains."""

import json
import subprocess


def test_serves():
    words = {words}
    arm = json.loads(subprocess.run(words, capture_output=True, text=True).stdout)["arms"][0]
    assert arm["verdict"] == "pass", arm["signature"] + ": " + arm["detail"]
'''


@dataclass(frozen=True)
class MadeLog:
    """A log to make. ``make`` gets a folder to work in, and returns the log's text."""

    name: str
    kind: str
    engine: str
    fix: int
    make: Callable[[Path], str]


def run(words: list[str], fix: int, folder: Path) -> str:
    """What a command prints with a fix reverted."""
    env = {**os.environ, REVERT_VARIABLE: str(fix), "COLUMNS": "160"}
    done = subprocess.run(words, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout


def on(target: str) -> list[str]:
    """The words that say which engine runs it."""
    return ["--target", target] if target else []


def terminal(scenario: str, target: str, fix: int, folder: Path) -> str:
    """The report of a replay."""
    return run([*SPECDEBUG, "replay", scenario, *on(target)], fix, folder)


def document(scenario: str, target: str, fix: int, folder: Path) -> str:
    """The JSON document of a replay."""
    return run([*SPECDEBUG, "replay", scenario, "--json", *on(target)], fix, folder)


def junit(scenario: str, target: str, fix: int, folder: Path) -> str:
    """The JUnit file of a replay."""
    run([*SPECDEBUG, "replay", scenario, "--junit", "junit.xml", *on(target)], fix, folder)
    return (folder / "junit.xml").read_text("utf-8")


def pytest_of(scenario: str, fix: int, folder: Path) -> str:
    """The output of pytest over a scenario file."""
    path = Library().scenario(scenario).path
    (folder / path.name).write_text(path.read_text("utf-8"), "utf-8")
    return run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", path.name], fix, folder)


def own_test(scenario: str, target: str, fix: int, folder: Path) -> str:
    """The output of pytest over a user's own test, which names no scenario in its log."""
    words = [*SPECDEBUG, "replay", scenario, "--arm", "fixed", "--json", "--no-locate", *on(target)]
    (folder / "test_engine.py").write_text(OWN_TEST.replace("{words}", f"json.loads({json.dumps(words)!r})"), "utf-8")
    shown = run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_engine.py"], fix, folder)
    return "\n".join(line for line in shown.splitlines() if "words = " not in line) + "\n"


def engine_log(scenario: str, fix: int, folder: Path) -> str:
    """The log of SGLang itself, below the command line of a server with the scenario's options."""
    plain = json.loads(document(scenario, SGLANG, fix, folder))["arms"][0]
    options = Library().scenario(scenario).engine_of("fixed")
    theirs = {flag.into[0] for flag in ENGINE_FLAGS if not flag.ours} - {"memory"}
    words = arguments_of({name: value for name, value in options.items() if name in theirs})
    tail = plain["log_tail"].splitlines()
    own = {at + 1 for at, line in enumerate(tail) if "/specdebug/" in line} | {
        at for at, line in enumerate(tail) if "/specdebug/" in line
    }
    return "\n".join(
        [
            f"+ python -m sglang.launch_server {' '.join(words)} --device cpu",
            *(line for at, line in enumerate(tail) if at not in own),
            "",
        ]
    )


def server_log(flags: list[str], fix: int, folder: Path) -> str:
    """The log of a server of ours that two requests were sent to, below its command line."""
    words = ["serve", "--model-path", "tiny", *flags, "--probes", "default", "--mode", "assert", "--port", str(PORT)]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen([*SPECDEBUG, *words, "--revert", str(fix)], cwd=folder, stdout=log, stderr=log)
    try:
        body = {"text": ["def main(a, b):", "import os"], "sampling_params": {"max_new_tokens": 40, "temperature": 0}}
        for _ in range(120):
            time.sleep(0.5)
            try:
                post(body)
                break
            except urllib.error.HTTPError as error:
                if error.code != 503:  # that is one which loads
                    break
            except OSError:  # it does not listen yet
                continue
    finally:
        server.terminate()
        server.wait()
    shown = [f"+ specdebug {' '.join(words)}", (folder / "server.log").read_text("utf-8")]
    return "\n".join(shown)


def post(body: dict[str, Any]) -> None:
    """Ask a server for completions. Raises OSError."""
    data, head = json.dumps(body).encode(), {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/generate", data, head)
    urllib.request.urlopen(request, timeout=120).close()


TREES = ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", "4", "--speculative-eagle-topk", "1"]
LOGS = (
    MadeLog("replay", "terminal", "", 27338, partial(terminal, "topk_kv_indices", "", 27338)),
    MadeLog("replay-json", "JSON", "", 10892, partial(document, "padding_positions", "", 10892)),
    MadeLog("junit", "JUnit", "", 19897, partial(junit, "cache_hit", "", 19897)),
    MadeLog("pytest-scenario", "pytest, a scenario", "", 26335, partial(pytest_of, "tgt_cache_loc", 26335)),
    MadeLog("own-test-padding", "pytest, a user's test", "", 23037, partial(own_test, "graph_padding", "", 23037)),
    MadeLog("own-test-hits", "pytest, a user's test", "", 10846, partial(own_test, "bigram_key", "", 10846)),
    MadeLog(
        "server", "our server", "", 25015, partial(server_log, [*TREES, "--speculative-num-draft-tokens", "5"], 25015)
    ),
    MadeLog("sglang-replay", "terminal", SGLANG, 25015, partial(terminal, "draft_positions", SGLANG, 25015)),
    MadeLog("sglang-junit", "JUnit", SGLANG, 26329, partial(junit, "chunk_tail", SGLANG, 26329)),
    MadeLog(
        "sglang-own-test", "pytest, a user's test", SGLANG, 27360, partial(own_test, "topk_page_table", SGLANG, 27360)
    ),
    MadeLog("sglang-trees", "terminal", SGLANG, 27338, partial(terminal, "topk_kv_indices", SGLANG, 27338)),
    MadeLog("sglang-server", "SGLang's log", SGLANG, 26972, partial(engine_log, "row_headroom", 26972)),
)


def untold(text: str, fix: int, folder: Path) -> str:
    """A log without what tells of the revert, and without folders of this machine."""
    for told in (f"fixes reverted: {fix}", f" - {fix}", f" --revert {fix}", f" with fix {fix} applied", f"#{fix}"):
        text = text.replace(told, "")
    text = "\n".join(line for line in text.split("\n") if not re.search(rf"\b{fix}\b", line))
    text = text.replace(str(folder), "/ci")
    return re.sub(r"(?:/[\w.+-]+)+?/(site-packages|specdebug/(?=\w+/)|scenarios|lib/python3)", r"/opt/\1", text)


def solved(log: Path, fix: int, max_time: float) -> dict[str, Any]:
    """The document of a solved log, with the time that it took."""
    begun = time.monotonic()
    words = [*SPECDEBUG, "solve", str(log), "-o", str(log.with_suffix("")), "--max-time", str(max_time), "--json"]
    done = subprocess.run(words, cwd=log.parent, stdout=subprocess.PIPE, text=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return {**told, "seconds": time.monotonic() - begun}


def named_after(told: dict[str, Any]) -> float:
    """The seconds of the stages up to the search that named the fix."""
    names = [each["name"] for each in told["stages"]]
    last = len(names) - names[::-1].index("bisect") if "bisect" in names else len(names)
    return sum(each["seconds"] for each in told["stages"][:last])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", choices=[one.name for one in LOGS])
    parser.add_argument("--solve", action="store_true")
    parser.add_argument("--max-time", type=float, default=600.0)
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [one for one in LOGS if not options.only or one.name in options.only]
    for one in chosen:
        if not (folder / f"{one.name}.log").exists():
            with tempfile.TemporaryDirectory() as place:
                text = untold(one.make(Path(place)), one.fix, Path(place))
            (folder / f"{one.name}.log").write_text(text, "utf-8")
    if not options.solve:
        return
    rows = []
    for one in chosen:
        told = solved(folder / f"{one.name}.log", one.fix, options.max_time)
        (folder / f"{one.name}.json").write_text(json.dumps(told, indent=1), "utf-8")
        rows.append((one, told))
        print(
            one.name, told["culprit"] and told["culprit"]["pr"], told["verdict"], f"{told['seconds']:.0f} s", flush=True
        )
    heads = (
        Column("log", of=lambda row: row[0].name),
        Column("form", of=lambda row: row[0].kind),
        Column("engine", of=lambda row: row[0].engine or "embedded"),
        Column("reverted", of=lambda row: str(row[0].fix)),
        Column("named first", of=lambda row: str((row[1]["culprit"] or {}).get("pr", "none"))),
        Column("verdict", of=lambda row: row[1]["verdict"]),
        Column("named after", "right", lambda row: f"{named_after(row[1]):.0f} s"),
        Column("all", "right", lambda row: f"{row[1]['seconds']:.0f} s"),
    )
    print(text_of([table(rows, *heads)]))
    right = sum((told["culprit"] or {}).get("pr") == one.fix for one, told in rows)
    print(f"{right} of {len(rows)} named first")


if __name__ == "__main__":
    main()
