"""vLLM 0.32.0's algorithms beside EAGLE, and its model runner V2: each serves what the dense reference says, its drafts
are accepted, and the runners agree."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdebug.apps.twins.plan import DEFAULT
from specdebug.targets.installs.fit import package_of
from specdebug.targets.installs.release import parse_release
from specdebug.targets.installs.store import find_installed, store_folder
from tests.engines.replays import ROOT, replayed

pytestmark = pytest.mark.engines

RELEASE = "vllm==0.32.0"
SECOND = "vllm/v2==0.32.0"
SCENARIOS = ROOT / "scenarios"
TWINS = SCENARIOS / "twins"
DRAFTED = [("twins/standalone", 3.0), ("twins/ngram_chain", 1.1), ("twins/dflash", 1.3), ("vllm/mtp", 1.3)]


@pytest.mark.parametrize("target", [RELEASE, SECOND])
@pytest.mark.parametrize(("name", "least"), DRAFTED)
def test_it_is_lossless_and_its_drafts_know_something(name: str, least: float, target: str) -> None:
    code, arm = replayed(str(SCENARIOS / f"{name}.yaml"), "--target", target)
    assert (code, arm["verdict"]) == (0, "pass"), arm["detail"]
    lengths = [each for request in arm["requests"] for each in request["accept_lengths"]]
    assert sum(lengths) / len(lengths) >= least


def test_the_second_runner_is_looked_at_as_the_first_is() -> None:
    """Every oracle of ours looks at it, and at a chunk's end its draft reads the next token."""
    code, arm = replayed("chunk_tail", "--arm", "fixed", "--target", SECOND)
    assert (code, arm["verdict"], arm["cannot_show"]) == (0, "pass", []), arm["detail"]
    assert arm["reached_sites"]["draft.forward.positions"] > 0
    assert any("Triton's interpreter" in each for each in arm["not_engine_code"])


def twins(name: str, *more: str) -> dict[str, dict[str, Any]]:
    words = [
        sys.executable,
        "-m",
        "specdebug",
        "twins",
        str(TWINS / f"{name}.yaml"),
        "--json",
        "--no-locate",
        *more,
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return {each["relation"]: each for each in json.loads(done.stdout)["twins"]}


def test_the_runners_agree_and_one_alone_is_broken_by_chunks() -> None:
    relations = ("--relation", "chunks", "--relation", "runner")
    first, second = (twins("eagle_chain", "--target", each, *relations) for each in (RELEASE, SECOND))
    assert (first["chunks"]["verdict"], first["runner"]["verdict"]) == ("broken", "holds")
    assert (second["chunks"]["verdict"], second["runner"]["verdict"]) == ("holds", "holds")


def test_a_kernel_that_stores_behind_its_tensor_is_named(tmp_path: Path) -> None:
    """A kernel of the runner V2, changed in a checkout, pads one row too many."""
    package = package_of(find_installed(store_folder(None), parse_release(RELEASE)))
    shutil.copytree(package, tmp_path / "vllm", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    file = tmp_path / "vllm" / "v1" / "worker" / "gpu" / "input_batch.py"
    right = "            mask = block < max_num_reqs\n"
    assert file.read_text().count(right) == 1
    file.write_text(file.read_text().replace(right, right.replace("\n", " + 1\n")))
    scenario = tmp_path / "kernels.yaml"
    scenario.write_text((TWINS / "standalone.yaml").read_text().replace("probes: [default]", "probes: [kernels]"))
    code, arm = replayed(str(scenario), "--target", f"{SECOND}@{tmp_path}")
    assert (code, arm["signature"]) == (1, "oob@_prepare_pos_seq_lens_kernel.seq_lens_ptr"), arm["detail"]
    assert "input_batch.py:" in arm["detail"]
    assert arm["reached_sites"]["kernel._rejection_kernel"] > 0


def test_what_is_measured_is_kept_beside_the_engine_and_listed(tmp_path: Path) -> None:
    here = find_installed(store_folder(None), parse_release(RELEASE))
    replace(here, folder=tmp_path / "vllm", ours=False, packages={}).write()

    def engines(*words: str) -> str:
        command = [sys.executable, "-m", "specdebug", "engines", *words, "--into", str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    told = engines("measure", SECOND, str(TWINS / "eagle_chain.yaml"), str(TWINS / "eagle_tree.yaml"))
    assert told.splitlines()[-1] == f"eagle_tree (EAGLE, trees, LlamaForCausalLM): {len(DEFAULT)} not run"
    (target,) = json.loads(engines("list", "--abilities", "--json"))
    chain, tree = ({cell["relation"]: cell["verdict"] for cell in row["cells"]} for row in target["rows"])
    assert target["target"] == SECOND
    assert (chain["plain"], chain["chunks"], chain["runner"], chain["eager"]) == (
        "pass",
        "pass",
        "pass",
        "not compared",
    )
    assert set(tree.values()) == {"not run"}
