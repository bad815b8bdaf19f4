"""Every kind of file that specdebug reads for its user, with good bytes of it and what reads them.

What a command reads that no user names is left out: its own worker's messages and step logs, ``/proc``, its own
package. Kinds *by command* run a whole command line in this process: then no traceback and no exit code but those of
the README may come of it, which for an error of the file is 2.
"""

import asyncio
import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import httpx
import torch
import yaml
from safetensors.torch import save_file

from specdebug.apps.evaluation.declared import read_evaluation
from specdebug.apps.evaluation.questions import read_questions
from specdebug.apps.hunt.evidence import SeenFailure
from specdebug.apps.hunt.record import HuntRecord, Judged
from specdebug.base import configuration
from specdebug.base.assets import CHECKPOINTS
from specdebug.base.errors import SpecDebugError, one_line
from specdebug.base.trial import Trial, TrialResult
from specdebug.bundle.archive import MANIFEST
from specdebug.bundle.content import TRACE, read_bundle, steps_hash
from specdebug.campaign.loops.baseline import Baseline
from specdebug.campaign.loops.replays import LastFailed
from specdebug.campaign.trials.journal import Journal
from specdebug.cli.main import run
from specdebug.engine.model.checkpoint import Checkpoint, read_json_object
from specdebug.engine.model.config import Eagle3Options, LlamaConfig
from specdebug.logs.scan import scan_bytes
from specdebug.patching.drift import open_dist
from specdebug.patching.drift.check import check
from specdebug.patching.toggles import load_toggle
from specdebug.reference.config import read_config
from specdebug.run.oracles.server import wrong_counts
from specdebug.scenario.checks import load_scenario
from specdebug.scenario.packs import load_pack
from specdebug.scenario.text import load_tokenizer
from specdebug.scenario.workload import RequestSampling, expand
from specdebug.targets.http.client import FAILURES, ServerClient
from specdebug.targets.http.request import HttpRequest
from specdebug.targets.http.server import ask_server
from specdebug.targets.installs.release import Release
from specdebug.targets.installs.store import RECORD, Installed, find_installed
from tests.bundle.bundles import make_bundle, members_of, pack
from tests.fuzzing.measure import Subject
from tests.patching.drift import releases
from tests.targets.http.test_checked import ANSWER, INFO

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED = (0, 1, 2, 125)


@dataclass(frozen=True)
class Kind:
    """A kind of file: how many mutants of it are read, the file's name, and its subject, made in an empty folder."""

    count: int
    file: str
    subject: Callable[[Path], Subject]


KINDS: dict[str, Kind] = {}


def _kind(name: str, count: int, file: str) -> Callable[[Callable[[Path], Subject]], None]:
    def enter(subject: Callable[[Path], Subject]) -> None:
        KINDS[name] = Kind(count, file, subject)

    return enter


class Refused(SpecDebugError):
    """A command ended with 2 and an error of one line, or of one line for each problem."""


