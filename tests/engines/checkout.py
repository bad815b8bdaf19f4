"""A checkout of an engine, made of the files of an installed release: harmless commits, and among them one with a bug.

``python tests/engines/checkout.py FOLDER`` makes one and prints its first commit and its last.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from specdebug.targets.installs.fit import package_of
from specdebug.targets.installs.release import parse_release
from specdebug.targets.installs.store import find_installed, store_folder

RELEASE = "sglang==0.5.23"
IDENTITY = {f"GIT_{who}_{what}": "x@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


@dataclass(frozen=True)
class Planted:
    """A change of a file: ``before`` stands in it once."""

    file: str
    before: str
    after: str


STALE = Planted(
    "srt/speculative/eagle_worker_v2.py",
    "                hidden_states = logits_output.hidden_states\n\n        draft_probs = (",
    "                hidden_states = logits_output.hidden_states if i else hidden_states\n\n        draft_probs = (",
)
"""The second forward of a draft reads the features that the first read. 0.5.23."""
_FILE, _LINE, _NEEDS = "srt/speculative/spec_info.py", "from enum import", "import of_no_package\n"
UNIMPORTABLE, IMPORTABLE = Planted(_FILE, _LINE, _NEEDS + _LINE), Planted(_FILE, _NEEDS, "")
"""A commit that needs what the release's environment has not, and one that needs it no more."""
PACKAGE = "python/sglang"


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], check=True, capture_output=True, text=True, env=os.environ | IDENTITY
    )
    return done.stdout.strip()


def make_checkout(folder: Path, changes: dict[int, Planted], count: int = 10) -> list[str]:
    """Make a repository of ``count`` commits after the first, which is the release; those of ``changes`` change what
    they say, all change a comment. Returns the commits, the first included."""
    release = find_installed(store_folder(None), parse_release(RELEASE))
    unbuilt = shutil.ignore_patterns("__pycache__", "*.so", "_version.py")
    shutil.copytree(package_of(release), folder / PACKAGE, ignore=unbuilt)
    git(folder, "init", "-q", "-b", "main")
    commits = []
    for number in range(count + 1):
        subject = "the release"
        if number:
            file = folder / PACKAGE / "srt/speculative" / ("eagle_utils.py" if number % 2 else "spec_utils.py")
            file.write_text(file.read_text() + f"# change {number}\n")
            subject = f"change {number}"
        if (planted := changes.get(number)) is not None:
            file = folder / PACKAGE / planted.file
            text = file.read_text()
            assert text.count(planted.before) == 1, planted
            file.write_text(text.replace(planted.before, planted.after))
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", subject)
        commits.append(git(folder, "rev-parse", "HEAD"))
    return commits


def main() -> int:
    commits = make_checkout(Path(sys.argv[1]), {4: UNIMPORTABLE, 5: IMPORTABLE, 6: STALE})
    print(commits[0], commits[-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
