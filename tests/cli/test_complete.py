"""What a shell is offered: lines are completed in one process, in which nothing heavy can be imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKED = """
import contextlib, io, json, os, sys

class NothingHeavy:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "scipy", "triton"):
            sys.stderr.write(f"{name} is imported while somebody waits at a prompt")

sys.meta_path.insert(0, NothingHeavy())
from specdebug.cli.main import run

answers = []
for cwd, environment in json.load(sys.stdin):
    os.chdir(cwd)
    os.environ.update(environment)
    said = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(said):
        run(environment.get("ARGV", "").split())
    answers.append(said.getvalue().split())
print(json.dumps(answers))
"""
VALUES = [
    ("re", ["replay"], ["compare"]),
    ("replay ca", ["cache_hit"], ["topk_kv_indices"]),
    ("replay scenarios/ca", ["scenarios/cache_hit.yaml"], ["cache_hit"]),
    ("replay cache_hit --arm ", ["recompute", "zero_fill", "reverted"], ["fixed"]),
    ("compare --arm re", [], ["recompute"]),
    ("diverge scenarios/cache_hit.yaml --json --arm re", ["recompute", "reverted"], ["zero_fill"]),
    ("replay cache_hit --revert 273", ["27338", "27360"], ["19897"]),
    ("bundle cache_hit --revert 27338,19", ["27338,19897"], ["19897"]),
    ("toggles show 27", ["27338"], ["19897"]),
    ("replay cache_hit --fault nan_", ["nan_logits"], ["inf_logits"]),
    ("replay cache_hit --fault nan_logits:si", ["nan_logits:site="], ["nan_logits"]),
    ("replay cache_hit --fault nan_logits:step=3,site=", ["nan_logits:step=3,site=verify.logits"], ["nan_logits"]),
    ("faults verify --class nan_", ["nan_logits"], ["replay"]),
    ("replay cache_hit --probes ", ["default", "graph"], ["cache_hit"]),
    ("flake cache_hit --signature oob@draft_graph", ["oob@draft_graph.replay.topk_index"], ["oob@accept.predict"]),
    ("toggles validate 273", ["27338", "27360"], ["19897"]),
    ("probes validate ", ["default", "kv"], ["cache_hit"]),
    ("bisect cache_hit --over ", ["toggles", "faults"], ["cache_hit"]),
    ("minimise cache_hit --device cu", ["cuda"], ["cpu"]),
]


def completed(*asked: tuple[Path, dict[str, str]]) -> list[list[str]]:
    """What is offered in each folder, under each environment."""
    ours = {name: value for name, value in os.environ.items() if name not in ("SPECDEBUG_PATH", "SPECDEBUG_CONFIG")}
    ended = subprocess.run(
        [sys.executable, "-c", BLOCKED],
        input=json.dumps([(str(folder), environment) for folder, environment in asked]),
        env=ours | {"PYTHONPATH": str(ROOT), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stderr == ""
    answers: list[list[str]] = json.loads(ended.stdout)
    return answers


def bash(line: str) -> dict[str, str]:
    """The environment in which bash asks what may end a line; the line begins with ``specdebug``."""
    words = ["specdebug", *line.split(" ")]
    return {
        "_SPECDEBUG_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }


@pytest.fixture(scope="module")
def offered() -> dict[str, list[str]]:
    lines = [line for line, _, _ in VALUES]
    return dict(zip(lines, completed(*((ROOT, bash(line)) for line in lines)), strict=True))


@pytest.mark.parametrize(("line", "some", "none"), VALUES, ids=[line for line, _, _ in VALUES])
def test_values_are_offered(line: str, some: list[str], none: list[str], offered: dict[str, list[str]]) -> None:
    assert set(some) <= set(offered[line])
    assert not set(none) & set(offered[line])


def test_own_content_and_what_is_wrong_with_it(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    (good / "mine" / "scenarios").mkdir(parents=True)
    (good / "mine" / "scenarios" / "ours.yaml").write_text("arms:\n  first: {}\n")
    configured = good / "below"
    configured.mkdir()
    (configured / ".specdebug.toml").write_text('content = ["../mine"]\n')
    bad.mkdir()
    (bad / "half.yaml").write_text("arms: {a: [\n")
    (bad / ".specdebug.toml").write_text("jbos = 1\n")
    asked = {
        (good, "replay --content mine ou"): ["ours"],
        (good, "replay --content mine ours --arm "): ["first"],
        (good, "replay ou"): [],
        (configured, "replay ou"): ["ours"],
        (bad, "replay half.yaml --arm "): [],
        (bad, "replay gone.yaml --arm "): [],
        (bad, "replay ha"): ["half.yaml"],
        (bad, "replay cache_hit --content gone --revert 27"): [],
    }
    assert completed(*((folder, bash(line)) for folder, line in asked)) == list(asked.values())
