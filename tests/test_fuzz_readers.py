"""Whatever is in a file, its reader returns, or says in one line what is wrong with it, with exit code 2.

Good files of every kind are mutated from a seed: bytes, cuts, repeated pieces, and values that have broken readers.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specdebug import configuration
from specdebug.assets import CHECKPOINTS
from specdebug.bundle.content import read_bundle
from specdebug.engine.model.checkpoint import Checkpoint, read_json_object
from specdebug.engine.model.config import Eagle3Options, LlamaConfig
from specdebug.errors import SpecDebugError
from specdebug.logs.scan import scan_bytes
from specdebug.loops.last_failed import LastFailed
from specdebug.reference.config import read_config
from specdebug.scenario.load import load_scenario
from specdebug.scenario.packs import load_pack
from specdebug.toggles import load_toggle
from specdebug.trials.journal import Journal
from specdebug.trials.trial import Trial, TrialResult
from tests.bundle.bundles import make_bundle

ROOT = Path(__file__).resolve().parents[1]
SEED = 20261122
MAX_HELD = 300 << 20
MEASURED_ONE_IN = 50

PIECES = [
    b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"\xff\xfe", b"\0", b"\xed\xa0\x80", b"null", b"NaN", b"-Infinity",
    b"1e999", b"-1", b'"\\ud800"', b"[]", b"{}", b"''", b"\x1b]0;x\x07", b"\r\n" * 100, b"x" * 100_000, b"true",
    b"0x" + b"f" * 4000, b"&a [*a, *a]", b"!!python/object/apply:os.system [id]", b"PK\x05\x06", b"\n[tool]\n",
]  # fmt: skip


def mutant(data: bytes, rng: random.Random) -> bytes:
    """One to three changes of ``data``."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.randint(0, 30))
        change = rng.randrange(5)
        if change == 0 and data:
            data = data[: at - 1] + bytes([rng.randrange(256)]) + data[at:]
        elif change == 1:
            data = data[:at]
        elif change == 2:
            data = data[:at] + rng.choice(PIECES) + data[end:]
        elif change == 3:
            data = data[:at] + data[end:]
        else:
            data = data[:end] + data[at:end] * rng.randint(1, 200) + data[end:]
    return data


def _checkpoint(path: Path) -> None:
    checkpoint = Checkpoint(path.parent)
    for name in ("a", "b"):
        if name in checkpoint:
            checkpoint.floats(name, 2, 3)


def _config(path: Path) -> None:
    data = read_json_object(path)
    Eagle3Options.from_dict(data, str(path))
    LlamaConfig.from_dict(data, str(path))


def _journal(path: Path) -> None:
    Journal(path, "id", "about").close()


def _weights(folder: Path) -> bytes:
    save_file({"a": torch.ones(2, 3), "b": torch.ones(2, 3)}, folder / "good")
    return (folder / "good").read_bytes()


def _recorded(folder: Path) -> bytes:
    with Journal(folder / "good", "id", "about") as journal:
        for number in range(3):
            journal.record(Trial(number, frozenset({"1"}), number), TrialResult("fail", "exit:1", 0.5, "x"))
    return (folder / "good").read_bytes()


def _file(name: str) -> Callable[[Path], bytes]:
    return lambda folder: (ROOT / name).read_bytes()


OPTIONS = b'device = "cpu"\ndtype = "float32"\npage-size = 16\njobs = 2\ntimeout = 90\nconfidence = "99%"\n'
FAILED = b'{"scenarios/a.yaml": ["fixed", "other"], "b.yaml": ["x"]}'
LOG = b'Traceback (most recent call last):\n  File "x.py", line 3, in f\nRuntimeError: CUDA error: illegal\n' * 3

READERS: dict[str, tuple[int, str, Callable[[Path], bytes], Callable[[Path], object]]] = {
    "scenario": (2500, "s.yaml", _file("tests/cli/mini.yaml"), load_scenario),
    "toggle": (2500, "25015.yaml", _file("toggles/25015.yaml"), load_toggle),
    "pack": (2500, "default.yaml", _file("probes/default.yaml"), load_pack),
    "config of a checkpoint": (3500, "config.json", lambda _: (CHECKPOINTS / "tiny/config.json").read_bytes(), _config),
    "config, by the reference": (
        2000, "config.json", lambda _: (CHECKPOINTS / "tiny-eagle3/config.json").read_bytes(),
        lambda path: read_config(path.parent),
    ),
    "weights": (2500, "model.safetensors", _weights, _checkpoint),
    "journal": (800, "j", _recorded, _journal),
    "bundle": (1500, "b.specdebug", lambda folder: make_bundle(folder / "good.specdebug").read_bytes(), read_bundle),
    "configuration": (
        2500, configuration.OWN_NAME, lambda _: OPTIONS, lambda path: configuration.load(path.parent, {}),
    ),
    "last failed": (1000, "last-failed.json", lambda _: FAILED, lambda path: LastFailed.read(path.parent)),
    "log": (1000, "log", lambda _: LOG, lambda path: scan_bytes(path.read_bytes())),
}  # fmt: skip


def test_there_are_twenty_thousand_cases() -> None:
    assert sum(count for count, *_ in READERS.values()) >= 20_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_a_mutant_is_read_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    count, name, make, read = READERS[kind]
    good = make(tmp_path)
    folder = tmp_path / "mutants"
    folder.mkdir()
    if kind == "weights":
        (folder / "config.json").write_text("{}")
    rng = random.Random(f"{SEED} {kind}")
    for number in range(count):
        (folder / name).write_bytes(mutant(good, rng))
        measured = number % MEASURED_ONE_IN == 0
        if measured:
            tracemalloc.start()
        refusal: SpecDebugError | None = None
        try:
            read(folder / name)
        except SpecDebugError as error:
            refusal = error
        finally:
            peak = tracemalloc.get_traced_memory()[1] if measured else 0
            tracemalloc.stop()
        if refusal is not None:
            assert refusal.exit_code == 2, f"case {number}"
            assert "\n" not in str(refusal), f"case {number}"
        assert peak < MAX_HELD, f"case {number}"
