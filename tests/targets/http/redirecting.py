"""A server that redirects whatever it is asked to another one, on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def redirecting() -> Iterator[tuple[str, list[str], list[str]]]:
    """Its URL, and the Authorization headers that it and the other one got."""
    with ExitStack() as stack:
        elsewhere: list[str] = []
        asked: list[str] = []
        other = stack.enter_context(_serving(200, elsewhere))
        yield stack.enter_context(_serving(307, asked, other)), asked, elsewhere


@contextmanager
def _serving(status: int, asked: list[str], to: str = "") -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers.get("Authorization", ""))
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", "2")
            if to:
                self.send_header("Location", to + self.path)
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
