"""Write what every command says into tests/golden/, a file a command, to be read as a diff.

python tools/golden.py            # rewrite the files that have changed, and remove those without a command
python tools/golden.py --check    # say which have, and write nothing; exit code 1 if any has
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.report.golden import FOLDER, golden_texts


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the wording of every command into tests/golden/.")
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    texts = golden_texts()
    held = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.txt")}
    changed = sorted(name for name in {*texts, *held} if texts.get(name) != held.get(name))
    for name in changed:
        print(name)
        if check:
            continue
        if name in texts:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / name).write_text(texts[name], encoding="utf-8")
        else:
            (FOLDER / name).unlink()
    return int(bool(changed) and check)


if __name__ == "__main__":
    sys.exit(main())