def command(*argv: str) -> int:
    """Run a command line. Raises AssertionError for what no file may bring about, Refused for exit code 2."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(argv)
    said = err.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert code in DOCUMENTED, f"exit code {code}: {said[:300]}"
    assert "Traceback" not in said, said[:300]
    if code == 2:
        assert said, "exit code 2, and not a word"
        assert all(line.startswith("error: ") for line in said.removesuffix("\n").split("\n")), said[:300]
        raise Refused(said.partition("\n")[0])
    return code


def _shipped(name: str) -> bytes:
    return (ROOT / name).read_bytes()


# What a user writes.


_kind("scenario", 2500, "s.yaml")(
    lambda folder: Subject(_shipped("tests/cli/mini.yaml"), load_scenario, values=yaml.safe_load)
)
_kind("scenario, by command", 300, "s.yaml")(
    lambda folder: Subject(_shipped("tests/cli/mini.yaml"), lambda path: command("scenarios", "validate", str(path)))
)
_kind("toggle", 2500, "25015.yaml")(
    lambda folder: Subject(_shipped("toggles/25015.yaml"), load_toggle, values=yaml.safe_load)
)


@_kind("toggle, by command", 200, "toggles/990015.yaml")
def _(folder: Path) -> Subject:
    good = _shipped("toggles/25015.yaml").replace(b"pr: 25015", b"pr: 990015")
    return Subject(good, lambda path: command("toggles", "show", "990015", "--content", str(path.parents[1])))


_kind("pack", 2500, "default.yaml")(
    lambda folder: Subject(_shipped("probes/default.yaml"), load_pack, values=yaml.safe_load)
)


@_kind("pack, by command", 60, "probes/own.yaml")
def _(folder: Path) -> Subject:
    good = _shipped("probes/default.yaml").replace(b"name: default", b"name: own")
    return Subject(good, lambda path: command("probes", "list", "--content", str(path.parents[1])))


_kind("evaluation", 1000, "e.yaml")(
    lambda folder: Subject(
        _shipped("specdebug/_assets/evaluations/code.yaml"),
        lambda path: read_evaluation(str(path)),
        values=yaml.safe_load,
    )
)
ASKED = b'{"question": "1 + 1?", "choices": ["1", "2", "3"], "answer": "B", "subject": "sums"}\n'


_kind("questions", 1000, "q.jsonl")(lambda folder: Subject(ASKED * 3, read_questions, values=json.loads))
_kind("questions of MMLU", 600, "sums_test.csv")(
    lambda folder: Subject(b'1 + 1?,1,2,3,4,B\n"two\n+ 2",1,2,3,4,D\n' * 3, read_questions)
)
OPTIONS = b'device = "cpu"\ndtype = "float32"\npage-size = 16\njobs = 2\ntimeout = 90\nconfidence = "99%"\n'


_kind("configuration", 2500, configuration.OWN_NAME)(
    lambda folder: Subject(OPTIONS, lambda path: configuration.load(path.parent, {}))
)


@_kind("configuration in pyproject", 1000, configuration.PROJECT_NAME)
def _(folder: Path) -> Subject:
    good = b'[project]\nname = "x"\n\n[tool.specdebug]\n' + OPTIONS
    return Subject(good, lambda path: configuration.load(path.parent, {}))


@_kind("configuration, by command", 200, configuration.OWN_NAME)
def _(folder: Path) -> Subject:
    def read(path: Path) -> int:
        os.environ[configuration.VARIABLE] = str(path)
        return command("config")

    return Subject(OPTIONS, read)


# Checkpoints.


@_kind("config of a checkpoint", 3500, "config.json")
def _(folder: Path) -> Subject:
    def read(path: Path) -> None:
        data = read_json_object(path)
        Eagle3Options.from_dict(data, str(path))
        LlamaConfig.from_dict(data, str(path))

    return Subject((CHECKPOINTS / "tiny/config.json").read_bytes(), read, values=json.loads)


_kind("config, by the reference", 2000, "config.json")(
    lambda folder: Subject(
        (CHECKPOINTS / "tiny-eagle3/config.json").read_bytes(), lambda path: read_config(path.parent), values=json.loads
    )
)


def _weights(path: Path) -> None:
    checkpoint = Checkpoint(path.parent)
    for name in ("a", "b"):
        if name in checkpoint:
            checkpoint.floats(name, 2, 3)
    checkpoint.refuse_leftovers()


def _tensors() -> dict[str, torch.Tensor]:
    return {"a": torch.ones(2, 3), "b": torch.ones(2, 3)}


@_kind("weights", 2500, "c/model.safetensors")
def _(folder: Path) -> Subject:
    (folder / "c").mkdir()
    (folder / "c/config.json").write_text("{}")
    save_file(_tensors(), folder / "good")
    return Subject((folder / "good").read_bytes(), _weights)


@_kind("weights, pickled", 1500, "c/pytorch_model.bin")
def _(folder: Path) -> Subject:
    (folder / "c").mkdir()
    (folder / "c/config.json").write_text("{}")
    torch.save(_tensors(), folder / "good")
    return Subject((folder / "good").read_bytes(), _weights)


@_kind("index of weights", 1000, "c/model.safetensors.index.json")
def _(folder: Path) -> Subject:
    (folder / "c").mkdir()
    (folder / "c/config.json").write_text("{}")
    for name, tensor in _tensors().items():
        save_file({name: tensor}, folder / "c" / f"{name}.safetensors")
    good = {"metadata": {"total_size": 48}, "weight_map": {name: f"{name}.safetensors" for name in _tensors()}}
    return Subject(json.dumps(good, indent=1).encode(), _weights, values=json.loads)


TEXT = """\
name: text
engine: {model: tiny, context_length: 128}
workload: [{id: one, prompt: {text: "def f(x):"}, max_new_tokens: 2}]
arms: {fixed: {}}
expect: {fixed: {verdict: pass}}
"""


@_kind("tokenizer", 600, "c/tokenizer.json")
def _(folder: Path) -> Subject:
    """Loaded, and used for a prompt, as a workload is planned."""
    (folder / "c").mkdir()
    (folder / "c/config.json").write_text('{"vocab_size": 300}')
    data = json.loads((CHECKPOINTS / "tiny/tokenizer.json").read_bytes())
    kept = dict(list(data["model"]["vocab"].items())[:300])  # so that changes meet more than the vocabulary
    data["model"].update(vocab=kept, merges=[])
    written = folder / "text.yaml"
    written.write_text(TEXT)
    scenario = load_scenario(written)
    return Subject(json.dumps(data, indent=1).encode(), lambda path: expand(scenario, load_tokenizer(str(path.parent))))


# What a command wrote, and reads again.


@_kind("journal", 800, "j")
def _(folder: Path) -> Subject:
    with Journal(folder / "good", "id", "about") as journal:
        for number in range(3):
            journal.record(Trial(number, frozenset({"1"}), number), TrialResult("fail", "exit:1", 0.5, "x"))
    return Subject((folder / "good").read_bytes(), lambda path: Journal(path, "id", "about").close())


STATE = {"working tree /x": "commit 1a2b3c4d5e6f, 2 files changed #12", "engine in /v": "0.5.13", "code": "#00aa"}


@_kind("state of a journal", 1000, "state")
def _(folder: Path) -> Subject:
    """Mutants of the state that a journal states, which is held against another one, and told where it differs."""
    with Journal(folder / "good", "id", "about", state=STATE) as journal:
        journal.record(Trial(0, frozenset({"1"}), 0), TrialResult("pass", None, 0.5, "x"))

    def read(path: Path) -> None:
        shutil.copy(folder / "good", folder / "j")
        stated = path.read_bytes().decode("utf-8", "replace").replace("\0", "")
        with contextlib.closing(sqlite3.connect(folder / "j")) as database, database:
            database.execute("UPDATE facts SET value = ? WHERE name = 'state'", (stated,))
        with Journal(folder / "j", "id", "about", state={**STATE, "engine in /v": "0.5.14"}) as journal:
            assert journal.earlier is not None
            assert not journal.trials
            assert all(isinstance(each, str) for each in journal.earlier.differs)
        for left in folder.glob("j*"):
            left.unlink()

    return Subject(json.dumps(STATE).encode(), read, values=json.loads)


@_kind("journal, by command", 100, "j")
def _(folder: Path) -> Subject:
    def flake(path: Path) -> int:
        return command("flake", "--max-trials", "3", "--journal", str(path), "--", "true")

    flake(folder / "good")
    return Subject((folder / "good").read_bytes(), flake)


_kind("bundle", 1500, "b.specdebug")(
    lambda folder: Subject(make_bundle(folder / "good.specdebug").read_bytes(), partial(read_bundle, known=None))
)
_BETWEEN = b"\n=== member ===\n"


@_kind("members of a bundle", 1500, "b.specdebug")
def _(folder: Path) -> Subject:
    """Mutants of what lies in a bundle, packed again with the right sizes and digests."""
    members = members_of(make_bundle(folder / "good.specdebug", arms=("positions",)))
    manifest = json.loads(members.pop(MANIFEST))

    def packed(mutant: bytes) -> bytes:
        parts = dict(zip(members, [*mutant.split(_BETWEEN), *[b""] * len(members)], strict=False))
        stated = {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in parts.items()
        }
        lines = tuple(line.decode("utf-8", "replace") for line in parts[TRACE].splitlines())
        outcome = {**manifest["outcome"], "trace_hash": steps_hash(lines)}
        return pack({MANIFEST: json.dumps({**manifest, "outcome": outcome, "members": stated}).encode(), **parts})

    return Subject(_BETWEEN.join(members.values()), partial(read_bundle, known=None), packed)


@_kind("bundle, by command", 100, "b.specdebug")
def _(folder: Path) -> Subject:
    """Replayed with a seed, which is refused of a sound bundle: so none is run."""
    good = make_bundle(folder / "good.specdebug").read_bytes()

    def read(path: Path) -> int:
        try:
            return command("replay", str(path), "--seed", "1")
        except Refused as refused:
            if path.read_bytes() == good and "--seed" in str(refused):
                return 0
            raise

    return Subject(good, read)


HUNTED = {"target": "embedded", "seed": 0, "reverts": []}


@_kind("record of a hunt", 1000, "hunt.jsonl")
def _(folder: Path) -> Subject:
    with HuntRecord(folder / "good", HUNTED, STATE) as record:
        record.add(Judged(0, "pass", wall_s=0.5, requests=3, tokens=40))
        record.add(Judged(1, "fail", "nan@x", "words", 0.5, 3, 40))
    return Subject(
        (folder / "good/hunt.jsonl").read_bytes(),
        lambda path: HuntRecord(path.parent, HUNTED, STATE).close(),
        values=json.loads,
    )


@_kind("evidence of a hunt", 600, "e.json")
def _(folder: Path) -> Subject:
    seen = SeenFailure("a.yaml", "nan@x", 3, "a.specdebug", "drawn", (("nan@x", 3, "words"),), "", (("torch", "2"),))
    return Subject(json.dumps(asdict(seen), indent=1).encode(), SeenFailure.read, values=json.loads)


@_kind("record of an environment", 1000, "sglang-0.5.13-cpu/install.json")
def _(folder: Path) -> Subject:
    packages = {"torch": {"version": "2.13.0", "sha256": "0" * 64}}
    apart = folder / "apart" / "good"
    made = Installed(apart, "sglang", "0.5.13", "cpu", sys.executable, False, "", ("installed",), {}, packages)
    made.write()
    release = Release("sglang", "0.5.13")
    return Subject(
        (made.folder / RECORD).read_bytes(), lambda path: find_installed(path.parents[1], release), values=json.loads
    )


FAILED = b'{"scenarios/a.yaml": ["fixed", "other"], "b.yaml": ["x"]}'


_kind("last failed (a baseline)", 1000, "last-failed.json")(
    lambda folder: Subject(FAILED, lambda path: LastFailed.read(path.parent), values=json.loads)
)


def _group(accept: float | None, verifies: int, **texts: str) -> dict[str, object]:
    return {"accept": accept, "low": 1.0, "high": 4.5, "verifies": verifies, "sd": 1.2, "texts": texts}


ACCEPTED = {
    "format": "specdebug baseline",
    "version": 1,
    "specdebug": "0.1.0",
    "entries": [
        {
            "scenario": "mini",
            "arm": arm,
            "seed": 0,
            "target": "embedded",
            "device": "cpu",
            "dtype": "float32",
            "backend": "flashinfer",
            "options": "",
            "content": "93efe03834d93cb5",
            "machine": "CPU, Some Processor",
            "tokens_per_s": {"mean": 200.5, "low": 100.25, "high": 401.0},
            "groups": {"g0": _group(3.25, 16, a="a69e661f:10", b="efa314ae:6"), "g1": _group(None, 0)},
        }
        for arm in ("fixed", "plain")
    ],
}


_kind("accept lengths (a baseline)", 1500, "b.json")(
    lambda folder: Subject(
        json.dumps(ACCEPTED, indent=1).encode(), lambda path: Baseline.read(path).text(), values=json.loads
    )
)


@_kind("accept lengths, by command", 60, "b.json")
def _(folder: Path) -> Subject:
    """With an arm that there is not, which is refused of a sound file: so none is run."""
    scenario = str(ROOT / "tests/cli/mini.yaml")
    good = json.dumps(ACCEPTED, indent=1).encode()

    def read(path: Path) -> int:
        try:
            return command("compare", scenario, "--arm", "fixed", "--arm", "nowhere", "--baseline", str(path))
        except Refused as refused:
            if path.read_bytes() == good and "nowhere" in str(refused):
                return 0
            raise

    return Subject(good, read)


# Logs.

LOG = b"""\
[2026-01-01 00:00:01 TP0] attention_backend='flashinfer', page_size=1, speculative_eagle_topk=4
Traceback (most recent call last):
  File "x.py", line 3, in f
