"""A small server of SGLang's HTTP interface: every token is its predecessor plus one. What goes wrong is a switch."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCAB = 4096


@dataclass
class FakeServer:
    """The state of a server. ``wrong_from``: at this output position a speculative request gets another token;
    ``old``: answers have no ``output_ids``; ``told`` goes over what ``/server_info`` says, ``mean`` over its mean
    accept length, ``chance`` over the log probability of each token; ``stammers``: a stream of OpenAI's route says its
    first piece twice; ``die_after``: requests after which every connection is dropped."""

    speculative: bool = True
    switch: bool = True
    old: bool = False
    incremental: bool = False
    model: str = "somebody/elses"
    wrong_from: int | None = None
    near_tie: bool = False
    die_after: int | None = None
    hold: threading.Event | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    event: dict[str, Any] = field(default_factory=dict)
    choice: dict[str, Any] = field(default_factory=dict)
    health: int = 200
    status: dict[str, int] = field(default_factory=dict)
    key: str | None = None
    url: str = ""
    served: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    cached: set[int] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    told: dict[str, Any] = field(default_factory=dict)
    mean: float | None = None
    chance: float = -0.1
    stammers: bool = False
    accepted: list[int] = field(default_factory=list)
    flushes: int = 0
    busy: int = 0
    most_busy: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def info(self) -> dict[str, Any]:
        own = {"specdebug": {"speculative_switch": True, "engine": {"state": "running"}}} if self.switch else {}
        algorithm = "EAGLE" if self.speculative else None
        counted = sum(self.accepted) / len(self.accepted) if self.accepted else None
        internal = {"avg_spec_accept_length": counted if self.mean is None else self.mean} if self.speculative else {}
        return {
            "version": "0.5.13",
            "dtype": "torch.float32",
            "speculative_algorithm": algorithm,
            "stream_output": self.incremental,
            "internal_states": [internal],
            **own,
            **self.told,
        }

    def text_of(self, body: dict[str, Any]) -> list[int]:
        ids, sampling = body["input_ids"], body["sampling_params"]
        output: list[int] = []
        for position in range(sampling["max_new_tokens"]):
            token = (ids + output)[-1] + 1
            if position == self.wrong_from and body.get("speculative", True):
                token += 1
            output.append(token % VOCAB)
            if not sampling.get("ignore_eos") and output[-1] in sampling.get("stop_token_ids", ()):
                break
        return output

    def decoded(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))

    def answer(
        self, body: dict[str, Any], output: list[int], since: int, reason: dict[str, Any] | None
    ) -> dict[str, Any]:
        shown = output[since:] if self.incremental else output
        meta: dict[str, Any] = {
            "id": body.get("rid"),
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(output),
            "cached_tokens": len(body["input_ids"]) // 2 if body["input_ids"][0] in self.cached else 0,
            "finish_reason": reason,
        }
        drafted = len(output) - 1
        if self.speculative and body.get("speculative", True) and drafted > 0:
            pairs, odd = divmod(drafted, 2)
            meta |= {
                "spec_verify_ct": pairs + odd,
                "spec_accept_length": len(output) / (pairs + odd),
                "spec_accept_histogram": [odd, pairs],
            }
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [[self.chance, token, None] for token in shown]
            margin = 0.01 if self.near_tie else 5.0
            meta["output_top_logprobs"] = [[[-0.1, t, None], [-0.1 - margin, t + 1, None]] for t in shown]
        answer: dict[str, Any] = {"text": self.decoded(shown), "meta_info": {**meta, **self.meta}, **self.event}
        return answer if self.old else {"output_ids": shown, **answer}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *_: Any) -> None: ...

    @property
    def fake(self) -> FakeServer:
        fake: FakeServer = self.server.fake
        return fake

    def do_GET(self) -> None:
        fake = self.fake
        fake.asked.append(self.path)
        if (
            fake.key is not None
            and self.path != "/health"
            and self.headers.get("Authorization") != f"Bearer {fake.key}"
        ):
            return self.send(401, {"error": {"message": "wrong key"}})
        routes = {"/server_info": fake.info, "/model_info": lambda: {"model_path": fake.model}}
        if fake.old:
            routes = {path.replace("/", "/get_"): made for path, made in routes.items()}
        if self.path in routes:
            return self.send(200, routes[self.path]())
        if self.path in ("/health", "/health_generate"):
            return self.send(fake.status.get(self.path, fake.health), {})
        return self.send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        fake = self.fake
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        fake.asked.append(self.path)
        if self.path in fake.status:
            return self.send(fake.status[self.path], {"error": {"message": "no"}})
        if self.path == "/flush_cache":
            fake.flushes += 1
            fake.cached.clear()
            fake.accepted.clear()
            return self.send(200, {})
        if self.path == "/abort_request":
            fake.aborted.add(body["rid"])
            return self.send(200, {})
        if self.path == "/v1/completions":
            return self.complete(fake, body)
        if self.path != "/generate":
            return self.send(404, {"detail": "Not Found"})
        with fake.lock:
            fake.busy += 1
            fake.most_busy = max(fake.most_busy, fake.busy)
        try:
            self.generate(fake, body)
        finally:
            with fake.lock:
                fake.busy -= 1

    def generate(self, fake: FakeServer, body: dict[str, Any]) -> None:
        fake.served.append(body)
        if fake.die_after is not None and len(fake.served) > fake.die_after:
            self.close_connection = True
            self.connection.close()
            return
        output = fake.text_of(body)
        if fake.hold is not None and body.get("rid"):
            while not fake.hold.wait(0.005) and body["rid"] not in fake.aborted:
                pass
        if body.get("rid") in fake.aborted:
            reason, output = {"type": "abort", "message": "Aborted"}, output[:1]
        elif len(output) < body["sampling_params"]["max_new_tokens"]:
            reason = {"type": "stop", "matched": output[-1]}
        else:
            reason = {"type": "length", "length": len(output)}
        if fake.speculative and body.get("speculative", True):
            fake.accepted += [2] * ((len(output) - 1) // 2) + [1] * ((len(output) - 1) % 2)
        events = []
        for count in range(1, len(output) + 1):
            done = count == len(output)
            events.append(fake.answer(body, output[:count], count - 1, reason if done else None))
        fake.cached.add(body["input_ids"][0])
        if not body.get("stream"):
            self.send(200, events[-1])
            return
        self.send_events(events)

    def complete(self, fake: FakeServer, body: dict[str, Any]) -> None:
        asked = {"input_ids": body["prompt"], "sampling_params": {**body, "max_new_tokens": body["max_tokens"]}}
        pieces = [f"{token} " for token in fake.text_of(asked)]
        if not body.get("stream"):
            self.send(200, {"choices": [{"text": "".join(pieces)}]})
            return
        told = [piece * 2 if fake.stammers and not at else piece for at, piece in enumerate(pieces)]
        self.send_events(
            [{"choices": [{"text": piece, "index": 0} | fake.choice]} for piece in told] + [{"choices": []}]
        )

    def send_events(self, events: list[dict[str, Any]]) -> None:
        data = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events) + b"data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def send(self, status: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    fake: FakeServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients go away, and connections are dropped on purpose."""


@contextmanager
def serving(fake: FakeServer, port: int = 0) -> Iterator[FakeServer]:
    """Serve on a port, or any that is free."""
    server = _Server(("127.0.0.1", port), _Handler)
    server.fake = fake
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
