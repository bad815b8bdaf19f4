"""A front with the routes that specdebug asks of a `launch` target: ``python -m toyspec.serve PORT``."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from toyspec.engine import generate
from toyspec.model import VOCAB

INFO = {"version": "toyspec 0.1", "speculative_algorithm": "TOY", "specdebug": {"speculative_switch": True}}


def answer(asked):
    """The answer to a request of ``/generate``."""
    params = asked.get("sampling_params", {})
    prompt, most = asked["input_ids"], params.get("max_new_tokens", 16)
    ids, accepted = generate(prompt, most, speculative=asked.get("speculative", True))
    meta = {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(ids),
        "cached_tokens": 0,
        "spec_verify_ct": len(accepted),
        "finish_reason": {"type": "length", "length": most},
    }
    if asked.get("return_logprob"):
        meta |= logprobs(ids, asked.get("top_logprobs_num", 0))
    return {"text": "", "output_ids": ids, "meta_info": meta}


def logprobs(ids, most):
    """Log probabilities of a model that is nearly sure of each token, and of the next ones in order."""
    tops = [[[-0.01 if rank == 0 else -7.0, (token + rank) % VOCAB, None] for rank in range(most)] for token in ids]
    return {"output_token_logprobs": [[-0.01, token, None] for token in ids], "output_top_logprobs": tops}


class Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        known = {"/health": {}, "/health_generate": {}, "/server_info": INFO, "/model_info": {"model_path": "toyspec"}}
        self.say(200, known[self.path]) if self.path in known else self.say(404, {})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        if self.path == "/flush_cache":
            self.say(200, {})
        elif self.path != "/generate":
            self.say(404, {})
        else:
            try:
                told = answer(asked)
            except Exception as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                self.say(500, {"error": {"message": str(error)}})
                return
            if asked.get("stream"):
                text = f"data: {json.dumps(told)}\n\ndata: [DONE]\n\n"
                self.say(200, text, "text/event-stream")
            else:
                self.say(200, told)

    def say(self, status, body, kind="application/json"):
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Front).serve_forever()
