"""The textbook's README says how long it is, how to read it, and what a CPU run of EAGLE executes beside it."""

import re
import sys
from pathlib import Path

import pytest

import specdebug.engine
from specdebug.engine import Engine, SamplingParams
from specdebug.engine.config import EngineConfig
from tests.engine.conftest import Lab

ENGINE = Path(specdebug.engine.__file__).parent
TEXTBOOK = ENGINE / "textbook"
README = (TEXTBOOK / "README.md").read_text(encoding="utf-8")
FILES = {path.relative_to(TEXTBOOK).as_posix() for path in TEXTBOOK.rglob("*.py") if path.name != "__init__.py"}


def number(pattern: str) -> int:
    """The number that the README states there."""
    found = re.search(pattern.replace("N", r"([\d,]+)"), README)
    assert found is not None, pattern
    return int(found[1].replace(",", ""))


def lines_of(paths: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def test_it_is_as_short_as_it_says() -> None:
    assert lines_of(list(TEXTBOOK.rglob("*.py"))) <= number("at most N lines in this folder")


def test_a_step_is_as_short_as_it_says() -> None:
    files = [TEXTBOOK / file for file in FILES if file.startswith("speculative/")]
    assert len(files) == number("`speculative/`: N files")
    assert lines_of(files) <= number("files, at most N lines")


def test_it_names_every_file_once() -> None:
    named = re.findall(r"`([\w/]+\.py)`", "".join(line for line in README.splitlines() if line.startswith("| `")))
    assert sorted(named) == sorted(FILES)


def executed(engine: Engine) -> set[str]:
    """Files of the engine of which a function runs until all its requests have ended, below its folder."""
    seen: set[str] = set()
    sys.setprofile(lambda frame, event, arg: seen.add(frame.f_code.co_filename))
    try:
        while engine.has_work:
            engine.step()
    finally:
        sys.setprofile(None)
    return {Path(file).relative_to(ENGINE).as_posix() for file in seen if Path(file).is_relative_to(ENGINE)}


@pytest.mark.parametrize("topk", [1, 2])
def test_a_run_is_the_textbook_and_what_it_names_around_it(lab: Lab, topk: int) -> None:
    config = {
        "model": str(lab.target),
        "context_length": 64,
        "speculative": {"draft_model": str(lab.eagle), "num_steps": 3, "eagle_topk": topk},
        "cuda_graph": {"max_bs": 2},
        "memory": {"num_slots": 512},
    }
    engine = Engine(EngineConfig.from_dict(config))
    for n in range(3):
        engine.add_request(f"r{n}", [3, 7, 1, 5 + n], SamplingParams(max_new_tokens=8))
    found = executed(engine)
    step = {file for file in FILES if file.startswith("speculative/")}
    assert {f"textbook/{file}" for file in step} <= found
    around = set(re.findall(r"`\.\./([\w.]+)/?`", README))
    assert {file.partition("/")[0] for file in found} <= around | {"textbook"}
    assert not [file for file in found if file.startswith(("gpu/", "kernels/triton/"))]
    others = {"workers/protocol.py", "workers/registry.py"}
    assert {file for file in found if file.startswith("workers/")} <= others
