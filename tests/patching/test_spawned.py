"""Spawned processes begin with the patches in force, and their runs of an edit are counted with ours."""

from __future__ import annotations

import concurrent.futures
import importlib
import multiprocessing

from specdebug.patching import Patch, apply

TEXT = """
LIMIT = 1


def value():
    return LIMIT


def put(queue):
    queue.put(value())


def put_deeper(queue):
    import multiprocessing

    child = multiprocessing.get_context("spawn").Process(target=put, args=(queue,))
    child.start()
    child.join()
"""


def ask(target) -> int:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=target, args=(queue,))
    child.start()
    child.join()
    assert child.exitcode == 0
    return queue.get()


def test_a_spawned_process_begins_patched_and_its_runs_are_counted(toys):
    mod = toys.load(TEXT)
    with apply([Patch.of("t", f"{mod.__name__}:value", ("return LIMIT", "return LIMIT + 1"))]) as applied:
        assert [ask(mod.put), ask(mod.put_deeper)] == [2, 2]
        assert applied.hits() == {"t#1": 2}
        mod.value()
    assert applied.hits() == {"t#1": 3}
    assert ask(mod.put) == 1


def test_what_runs_at_import_is_patched_there_too(toys):
    name = toys.write(TEXT)
    patches = [
        Patch.of("t", name, ("LIMIT = 1", "LIMIT = 5")),
        Patch.of("t", f"{name}:value", ("return LIMIT", "return LIMIT + 1")),
    ]
    with apply(patches, "import") as applied:
        mod = importlib.import_module(name)
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            assert pool.submit(mod.value).result() == 6
        assert applied.hits() == {"t#1": 2, "t#2": 1}


def test_a_process_that_finds_other_text_ends_with_the_reason(toys, capfd):
    mod = toys.load(TEXT)
    with apply([Patch.of("t", f"{mod.__name__}:value", ("return LIMIT", "return LIMIT + 1"))]):
        toys.write("def value():\n    return 7\n", mod.__name__)
        child = multiprocessing.get_context("spawn").Process(target=mod.value)
        child.start()
        child.join()
    assert child.exitcode == 1
    assert "matches 0 places" in capfd.readouterr().err
