"""Engines that end under a server: each open request gets an error, and the log names the cause."""

import concurrent.futures
import fcntl
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from specdebug.apps.serve.process import ENDING, EngineFailure, failure_of
from specdebug.logs.scan import LogReader
from specdebug.verdict.outcome import Violation
from specdebug.workers.job import WorkerEnd
from specdebug.workers.machine_failure import MachineFailure
from tests.apps.serve.serving import Launched, events_of, wait_until

EAGLE = (
    "--model-path", "tiny", "--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3",
    "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4",
)  # fmt: skip
LONG = {"text": "def f(x):\n", "sampling_params": {"temperature": 0, "max_new_tokens": 1500, "ignore_eos": True}}


@pytest.mark.parametrize(
    ("number", "flags", "signature"),
    [
        (signal.SIGKILL, (), "crash:SIGKILL"),
        pytest.param(signal.SIGSEGV, (), "crash:SIGSEGV", marks=pytest.mark.slow),
        (signal.SIGSTOP, ("--watchdog-timeout", "1"), "hang"),
    ],
)
def test_an_engine_that_dies_ends_every_open_request(
    tmp_path: Path, number: signal.Signals, flags: tuple[str, ...], signature: str
) -> None:
    with Launched(tmp_path / "log", *EAGLE, *flags) as server:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            plain = pool.submit(server.http.post, "/generate", json=LONG)
            with server.http.stream("POST", "/generate", json={**LONG, "stream": True}) as response:
                events = events_of(response)
                next(events)
                os.kill(server.engine_pid, number)
                *_, error, done = events
            answer = plain.result()
        assert done == "[DONE]"
        assert answer.status_code == 500
        for each in (error["error"], answer.json()["error"]):
            assert f"fail {signature}: " in each["message"]
        assert f"the engine has died: fail {signature}: " in server.text
        for path in ("/health", "/health_generate"):
            assert server.http.get(path).status_code == 503
        assert server.http.post("/generate", json=LONG).status_code == 503
        assert server.http.get("/server_info").json()["specdebug"]["failure"]["signature"] == signature
        assert server.engine_is_gone()
    assert server.process.returncode == 128 + signal.SIGTERM


def test_what_probes_record_is_told_and_the_engine_goes_on(tmp_path: Path) -> None:
    flags = ("--fault", "nan_logits:step=4", "--probes", "default", "--mode", "record")
    body = {**LONG, "sampling_params": {"temperature": 0, "max_new_tokens": 20, "ignore_eos": True}}
    with Launched(tmp_path / "log", *EAGLE, *flags) as server:
        assert server.http.post("/generate", json=body).status_code == 200
        found = server.http.get("/server_info").json()["specdebug"]["violations"]
        assert found
        assert found[0]["signature"].startswith("nan@")
        assert found[0]["step"] == 4
        assert f"found {found[0]['signature']} at step 4" in server.text
        assert server.http.get("/health_generate").status_code == 200


IN_FRONT = """
pr: 999998
title: count verifies in the front
url: https://example.org/999998
family: tests
symptom: none
description: none
detected_by: {scenario: cache_hit, signature: "error@x"}
patches:
  specdebug:
    - target: specdebug.apps.serve.client:Totals.step
      edits:
        - match: self.verifies += len(event["accept"])
          replacement: self.verifies += 2 * len(event["accept"])
"""


def test_a_revert_of_the_front_is_in_force_there_and_counted(tmp_path: Path) -> None:
    (tmp_path / "toggles").mkdir()
    (tmp_path / "toggles" / "999998.yaml").write_text(IN_FRONT)
    flags = ("--content", str(tmp_path), "--revert", "999998", "--revert", "27338")
    with Launched(tmp_path / "log", *EAGLE, *flags) as server:
        body = {**LONG, "sampling_params": {"max_new_tokens": 16, "temperature": 0}}
        meta = server.http.post("/generate", json=body).json()["meta_info"]
        info = server.http.get("/server_info").json()
        mean = (meta["spec_accept_token_num"] + meta["spec_verify_ct"]) / meta["spec_verify_ct"]
        assert info["internal_states"][0]["avg_spec_accept_length"] == mean / 2
        assert info["specdebug"]["reverts"]["999998"]["999998#1"] >= meta["spec_verify_ct"]
        assert set(info["specdebug"]["reverts"]) == {"999998", "27338"}


BROKEN = """
pr: 999999
title: fail while the engine is built
url: https://example.org/999999
family: tests
symptom: none
description: none
detected_by: {scenario: cache_hit, signature: "error@engine.Engine.__init__"}
patches:
  specdebug:
    - target: specdebug.engine.textbook.engine:Engine.__init__
      edits:
        - match: self._step = 0
          replacement: raise RuntimeError("not today")
"""


