#!/bin/sh
# A prompt a run, drawn by the trial's seed: fails now and then if a row is too narrow.
exec "${PYTHON:-python3}" - <<'PY'
import os, random
from toyspec.engine import generate
draw = random.Random(os.environ.get("SPECDEBUG_TRIAL_SEED", "0"))
prompt = [draw.randrange(512) for _ in range(6)]
assert generate(prompt, 8)[0] == generate(prompt, 8, speculative=False)[0], "drafts changed the output"
PY
