"""The fake server as a process: ``PORT [--say TEXT] [--end STATUS] [--sick STATUS] [--kill-after N [--last-words TEXT]]
[--child FILE [--apart]] [--stubborn] [--fill BYTES] [--taken FILE]``.

``--child``: the pid of a child that it starts, ``--apart`` in a session of its own; ``--stubborn``: it does not end
when it is told to, and neither does the child; ``--fill``: so much is logged before it serves; ``--taken``: as often as
the file says, its port is another's.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from specdebug.scenario.text import load_tokenizer
from tests.targets.http.fake import FakeServer, serving

TOKENIZER = load_tokenizer("tiny")


class Dying(FakeServer):
    """Dies of SIGSEGV instead of answering more than so many requests. Its texts are of the model that it names."""

    most = 0
    last_words = ""

    def text_of(self, body: dict[str, Any]) -> list[int]:
        if self.most and len(self.served) > self.most:
            if self.last_words:
                print(self.last_words, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().text_of(body)

    def decoded(self, ids: list[int]) -> str:
        return str(TOKENIZER.decode(ids, skip_special_tokens=False))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--say", default="")
    parser.add_argument("--end", type=int)
    parser.add_argument("--sick", type=int, default=200)
    parser.add_argument("--kill-after", type=int, default=0)
    parser.add_argument("--last-words", default="")
    parser.add_argument("--child")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--fill", type=int, default=0)
    parser.add_argument("--taken")
    asked = parser.parse_args()
    print(f"reverts {os.environ.get('SGLANG_DEBUG_REVERT_PR', 'nothing')}", flush=True)
    print(asked.say, flush=True)
    if asked.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which a child inherits
    if asked.child:
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        child = subprocess.Popen(sleep, start_new_session=asked.apart)
        Path(asked.child).write_text(str(child.pid))
    if asked.taken and (left := int(Path(asked.taken).read_text())):
        Path(asked.taken).write_text(str(left - 1))
        sys.exit("OSError: [Errno 98] Address already in use")
    if asked.end is not None:
        sys.exit(asked.end)
    for number in range(asked.fill // 100):
        print(f"line {number}".ljust(99), flush=True)
    fake = Dying(model="tiny", health=asked.sick)
    fake.most, fake.last_words = asked.kill_after, asked.last_words
    with serving(fake, asked.port):
        threading.Event().wait()


if __name__ == "__main__":
    main()