@pytest.mark.slow
def test_an_engine_that_cannot_be_built_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "toggles").mkdir()
    (tmp_path / "toggles" / "999999.yaml").write_text(BROKEN)
    server = Launched(tmp_path / "log", *EAGLE, "--content", str(tmp_path), "--revert", "999999")
    assert server.process.wait(60) == 1
    last = server.text.splitlines()[-1]
    assert last == "error: the engine has died: fail error@engine.Engine.__init__: RuntimeError: not today"


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_ends_the_server_with_its_open_requests(tmp_path: Path, number: signal.Signals) -> None:
    with Launched(tmp_path / "log", *EAGLE) as server:
        with server.http.stream("POST", "/generate", json={**LONG, "stream": True}) as response:
            events = events_of(response)
            next(events)
            server.process.send_signal(number)
            *_, error, done = events
        assert (error["error"]["message"], done) == ("the server is ending", "[DONE]")
        assert server.process.wait(60) == 128 + number
        assert server.engine_is_gone()
        assert "Traceback" not in server.text
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.url + "/health")


@pytest.mark.parametrize("gone", [False, True], ids=["unread", "closed"])
def test_a_log_that_nobody_reads_stops_neither_requests_nor_a_signal(gone: bool) -> None:
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    command = [sys.executable, "-m", "specdebug", "serve", "--port", "0", "--log-requests", *EAGLE]
    process = subprocess.Popen(command, stdout=write, stderr=write, env={**os.environ, "OMP_NUM_THREADS": "1"})
    os.close(write)
    said = b""
    while b"ready to roll! " not in said or not said.endswith(b"\n"):
        part = os.read(read, 4096)
        assert part, said
        said += part
    url = re.search(rb"ready to roll! (\S+)", said)
    assert url is not None
    if gone:
        os.close(read)
    with httpx.Client(base_url=url[1].decode(), timeout=60) as http:
        for number in range(100):  # each is two lines of some hundred bytes
            assert http.get(f"/v1/models?{'x' * 200}={number}").status_code == 200
        body = {**LONG, "stream": True, "rid": "x" * 200}
        with http.stream("POST", "/generate", json=body) as response:
            next(events_of(response))
            process.terminate()
            assert process.wait(60) == 128 + signal.SIGTERM
    if not gone:
        os.close(read)


@pytest.mark.slow
def test_an_engine_does_not_outlive_a_front_that_is_killed(tmp_path: Path) -> None:
    with Launched(tmp_path / "log", *EAGLE) as server:
        server.process.kill()
        server.process.wait()
        wait_until(server.engine_is_gone, "the engine is gone")


def ended(kind: Any = "exit", status: int = 1, log: str = "") -> WorkerEnd:
    return WorkerEnd(kind, status, 3.0, 0.0, log)


def of(end: WorkerEnd, told: tuple[Violation, ...] = (), **more: Any) -> EngineFailure:
    return failure_of(end, told, more.pop("machine", None), step=7, stage="serve", **more)


ASSERTED = Violation("assert", "accept.walk", 7, "AssertionError: no")


@pytest.mark.parametrize(
    ("end", "told", "signature"),
    [
        (ended("signal", -9), (), "crash:SIGKILL"),
        (ended("signal", -11), (), "crash:SIGSEGV"),
        (ended("timeout", -9), (), "hang"),
        (ended(status=3), (), "error@worker"),
        (ended(status=0), (), "error@worker"),
        (ended(), (ASSERTED,), "assert@accept.walk"),
        (ended("signal", -11), (Violation("nan", "verify.logits", 6),), "nan@verify.logits"),
        (ended(), (ASSERTED, Violation("oob", "draft.index", 7)), "oob@draft.index"),
        (ended(), (Violation("error", "draft.loop", 0, "while it was built"),), "error@draft.loop"),
    ],
)
def test_the_first_in_program_order_names_it(end: WorkerEnd, told: tuple[Violation, ...], signature: str) -> None:
    assert of(end, told).signature == signature


@pytest.mark.parametrize(
    ("end", "more", "told"),
    [
        (
            replace(ended("signal", -9), failure=MachineFailure("memory", "the kernel killed the engine")),
            {},
            "machine: there is no memory left",
        ),
        (ended(), {"machine": {"cause": "disk", "line": "full"}}, "machine: there is no room to write: full"),
        (ended(log="OSError: [Errno 28] No space left on device"), {}, "machine: there is no room to write"),
    ],
)
def test_a_machine_that_fails_has_no_signature(end: WorkerEnd, more: Any, told: str) -> None:
    failure = of(end, **more)
    assert failure.signature is None
    assert told in str(failure)


def test_a_log_that_is_read_by_triage_names_the_same() -> None:
    assert str(ENDING) == "the server is ending"
    crashed = of(ended("signal", -11), (Violation("nan", "verify.logits", 6, "3 bad"),))
    assert "3 bad; killed by SIGSEGV" in str(crashed)
    failure = of(ended(), (ASSERTED,))
    assert str(failure) == "the engine has died: fail assert@accept.walk: AssertionError: no"
    reader = LogReader()
    reader.feed(f"[2026-01-01 00:00:00] {failure}\n".encode())
    found = reader.close().main
    assert found is not None
    assert found.signature == "assert@accept.walk"
