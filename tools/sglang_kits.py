"""Run test kits and the benchmark of SGLang's released package, unmodified, against ``specdebug serve``.

    python tools/sglang_kits.py --specdebug .venv/bin/specdebug [--only NAME ...]

It is run by a Python that can import ``sglang`` (0.5.13 was tried), so by another environment than ours; docs/serve.md
has the commands that make one. Of what SGLang imports there and these kits never use, empty modules are put in its
place. Each suite starts a server of its own by the flags beside it. A kit's thresholds are attributes of its class,
set here to what the tiny checkpoint reaches; its tests are SGLang's own. What cannot hold here is named with the reason
and not run. Exit code 1 if a test failed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # of ours only what needs no package but SGLang's own

from specdebug.targets.sglang.inside.empty_modules import stand_in_for  # noqa: E402

UNUSED = ("IPython", "datasets", "soundfile", "torchvision")
READY_S = 120.0
WIDE = 32000
"""Token ids that the radix kit sends lie below; the tiny checkpoint has 2,048."""
CHECKPOINTS = ROOT / "specdebug" / "_assets" / "checkpoints"
TINY = CHECKPOINTS / "tiny"
EAGLE = (
    "--speculative-algorithm", "EAGLE", "--speculative-num-steps", "5",
    "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "6",
)  # fmt: skip
TREE = (
    "--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3",
    "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "8",
)  # fmt: skip
FACTS = "its answer is a fact of the world, or a sum, which the tiny checkpoint does not know"
GRAMMAR = "the server has no grammars, and says so"
PENALTIES = "the server has no penalties and no min_new_tokens, and says so"


@dataclass(frozen=True)
class Suite:
    """Kits on one server. ``kits``: ``module:class``, below ``sglang.test.kits``, or a class of this file; ``left``:
    their tests that are not run, each with the reason."""

    name: str
    kits: tuple[str, ...]
    flags: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    wide: bool = False


SUITES = (
    Suite("multi-turn", ("MultiTurn",), (*EAGLE, "--chunked-prefill-size", "128")),
    Suite("multi-turn, a tree", ("MultiTurn",), (*TREE, "--page-size", "16", "--attention-backend", "fa3")),
    Suite(
        "spec",
        ("spec_server_kits:SpecCorrectnessKit", "spec_server_kits:SpecLogprobKit", "spec_server_kits:SpecFeatureKit",
         "spec_server_kits:SpecPenaltyKit"),
        EAGLE,
        {"acc_length_thres": 1.6, "batch_accept_len_thres": 1.3},
        {
            "test_constrained_decoding": GRAMMAR,
            "test_penalty_mixed": PENALTIES,
            "test_radix_attention": "its token ids go to 31,999; suite `radix` has it",
        },
    ),
    Suite("radix", ("Radix",), (*EAGLE, "--context-length", "4096", "--max-total-tokens", "120000"), wide=True),
    Suite(
        "api",
        ("basic_api_contract_kit:BasicAPIContractMixin", "matched_stop_kit:MatchedStopMixin",
         "abort_timeout_kit:AbortAllMixin", "basic_decode_correctness_kit:BasicDecodeCorrectnessMixin"),
        (*EAGLE, "--served-model-name", "default", "--context-length", "8180", "--max-total-tokens", "300000",
         "--max-running-requests", "32"),
        {"model": "default", "abort_all_max_new_tokens": 8000},
        {
            "test_capital_france": FACTS,
            "test_basic_math": FACTS,
            "test_color_completion": FACTS,
            "test_no_repetition_blowup": "the tiny checkpoint, which knows code alone, repeats itself in prose",
            "test_finish_stop_eos": "its end tokens are Llama 3's, and the tiny checkpoint has others",
            "test_finish_stop_regex_str": "the server has no stop_regex, and says so",
        },
    ),
    Suite(
        "speed",
        ("spec_decoding_kit:SpecDecodingMixin",),
        (*EAGLE, "--context-length", "4096"),
        {"accept_length_thres": 1.6, "bs_1_speed_thres": 1.0},
    ),
    Suite("bench_serving", ("Benchmark",), (*EAGLE, "--max-running-requests", "16")),
)  # fmt: skip


class MultiTurn:
    """SGLang's multi-turn test in the shape of its test of EAGLE's cache hits: 4 clients, 3 rounds."""

    def test_multiturn_cache_hit(self: Any) -> None:
        from sglang.test.kits.cache_hit_kit import run_multiturn_cache_hit_test

        result = run_multiturn_cache_hit_test(
            self.base_url, self.model_path, num_clients=4, num_rounds=3, dataset_path=self.conversations
        )
        assert self.process.poll() is None
        assert result["overall"]["total_cached_tokens"] > 0
        assert result["overall"]["cache_hit_rate"] > 0.15


class Radix:
    """400 prompts in one body, that share prefixes as the branches of a tree do."""

    def test_radix_attention(self: Any) -> None:
        from sglang.test.kits.radix_cache_server_kit import run_radix_attention_test

        run_radix_attention_test(self.base_url)
        assert self.process.poll() is None


class Benchmark:
    """``sglang.bench_serving`` with prompts of random ids, by each of its interfaces."""

    def test_generate(self: Any) -> None:
        self._bench("sglang", "--return-logprob")

    def test_completions(self: Any) -> None:
        self._bench("sglang-oai")

    def test_chat_completions(self: Any) -> None:
        self._bench("sglang-oai-chat")

    def test_whole_answers(self: Any) -> None:
        self._bench("sglang", "--disable-stream")

    def _bench(self: Any, backend: str, *more: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "result.jsonl"
            command = [
                "bench_serving", "--backend", backend, "--base-url", self.base_url, "--dataset-name", "random-ids",
                "--num-prompts", "32", "--random-input-len", "64", "--random-output-len", "48", "--flush-cache",
                "--random-range-ratio", "1.0", "--tokenizer", self.model_path, "--disable-tqdm",
                "--output-file", str(table), *more,
            ]  # fmt: skip
            kept, sys.argv = sys.argv, command
            try:
                runpy.run_module("sglang.bench_serving", run_name="__main__")
            finally:
                sys.argv = kept
            result = json.loads(table.read_text().splitlines()[-1])
        assert result["completed"] == 32
        assert result["total_output_tokens"] == 32 * 48
        assert result["accept_length"] > 1.0


def widened(folder: Path) -> tuple[Path, Path]:
    """The tiny target and its draft head with 32,000 tokens: rows beyond the first 2,048 are those again, by half."""
    from safetensors.torch import load_file, save_file

    made = []
    for name in ("tiny", "tiny-eagle"):
        to = folder / f"{name}-wide"
        shutil.copytree(CHECKPOINTS / name, to)
        config = json.loads((to / "config.json").read_text())
        vocab, config["vocab_size"] = config["vocab_size"], WIDE
        (to / "config.json").write_text(json.dumps(config))
        tensors = load_file(to / "model.safetensors")
        for key, tensor in tensors.items():
            if tensor.shape[:1] == (vocab,):
                again = tensor.repeat(-(-WIDE // vocab), 1)[:WIDE]
                again[vocab:] *= 0.5
                tensors[key] = again
        save_file(tensors, to / "model.safetensors", {"format": "pt"})
        made.append(to)
    return made[0], made[1]


def conversations(path: Path) -> None:
    """What the kit cuts its prompts from, in ShareGPT's form: functions of the standard library, by two."""
    texts = [
        line
        for source in (argparse, json, shutil, tempfile)
        for line in Path(str(source.__file__)).read_text().split("\n\n")
    ]
    pairs = [texts[place : place + 2] for place in range(0, len(texts) - 1, 2)]
    path.write_text(json.dumps([{"conversations": [{"value": text} for text in pair]} for pair in pairs]))


