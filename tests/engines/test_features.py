"""What requests ask for beside, on SGLang and vLLM: the same with drafts and without, or broken as declared."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.engines.replays import ROOT, replayed

pytestmark = pytest.mark.engines

RELEASE, VLLM = "sglang==0.5.23", "vllm==0.32.0"
NEWER = (VLLM,)


def twins(name: str, target: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the document of the relation plain."""
    words = [sys.executable, "-m", "specdebug", "twins", str(ROOT / "scenarios" / "twins" / f"{name}.yaml")]
    more = ["--target", target, "--relation", "plain", "--no-locate", "--json"]
    done = subprocess.run([*words, *more], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["twins"][0]


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("features", RELEASE),
        ("features", VLLM),
        ("features_steered", VLLM),
        ("features_grammar", RELEASE),
    ],
)
def test_drafts_change_nothing_of_what_was_asked_for(name: str, target: str) -> None:
    code, twin = twins(name, target)
    assert (code, twin["verdict"], twin["breaks"]) == (0, "holds", []), twin


def test_with_drafts_sglang_s_penalties_and_least_lengths_are_others() -> None:
    code, twin = twins("features_steered", RELEASE)
    assert (code, twin["verdict"]) == (0, "broken")
    assert {each["rid"] for each in twin["breaks"]} <= {"frequency.0", "presence.0", "repetition.0", "least.0"}
    assert {"tokens", "log probabilities"} == {each["what"] for each in twin["breaks"]}


@pytest.mark.parametrize("target", [RELEASE, VLLM])
def test_an_output_fits_its_grammar_and_ends_with_it(target: str) -> None:
    code, arm = replayed("twins/features_steered", "--target", target)
    assert (code, arm["verdict"]) == (0, "pass"), arm["detail"]
    texts = {each["rid"]: (each["finish_reason"], each["text"]) for each in arm["requests"]}
    reason, text = texts["regex.0"]
    assert reason == "stop"
    assert re.match(r"[a-z]{3,12}\([0-9]+\)", text)


def test_a_verify_of_sglang_s_forgets_min_p() -> None:
    path = str(ROOT / "scenarios" / "twins" / "features_min_p.yaml")
    code, drafted = replayed(path, "--arm", "drafted", "--target", RELEASE)
    assert (code, drafted["signature"]) == (1, "sampling@support")
    code, decoded = replayed(path, "--arm", "decoded", "--target", RELEASE)
    assert (code, decoded["verdict"]) == (0, "pass"), decoded["detail"]


SEEDED = "{engine: sglang==0.5.23, arguments: [--enable-deterministic-inference]}"


@pytest.mark.parametrize("target", [VLLM, SEEDED])
def test_a_seeded_request_s_text_is_the_same_in_any_company(target: str) -> None:
    words = [sys.executable, "-m", "specdebug", "twins", str(ROOT / "scenarios" / "twins" / "seeded.yaml")]
    more = ["--target", target, "--relation", "alone", "--no-locate", "--json"]
    done = subprocess.run([*words, *more], cwd=ROOT, capture_output=True, text=True)
    (twin,) = json.loads(done.stdout)["twins"]
    assert (done.returncode, twin["verdict"], twin["requests"]) == (0, "holds", 4), done.stdout
