"""Import hook: anything can be edited before it has run; spawned processes begin with the patches in force."""

from __future__ import annotations

import importlib
import importlib.resources
import inspect
import multiprocessing
import runpy
import subprocess
import sys
import traceback

import pytest

from specdebug.patching import Patch, PatchError, apply

TEXT = '''
"""A module."""
from __future__ import annotations

LIMIT = 3


class Box:
    width = 2

    def area(self, height=LIMIT):
        return self.width * height


def fail():
    value = LIMIT
    raise ValueError(value)
'''


def test_module_level_class_bodies_and_defaults(toys):
    name = toys.write(TEXT)
    patches = [
        Patch.of("t", name, ("LIMIT = 3", "LIMIT = 5")),
        Patch.of("u", f"{name}:Box", ("width = 2", "width = 10\ncolour = 1")),
        Patch.of("v", f"{name}:Box.area", ("def area(self, height=LIMIT):", "def area(self, height=LIMIT + 1):")),
    ]
    with apply(patches, "import") as applied:
        mod = importlib.import_module(name)
        assert mod.Box().area() == 60
        assert mod.Box.colour == 1
        assert mod.__doc__ == "A module."
        assert applied.hits() == {"t#1": 1, "u#1": 1, "v#1": 1}
    assert name not in sys.modules, "its module level cannot be undone in place"
    assert importlib.import_module(name).Box().area() == 6


def test_the_module_looks_like_itself(toys):
    name = toys.write(TEXT, "pack_a.inner")
    (toys.folder / "pack_a" / "data.txt").write_text("x")
    with apply([Patch.of("t", f"{name}:fail", ("value = LIMIT", "value = 9\n" * 30 + "value = 8"))], "import"):
        mod = importlib.import_module(name)
        assert mod.__file__ == toys.path(name)
        assert mod.__spec__.origin == mod.__file__
        assert inspect.getsource(mod.fail) == "def fail():\n    value = LIMIT\n    raise ValueError(value)\n"
        assert importlib.resources.files("pack_a").joinpath("data.txt").read_text() == "x"
        with pytest.raises(ValueError, match="8") as error:
            mod.fail()
        frame = traceback.extract_tb(error.value.__traceback__)[-1]
        assert frame.line == "raise ValueError(value)"
        assert importlib.reload(mod) is mod
        with pytest.raises(ValueError, match="8"):
            mod.fail()


def test_nothing_is_imported_or_run_by_applying(toys):
    toys.write("raise SystemExit", "pack_b")
    name = toys.write("x = 1\n", "pack_b.mod")
    (toys.folder / "pack_b" / "__init__.py").write_text("raise RuntimeError('the parent ran')\n")
    apply([Patch.of("t", name, ("x = 1", "x = 2"))], "import").restore()
    assert "pack_b" not in sys.modules


def test_patched_code_is_never_written_to_the_bytecode_cache(toys):
    name = toys.write(TEXT)
    script = (
        "import sys; sys.dont_write_bytecode = False; from specdebug.patching import Patch, apply\n"
        f"with apply([Patch.of('t', '{name}', ('LIMIT = 3', 'LIMIT = 5'))], 'import'):\n"
        f"    import {name}; assert {name}.LIMIT == 5\n"
        f"del {name}; import {name}; assert {name}.LIMIT == 3\n"
    )
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", script], cwd=toys.folder, env=_env(), capture_output=True)
        assert run.returncode == 0, run.stderr.decode()


def _env() -> dict[str, str]:
    import os

    import specdebug

    root = os.path.dirname(os.path.dirname(specdebug.__file__))
    return {**os.environ, "PYTHONPATH": root}


def test_a_failing_import_can_be_repeated(toys):
    name = toys.write("x = 1\n")
    applied = apply([Patch.of("t", name, ("x = 1", "raise KeyError('x')"))], "import")
    for _ in range(2):
        with pytest.raises(KeyError):
            importlib.import_module(name)
    applied.restore()
    assert importlib.import_module(name).x == 1
    assert applied.hits() == {"t#1": 2}


