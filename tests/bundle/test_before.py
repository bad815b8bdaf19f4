"""A bundle of an earlier commit is replayed: the same verdict, from the same signature. Where it is refused, or its
toggle is no longer ours, it is made anew, by ``specdebug bundle topk_kv_indices --revert 27338``. Made at 3b0d5690.
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