RuntimeError: CUDA error: an illegal memory access was encountered
/a/Indexing.cu:11: indexSelect: block: [0,0,0], thread: [1,0,0] Assertion `srcIndex < size` failed.
mini: positions fail oob@draft.forward.positions at step 3
FAILED tests/test_x.py::test_y - assert 1 == 2
1 failed, 2 passed in 0.5s
exited with code 137
"""


_kind("log", 2000, "log")(lambda folder: Subject(LOG * 3, lambda path: scan_bytes(path.read_bytes())))
_kind("log, by command", 300, "log")(lambda folder: Subject(LOG * 3, lambda path: command("triage", str(path))))
# Releases of another engine.


def _check(folder: Path) -> Callable[[Path], object]:
    ours = releases.registry(releases.toggle(folder, 7))
    return lambda path: check(open_dist(path, {"toyserve"}), ours)


_kind("wheel (a baseline)", 1000, "toyserve-1.2.0-py3-none-any.whl")(
    lambda folder: Subject(releases.wheel(folder).read_bytes(), _check(folder))
)


@_kind("sdist (a baseline)", 800, "toyserve-1.2.0.tar.gz")
def _(folder: Path) -> Subject:
    """Mutants of the tar, compressed again."""
    good = gzip.decompress(releases.sdist(folder).read_bytes())
    return Subject(good, _check(folder), lambda mutant: gzip.compress(mutant, 1))


_kind("sdist's compression", 300, "toyserve-1.2.0.tar.gz")(
    lambda folder: Subject(releases.sdist(folder).read_bytes(), _check(folder))
)
PROJECT = """\
[project]
name = "toyserve"
dynamic = ["version"]

