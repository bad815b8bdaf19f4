"""A bundle of before the rooms were redesigned is replayed: the same verdict, from the same signature.

Made at commit 4ed8b65 by ``specdebug bundle topk_kv_indices --revert 27338 -o bundle.specdebug``. Its toggle is
today's, since a line that it edits has moved to another function; all else is as it was written.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_a_bundle_comes_to_the_verdict_it_recorded() -> None:
    bundle = Path(__file__).with_name("before.specdebug")
    command = [sys.executable, "-m", "specdebug", "replay", str(bundle), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    document = json.loads(done.stdout)
    recorded = document["bundle"]["recorded"]
    assert (recorded["verdict"], recorded["signature"]) == ("fail", "guard@draft.kv_indices->draft.kv_indptr")
    (arm,) = document["arms"]
    assert [arm["verdict"], arm["signature"]] == [recorded["verdict"], recorded["signature"]]
    assert document["bundle"]["status"] in ("exact", "rounding"), document["bundle"]["differences"]