@contextmanager
def server(specdebug: str, flags: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that serves, and its address."""
    command = [specdebug, "serve", "--port", "0", "--log-level", "error", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": ""})
    assert process.stderr is not None
    try:
        said = ""
        for line in process.stderr:
            said += line
            if "ready to roll" in line:
                break
        else:
            say(f"the server did not start:\n{said}")
            raise SystemExit(1)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process, line.split()[-1]
    finally:
        process.terminate()
        process.wait(READY_S)


class _Told(unittest.TestResult):
    """A line for each test, once it has ended."""

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._began = time.monotonic()
        self._bad = len(self.failures) + len(self.errors)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        held = self._bad == len(self.failures) + len(self.errors)
        said = "ok" if held else "FAILED"
        say(f"  {test._testMethodName:<36} {said:<7} {time.monotonic() - self._began:7.1f} s")


def say(line: str) -> None:
    print(line, file=sys.__stdout__, flush=True)


def class_of(kit: str) -> type:
    """The class that a suite names."""
    module, _, name = kit.rpartition(":")
    return getattr(importlib.import_module(f"sglang.test.kits.{module}"), name) if module else globals()[name]


def helpers() -> type:
    """SGLang's own class that has the requests which its kits send, without the server that it would start."""
    from sglang.test.server_fixtures.spec_eagle_fixture import SpecEagleServerBase

    return type("Helpers", (SpecEagleServerBase,), {
        "setUpClass": classmethod(lambda cls: None), "tearDownClass": classmethod(lambda cls: None),
    })  # fmt: skip


def run(suite: Suite, specdebug: str, folder: Path, log: Path) -> bool:
    """Run a suite; True if every test held."""
    model, draft = widened(folder) if suite.wide else (TINY, CHECKPOINTS / "tiny-eagle")
    flags = ["--model-path", str(model), "--speculative-draft-model-path", str(draft), *suite.flags]
    kits = [class_of(kit) for kit in suite.kits]
    say(f"{suite.name}: serve {' '.join(suite.flags)}")
    with server(specdebug, flags) as (process, url):
        attributes = {
            "base_url": url, "process": process, "model": str(model), "model_path": str(model),
            "conversations": str(folder / "conversations.json"), "_tokenizer": None, **suite.attributes,
        }  # fmt: skip
        case = type(suite.name, (*kits, helpers()), attributes)
        names = unittest.defaultTestLoader.getTestCaseNames(case)
        result = _Told()
        with log.open("a") as sink:
            kept, sys.stdout = sys.stdout, sink
            try:
                unittest.TestSuite(case(name) for name in names if name not in suite.left).run(result)
            finally:
                sys.stdout = kept
    for name in (name for name in names if name in suite.left):
        say(f"  {name:<36} not run: {suite.left[name]}")
    for test, text in [*result.failures, *result.errors]:
        say(f"\n{test}\n{text}")
    return result.wasSuccessful()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--specdebug", default="specdebug", help="the command that serves")
    parser.add_argument("--only", action="append", choices=[suite.name for suite in SUITES], help="these suites alone")
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="where what the kits print goes")
    arguments = parser.parse_args()
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    stand_in_for(UNUSED)
    with tempfile.TemporaryDirectory() as folder:
        conversations(Path(folder) / "conversations.json")
        chosen = [suite for suite in SUITES if suite.name in (arguments.only or [suite.name])]
        held = [run(suite, arguments.specdebug, Path(folder), arguments.log) for suite in chosen]
    raise SystemExit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
