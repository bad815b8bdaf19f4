"""A checkout of a toy engine, whose commits are made by the test."""

import subprocess
from pathlib import Path

BROKEN = """\
def room(tokens, page, topk):
    pages = (tokens + page - 1) // page
    return pages * page


def rows(lengths, page, topk, server_args):
    width = server_args.page_size
    return [room(n, page, topk) for n in lengths if width]
"""
FIXED = BROKEN.replace("return pages * page\n", "return pages * page * topk\n")


def checkout(folder: Path) -> Path:
    """A repository of the package ``toy`` with one commit, which is broken."""
    top = folder / "checkout"
    (top / "toy").mkdir(parents=True)
    (top / "toy" / "__init__.py").touch()
    subprocess.run(["git", "init", "-q"], cwd=top, check=True)
    commit(top, "pool.py", BROKEN, "begin")
    return top


def commit(top: Path, file: str, text: str, subject: str) -> str:
    """Write a module of the package, or another file at the top, commit all that changed, and return the hash."""
    (top / "toy" / file if file.endswith(".py") else top / file).write_text(text)
    own = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    for words in (["git", "add", "."], [*own, "commit", "-q", "-m", subject]):
        subprocess.run(words, cwd=top, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=top, check=True, capture_output=True, text=True)
    return head.stdout.strip()
