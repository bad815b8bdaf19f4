"""SGLang's own code on this machine's GPU as a target: what fits in nine minutes on a bare machine.

``python benchmarks/gpu/engines.py OUT --files FOLDER`` (or ``make gpu-engines FILES=folder OUT=folder``) unpacks SGLang
from FOLDER (``*.tar.xz`` that hold ``tmp/site``, and ``env.sh`` with what a server needs), makes an environment of it,
hands that to ``specdebug engines`` and runs the stages below. Without ``--files``, what ``specdebug engines`` knows for
CUDA is taken. Logs and tables go to OUT.

    verify   the fixes that SGLang has and a scenario shows: each applied and reverted
    arms     a cache hit, padding, trees on FA3 and on FlashInfer, each held to the reference
    diverge  our engine and SGLang, both with CUDA graphs, tensor by tensor
    standins what stands in for SGLang's kernels on a CPU, beside those kernels (stand_ins.py)
    speed    a step of our engine beside SGLang's (against_sglang.py), alone on the machine
    costs    what probes and oracles cost SGLang (costs.py); only by its name, for it takes four minutes
    hunt     drawn scenarios, eight at a time, for seven minutes; only by its name

Exit codes as ``suite.py``'s.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from stages import AGAINST, HERE, PYTHON, SPECDEBUG, Stage
from suite import BUDGET_S, Clock, exit_code, run_all, show

RELEASE = "sglang==0.5.13"
ON_GPU = ("--device", "cuda", "--dtype", "bfloat16")
THERE = ("--target", RELEASE, *ON_GPU)
NINE_MINUTES = ("verify", "arms", "diverge", "standins", "speed")
ARMS = ("multiturn_cache_hit", "graph_padding", "topk_page_table", "topk_kv_indices")


def stages(out: Path) -> list[Stage]:
    """In the order they begin."""
    scenarios = tuple(f"scenarios/{name}.yaml" for name in ARMS)
    verify = (*SPECDEBUG, "toggles", "verify", *THERE, "--jobs", "12", "--json-file", str(out / "verify.json"))
    arms = (*SPECDEBUG, "replay", *scenarios, "--arm", "fixed", *THERE, "--jobs", "4")
    both = ("--arm", "fixed", "--arm", f"fixed@{RELEASE}", *ON_GPU)
    diverge = (*SPECDEBUG, "diverge", "scenarios/topk_page_table.yaml", *both)
    stand_ins = (PYTHON, str(HERE / "stand_ins.py"), str(out))
    speed = (PYTHON, str(HERE / "against_sglang.py"), str(out))
    costs = (PYTHON, str(HERE / "costs.py"), str(out))
    faults = (*SPECDEBUG, "faults", "verify", *THERE, "--json-file", str(out / "faults.json"))
    hunt = (*SPECDEBUG, "hunt", "-o", str(out / "hunt"), "--seed", "1", "--count", "1000", "--max-time", "420")
    return [
        Stage("verify", verify, 240, 100, workers=12),
        Stage("arms", arms, 200, 80, workers=4),
        Stage("diverge", diverge, 200, 80),
        Stage("standins", stand_ins, 200, 60),
        Stage("speed", speed, 300, 150, AGAINST, timed=True),
        Stage("costs", costs, 420, 240, AGAINST, timed=True),
        Stage("faults", (*faults, "--jobs", "12"), 420, 180, workers=12),
        Stage("hunt", (*hunt, "--small", "0", "--jobs", "8", *THERE), 540, 480, workers=8),
    ]


def unpack(files: Path) -> None:
    """Unpack SGLang where it was packed, below ``/tmp``, and take over the variables that it needs."""
    for archive in sorted(files.glob("*.tar.xz")):
        with tarfile.open(archive) as packed:
            packed.extractall("/", filter="data")
    script = f"source {files / 'env.sh'} >&2 && env -0"
    told = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout.decode()
    ours = os.environ.get("PYTHONPATH", "")
    os.environ.update(dict(entry.split("=", 1) for entry in told.split("\0") if "=" in entry))
    os.environ["PYTHONPATH"] = ours


def adopt(out: Path) -> None:
    """Make an environment that has the unpacked packages and this Python's own, and have ``specdebug engines`` know it.
    Raises CalledProcessError."""
    made = out / "environment"
    subprocess.run([PYTHON, "-m", "venv", str(made)], check=True)
    (packages,) = made.glob("lib/python*/site-packages")
    import torch

    (packages / "engine.pth").write_text(f"/tmp/site\n{Path(torch.__file__).resolve().parents[1]}\n")
    words = ("engines", "install", RELEASE, "--cuda", "--python", str(made / "bin" / "python"), "--no-check")
    root = str(HERE.parent.parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    subprocess.run([*SPECDEBUG, *words], check=True, env=env)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for tables and logs")
    parser.add_argument("--files", type=Path, help="folder with SGLang's packed files")
    parser.add_argument("--only", nargs="+", help="names of the stages to run")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    clock, began = Clock(options.budget), time.monotonic()
    os.environ.setdefault("SPECDEBUG_ENGINES", str(out / "engines"))
    if options.files is not None:
        unpack(options.files.resolve())
        adopt(out)
    chosen = [stage for stage in stages(out) if stage.name in (options.only or NINE_MINUTES)]
    with clock.stopped_by_signals():
        results = run_all(chosen, out, clock)
    show(results, out, told=tuple(stage.name for stage in chosen))
    print(
        f"{sum(each.end == 'ok' for each in results)} of {len(results)} stages ok in {time.monotonic() - began:.0f} s"
    )
    return exit_code(results, clock)


if __name__ == "__main__":
    sys.exit(main())
