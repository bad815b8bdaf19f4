"""A CI job: start a server, send prompts at once, fail if their mean accept length is below what it was.

It knows nothing of specdebug. ``server.json`` in this folder says how the server is started (``words``, ``env`` and the
``path`` that goes behind the caller's PYTHONPATH), the ``prompts`` in tokens and how many ``new`` ones each gets.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

LEAST = 3.1
"""With all fixes the mean accept length is above, with the draft reading the wrong slots mostly below."""
READY_S = 500.0


def main() -> int:
    """Exit code 0 or 1, 125 where the server does not come up."""
    with open("server.json", encoding="utf-8") as file:
        job = json.load(file)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), job["path"]]))
    words = [word.replace("{port}", str(port)) for word in job["words"]]
    with subprocess.Popen(words, env={**os.environ, **job["env"], "PYTHONPATH": path}) as server:
        try:
            if not ready(url, server):
                return 125
            with ThreadPoolExecutor(len(job["prompts"])) as pool:
                answers = list(pool.map(lambda ids: generate(url, ids, job["new"]), job["prompts"]))
        finally:
            server.terminate()
    tokens, verifies = (sum(answer[key] for answer in answers) for key in ("completion_tokens", "spec_verify_ct"))
    mean = round(tokens / verifies, 2)
    print(f"mean accept length {mean}, {LEAST} at least")
    return int(mean < LEAST)


def free_port() -> int:
    """A port that is free now. SGLang takes the one that is 10,000 above, too, so it is none of the system's own."""
    for port in range(30000 + os.getpid() % 10000, 50000):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


def ready(url: str, server: "subprocess.Popen[bytes]") -> bool:
    """Wait until the server answers; False where it ends, or does not in time."""
    until = time.monotonic() + READY_S
    while server.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=10):
                return True
        except OSError:
            time.sleep(0.5)
    return False


def generate(url: str, ids: "list[int]", new: int) -> "dict[str, int]":
    """What the server tells of one request."""
    params = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
    body = json.dumps({"input_ids": ids, "sampling_params": params}).encode()
    asked = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=READY_S) as answer:
        return json.load(answer)["meta_info"]


if __name__ == "__main__":
    sys.exit(main())
