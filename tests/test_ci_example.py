"""examples/ci: the steps of the action run in a repository, with what GitHub gives them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

CI = Path(__file__).resolve().parents[1] / "examples/ci"
ACTION = yaml.safe_load((CI / "action.yml").read_text())
WORKFLOW = yaml.safe_load((CI / ".github/workflows/night.yml").read_text())
SCENARIO = """
name: small
engine:
  model: tiny
  context_length: 64
  speculative: {algorithm: EAGLE, num_steps: 2, eagle_topk: 1, num_draft_tokens: 3}
workload: [{requests: 1, prompt: {corpus: stdlib, tokens: 8}, max_new_tokens: 6}]
arms: {fixed: {}}
expect: {fixed: {verdict: pass}}
"""


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout


def value(text: str, outputs: dict[str, str]) -> str:
    """What GitHub puts in the place of an expression."""
    inputs = {f"inputs.{key}": each["default"] for key, each in ACTION["inputs"].items()}
    for name, given in {**inputs, **outputs}.items():
        text = text.replace("${{ " + name + " }}", given)
    assert "${{" not in text
    return text


def steps(repository: Path, temp: Path, expected: dict[str, int]) -> None:
    """Run the action's steps, each of which ends as expected (0 unless said)."""
    outputs: dict[str, str] = {}
    for step in ACTION["runs"]["steps"]:
        output = temp / "output"
        output.write_text("")
        env = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
        env |= {"RUNNER_TEMP": str(temp), "GITHUB_OUTPUT": str(output)}
        env |= {"GITHUB_STEP_SUMMARY": str(temp / "summary.md")}
        env |= {name: value(text, outputs) for name, text in step.get("env", {}).items()}
        words = ["bash", "-e", "-o", "pipefail", "-c", step["run"]]
        done = subprocess.run(words, cwd=repository, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == expected.get(step["name"], 0), (step["name"], done.stdout, done.stderr)
        print(step["name"], done.stdout, done.stderr)
        for line in output.read_text().splitlines():
            name, _, given = line.partition("=")
            outputs[f"steps.{step['id']}.outputs.{name}"] = given


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout with a scenario, and the remote that it is of."""
    remote, here = tmp_path / "remote.git", tmp_path / "here"
    subprocess.run(["git", "init", "-q", "--bare", str(remote)], check=True)
    subprocess.run(["git", "init", "-q", str(here)], check=True)
    (here / "scenarios").mkdir()
    (here / "scenarios/small.yaml").write_text(SCENARIO)
    git(here, "add", ".")
    git(here, "-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "scenario")
    git(here, "remote", "add", "origin", str(remote))
    return here


@pytest.mark.slow
def test_a_night_is_kept_on_its_branch_and_a_bad_one_ends_red(repository: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for temp in (first, second):
        temp.mkdir()
    steps(repository, first, {})
    assert "small" in (first / "summary.md").read_text()
    assert (repository / "history.html").read_text().count("<svg") == 1
    git(repository, "worktree", "remove", "--force", str(first / "nights"))
    bad = SCENARIO.replace("verdict: pass", 'verdict: fail, signature: "nan@*"')
    (repository / "scenarios/small.yaml").write_text(bad)
    steps(repository, second, {"Verdict": 1})
    good_night, bad_night = nights(repository)
    assert good_night.pop("night") <= bad_night.pop("night")
    assert good_night.pop("accept") == bad_night.pop("accept") > 1
    assert good_night == {"name": "small::fixed", "runs": 1}
    assert bad_night == {"name": "small::fixed", "runs": 1, "bad": 1, "signatures": ["pass, not as expected"]}


def nights(repository: Path) -> list[dict[str, Any]]:
    """The lines on the branch that keeps them."""
    git(repository, "fetch", "-q", "origin", "specdebug-nights")
    files = git(repository, "ls-tree", "--name-only", "-r", "FETCH_HEAD", "nights/").split()
    texts = [git(repository, "show", f"FETCH_HEAD:{file}") for file in files]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def test_the_workflow_uses_the_action_and_commands_that_there_are() -> None:
    (job,) = WORKFLOW["jobs"].values()
    used: list[dict[str, Any]] = [step for step in job["steps"] if "specdebug-night" in step.get("uses", "")]
    assert set(used[0]["with"]) <= set(ACTION["inputs"])
    lines = [step["run"] for step in (*job["steps"], *ACTION["runs"]["steps"]) if "run" in step]
    for line in "\n".join(lines).splitlines():
        words = line.split()
        if words[:1] == ["specdebug"]:
            asked = words[1:3] if words[1] == "scenarios" else words[1:2]
            done = subprocess.run([sys.executable, "-m", "specdebug", *asked, "--help"], capture_output=True, text=True)
            missing = [word for word in words if word.startswith("--") and word not in done.stdout]
            assert done.returncode == 0
            assert not missing, line
