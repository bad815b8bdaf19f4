"""docs/your-engine.md, command by command, in a copy of the folder that it speaks of."""

import importlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "your-engine.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def toyspec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(ROOT / "examples/toyspec", tmp_path_factory.mktemp("at") / "examples/toyspec"))


def commands() -> list[tuple[str, int]]:
    """The commands of the page, and the exit code that each states, 0 unless it does."""
    found = re.findall(r"^    \$ (.*?)(?:\s+# exit (\d+))?$", PAGE, re.MULTILINE)
    return [(line, int(code or 0)) for line, code in found if not line.startswith(("cd ", "export "))]


def test_the_page_takes_at_most_ten_commands() -> None:
    assert 5 <= len(re.findall(r"^    \$ ", PAGE, re.MULTILINE)) <= 10


@pytest.mark.parametrize(("line", "code"), commands())
def test_each_command_ends_as_the_page_says(line: str, code: int, toyspec: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(toyspec)}
    done = subprocess.run(["sh", "-c", line], cwd=toyspec, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    if line.startswith("specdebug bisect"):
        assert done.stdout.startswith('culprit 501 "a row has room for every branch"')
        assert "next: specdebug toggles show 501 --content mine\n" in done.stdout
    elif "--revert 501" in line:
        assert "501 a row has room for every branch: reverted in toyspec; its lines ran " in done.stderr


def test_the_toggle_that_the_page_shows_is_the_one_that_is_there() -> None:
    shown = re.search(r"```yaml\n(pr: 501.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[1] == (ROOT / "examples/toyspec/mine/toggles/501.yaml").read_text()


def judged(toyspec: Path, copy: Path, field: str = "", instead: str = "") -> dict[str, Any]:
    """The arm ``fixed`` of the toy scenario, on a front that answers ``instead`` where the toy's answers ``field``."""
    shutil.copytree(toyspec, copy)
    front = copy / "toyspec/serve.py"
    assert field in front.read_text()
    if field:
        front.write_text(front.read_text().replace(field, instead))
    words = [sys.executable, "-m", "specdebug", "replay", "mine/scenarios/toy.yaml", "--arm", "fixed", "--json"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT)])}
    done = subprocess.run(words, cwd=copy, env=env, capture_output=True, text=True, timeout=300)
    (arm,) = json.loads(done.stdout)["arms"]
    return arm


def unjudged(arm: dict[str, Any]) -> list[str]:
    return [each.partition(":")[0] for each in arm["cannot_show"]]


def test_a_front_that_cannot_leave_out_drafts_is_not_compared_with_itself(toyspec: Path, tmp_path: Path) -> None:
    switch = judged(toyspec, tmp_path / "whole")
    without = judged(toyspec, tmp_path / "cut", '"specdebug": {"speculative_switch": True}', '"x": 1')
    assert (switch["verdict"], without["verdict"]) == ("pass", "pass")
    assert "lossless" not in unjudged(switch)
    assert "lossless" in unjudged(without)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "signature"),
    [
        ('"completion_tokens": len(ids),', "ends@counts"),
        ('"prompt_tokens": len(prompt),', "ends@counts"),
        ('"finish_reason": {"type": "length", "length": most},', "error@http.answer"),
        ('"cached_tokens": 0,', None),
        ('"output_ids": ids, ', None),
        ('"/health_generate": {}, ', None),
        ('"model_path": "toyspec"', None),
    ],
)
def test_what_the_table_calls_required_is(field: str, signature: str | None, toyspec: Path, tmp_path: Path) -> None:
    arm = judged(toyspec, tmp_path / "toyspec", field)
    assert (arm["verdict"], arm.get("signature")) == ("fail" if signature else "pass", signature)


def test_drafts_change_no_output_of_the_toy(toyspec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(toyspec))
    generate = importlib.import_module("toyspec.engine").generate
    for seed in range(50):
        draw = random.Random(seed)
        prompt = [draw.randrange(512) for _ in range(6)]
        tokens, accepted = generate(prompt, 24, topk=1 + seed % 3)
        assert tokens == generate(prompt, 24, speculative=False)[0]
        assert sum(accepted) == 24