def test_modes_are_for_modules_in_the_right_state(toys, refusal):
    name = toys.write(TEXT)
    patch = Patch.of("t", f"{name}:fail", ("value = LIMIT", "value = 9"))
    assert "is not imported yet" in refusal(apply, [patch], "inprocess")
    importlib.import_module(name)
    assert "is imported already" in refusal(apply, [patch], "import")


def test_an_import_from_elsewhere_than_was_matched_is_refused(toys, tmp_path, monkeypatch):
    name = toys.write(TEXT)
    with apply([Patch.of("t", name, ("LIMIT = 3", "LIMIT = 5"))], "import"):
        other = tmp_path / "other"
        other.mkdir()
        (other / f"{name}.py").write_text("LIMIT = 100\n")
        monkeypatch.syspath_prepend(str(other))
        with pytest.raises(PatchError, match="was to be patched in"):
            importlib.import_module(name)


RUN = """
LIMIT = 3


def value():
    return LIMIT


if __name__ == "__main__":
    result = value()
"""


def test_modules_that_runpy_runs(toys):
    name = toys.write(RUN, "pack_r.mod")
    patches = [
        Patch.of("t", f"{name}:value", ("return LIMIT", "return LIMIT + 1")),
        Patch.of("u", name, ("LIMIT = 3", "LIMIT = 5")),
    ]
    for asked, expected in (([], 3), (patches[:1], 4), (patches, 6)):
        with apply(asked, "import") as applied:
            assert runpy.run_module(name, run_name="__main__")["result"] == expected
            assert list(applied.hits().values()) == [1] * len(asked)
    assert runpy.run_module(name, run_name="__main__")["result"] == 3


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_toy", "no module named 'no_such_toy'"),
        ("specdebug.patching.mach", "no module named 'specdebug.patching.mach'; did you mean 'match'?"),
        ("specdebug.base.errors.inner", "specdebug.base.errors is not a package"),
        ("sys", "sys is built into Python"),
        ("zipimport", "zipimport is frozen into Python"),
        ("_ctypes", "_ctypes comes without Python source"),
    ],
)
def test_modules_without_source(target, message, refusal):
    for mode in ("import", "inprocess"):
        assert message in refusal(apply, [Patch.of("t", target, ("x", "y"))], mode)


def test_a_namespace_package_below_a_package_that_is_not_imported(toys):
    package = toys.folder / "outer_ns"
    (package / "middle" / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "middle" / "inner" / "mod.py").write_text("def f():\n    return 1\n")
    with apply([Patch.of("t", "outer_ns.middle.inner.mod:f", ("return 1", "return 2"))], "import"):
        assert "outer_ns" not in sys.modules
        assert importlib.import_module("outer_ns.middle.inner.mod").f() == 2


def test_namespace_packages_and_broken_files(toys, refusal):
    (toys.folder / "space").mkdir()
    assert "space is a namespace package" in refusal(apply, [Patch.of("t", "space", ("x", "y"))], "import")
    name = toys.write("def f(:\n")
    assert "does not parse: invalid syntax" in refusal(apply, [Patch.of("t", name, ("x", "y"))], "import")
    (toys.folder / "latin.py").write_bytes(b"x = '\xe9'\n")
    assert "the source of latin cannot be read" in refusal(apply, [Patch.of("t", "latin", ("x", "y"))], "import")


SPAWNED = """
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
    mod = toys.load(SPAWNED)
    with apply([Patch.of("t", f"{mod.__name__}:value", ("return LIMIT", "return LIMIT + 1"))]) as applied:
        assert [ask(mod.put), ask(mod.put_deeper)] == [2, 2]
        assert applied.hits() == {"t#1": 2}
        mod.value()
    assert applied.hits() == {"t#1": 3}
    assert ask(mod.put) == 1