[tool.setuptools.dynamic]
version = {attr = "toyserve.version.__version__"}

[tool.setuptools_scm]
write_to = "toyserve/version.py"
"""


def _in_a_tree(file: str) -> Callable[[Path], Subject]:
    """One file of a source tree, the others as they were."""

    def subject(folder: Path) -> Subject:
        files = {"pyproject.toml": PROJECT, "toyserve/version.py": '__version__ = "1.2.0"\n'}
        root = releases.tree(folder, files)
        reads = _check(folder)
        return Subject((root / file).read_bytes(), lambda path: reads(root))

    return subject


_kind("project of a release", 600, "checkout/pyproject.toml")(_in_a_tree("pyproject.toml"))
_kind("version of a release", 300, "checkout/toyserve/version.py")(_in_a_tree("toyserve/version.py"))
_kind("module of a release", 800, "checkout/toyserve/flow.py")(_in_a_tree("toyserve/flow.py"))
_kind("registry of a release", 800, "checkout/toyserve/reverts.py")(_in_a_tree("toyserve/reverts.py"))


@_kind("release, by command", 100, "checkout/pyproject.toml")
def _(folder: Path) -> Subject:
    tree = _in_a_tree("pyproject.toml")(folder)
    (folder / "content/toggles").mkdir(parents=True)
    releases.toggle(folder / "content/toggles", 7)
    return Subject(
        tree.good,
        lambda path: command("toggles", "check", "--against", str(path.parent), "--content", str(folder / "content")),
    )


_ANSWERS = {
    "/health": b"{}",
    "/server_info": json.dumps(INFO).encode(),
    "/model_info": b'{"model_path": "tiny"}',
    "/generate": json.dumps(ANSWER).encode(),
}


def _on_a_server(path: Path, route: str, *, stream: bool = False) -> None:
    """Ask a server what it is and for a request, where one route answers what a file holds."""
    answers = _ANSWERS | {route: path.read_bytes()}

    async def ask() -> None:
        transport = httpx.MockTransport(lambda request: httpx.Response(200, content=answers[request.url.path]))
        client = ServerClient("http://there", transport=transport)
        held = HttpRequest("a.0", (1, 2, 3), RequestSampling(8), speculative=True)
        try:
            if not stream:
                await ask_server(client)
                held.take(await client.post("/generate", {}), incremental=False)
            else:
                async for event in client.stream("/generate", {}):
                    held.take(event, incremental=False)
            held.end()
            list(wrong_counts(held, held.meta))
        except FAILURES as error:
            raise Refused(one_line(str(error), 600)) from None
        finally:
            await client.close()

    asyncio.run(ask())


_kind("answer of a server", 1000, "answer.json")(
    lambda folder: Subject(_ANSWERS["/generate"], lambda path: _on_a_server(path, "/generate"), values=json.loads)
)


@_kind("streamed answer of a server", 600, "answer.txt")
def _(folder: Path) -> Subject:
    good = b"data: " + _ANSWERS["/generate"] + b"\n\n"
    return Subject(
        good * 2 + b"data: [DONE]\n\n", lambda path: _on_a_server(path, "/generate", stream=True), values=json.loads
    )


@_kind("words of a server", 1000, "info.json")
def _(folder: Path) -> Subject:
    return Subject(_ANSWERS["/server_info"], lambda path: _on_a_server(path, "/server_info"), values=json.loads)
