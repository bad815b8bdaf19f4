"""What is ours that fits a release, told from its files: patches, probe sites, looks and stand-ins."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from specdebug.base.content import shipped_root
from specdebug.base.errors import ContentError, SpecDebugError
from specdebug.patching.source import Patch
from specdebug.patching.toggles import Toggle, load_toggle
from specdebug.report.listings import fit_lines
from specdebug.targets.installs import fit
from specdebug.targets.installs import fit as module
from specdebug.targets.installs.fit import (
    FitPart,
    Mends,
    added_sites,
    edit_imports,
    fit_of,
    mends_of,
    patches_of,
    read_sites,
)
from specdebug.targets.installs.store import Installed
from specdebug.targets.sglang.fit import LOOKS
from specdebug.targets.sglang.inside import graphs, scheduler, stand_ins
from specdebug.targets.sglang.inside.probes import _Probes
from specdebug.targets.sglang.inside.seats import Seat
from specdebug.targets.vllm.fit import LOOKS as VLLM_LOOKS


def write(folder: Path, places: Iterable[str], arguments: dict[str, Iterable[str]]) -> None:
    """Modules that have some places; of functions, with these arguments."""
    modules: dict[str, dict[str, set[str]]] = {}
    for place in places:
        module, _, names = place.partition(":")
        name, _, member = names.partition(".")
        modules.setdefault(module, {}).setdefault(name, set()).update({member} - {""})
    for module, names in modules.items():
        file = folder.joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = []
        for name, members in names.items():
            given = ", ".join(arguments.get(f"{module}:{name}", ()))
            body = "".join(f"    {member} = 1\n" for member in sorted(members))
            lines.append(f"class {name}:\n{body}" if body else f"def {name}({given}): ...\n")
        file.write_text("".join(lines))


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, engine: str, version: str, device: str) -> Installed:
    monkeypatch.setattr(fit, "_package", lambda python, name: folder)
    fit._source.cache_clear()
    return Installed(folder.parent / "record", engine, version, device, "/env/bin/python", False)


def seats() -> list[Seat]:
    of_looks = [seat for some in LOOKS.values() for seat in some]
    return [*of_looks, *graphs.NEEDED, *(each.seat for each in stand_ins.STAND_INS if each.needed)]


@pytest.mark.parametrize("at", [0, -1], ids=["newest", "oldest"])
def test_a_release_that_has_every_place_loses_nothing_but_the_probe_sites_that_are_made_for_others(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = {each.places[at]: each.kernel.takes for each in stand_ins.STAND_INS if each.kernel is not None}
    backend = "srt.layers.attention.flashinfer_backend:FlashInferAttnBackend"
    write(tmp_path / "sglang", [*(seat.places[at] for seat in seats()), backend], {**kernels})
    here = installed(monkeypatch, tmp_path / "sglang", "sglang", "0.6.0", "cpu")
    lost = {part.what: part.lost for part in fit_of(here) if part.lost}
    assert lost == {"added probe sites": ("there are none for this release",)}


def test_what_has_moved_is_named_with_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = {each.places[0]: each.kernel.takes - {"kv_indptr"} for each in stand_ins.STAND_INS if each.kernel}
    gone = "srt.mem_cache.memory_pool:ReqToTokenPool.free_slots"
    write(tmp_path / "sglang", [seat.places[0] for seat in seats() if gone not in seat.places], {**kernels})
    here = installed(monkeypatch, tmp_path / "sglang", "sglang", "0.5.23", "cpu")
    lost = {part.what: part.lost for part in fit_of(here) if part.lost}
    assert lost[scheduler.BOOKS] == (f"SGLang has no {gone}",)
    assert lost["kernels.ops.attention.extend_attention:_fwd_kernel"] == (
        "SGLang's kernel kernels.ops.attention.extend_attention:_fwd_kernel has no argument kv_indptr",
    )
    assert "a recording" not in lost
    here = installed(monkeypatch, tmp_path / "sglang", "sglang", "0.5.23", "cuda")
    assert not any(part.stand_in for part in fit_of(here))


def test_of_vllm_the_looks_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [place for some in VLLM_LOOKS.values() for place in some]
    write(tmp_path / "vllm", [place for place in places if not place.endswith(".propose")], {})
    here = installed(monkeypatch, tmp_path / "vllm", "vllm", "0.32.0", "cpu")
    lost = {part.what: part.lost for part in fit_of(here) if part.lost}
    speculator = "v1.worker.gpu.spec_decode.eagle.speculator:EagleSpeculator"
    assert lost == {
        "the stages of a step": ("vLLM has no v1.spec_decode.eagle:EagleProposer.propose",),
        "the stages of a step of its runner V2": (f"vLLM has no {speculator}.propose",),
    }


def test_the_lines_count_what_fits_and_name_the_rest() -> None:
    here = Installed(Path("/s/x"), "sglang", "0.5.21", "cpu", "/p", False)
    parts = [FitPart("the books", False, ("gone",)), FitPart("probes", False, ()), FitPart("a kernel", True, ())]
    assert fit_lines(here, parts) == ["1 of 2 looks and 1 of 1 stand-in fit sglang==0.5.21", "  lost: the books: gone"]


TOGGLE = """
pr: 77
title: widen the rows
url: https://example.org/pull/77
family: rows
symptom: none here
patches:
  sglang:
    ">=0.5.13,<0.5.14":
      - target: sglang.rows:width
        edits: [{match: return 3, replacement: return 2}]
"""


@pytest.fixture
def toggle(tmp_path: Path) -> Toggle:
    (tmp_path / "77.yaml").write_text(TOGGLE)
    return load_toggle(tmp_path / "77.yaml")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "rows.py").write_text("def width():\n    return 3\n")
    monkeypatch.setattr(module, "_package", lambda python, name: package)
    return package


def release(tmp_path: Path, version: str = "0.5.13") -> Installed:
    return Installed(tmp_path, "sglang", version, "cpu", sys.executable, False)


def test_patches_that_fit_are_found(tmp_path: Path, toggle: Toggle, package: Path) -> None:
    (patch,) = patches_of(release(tmp_path), [toggle])
    assert (patch.owner, patch.module, patch.qualname) == ("toggle 77", "sglang.rows", "width")
    assert [edit.id for edit in patch.edits] == ["77#1"]
    assert patches_of(release(tmp_path), []) == []


def test_fixes_of_what_runs_at_import_are_told_from_those_of_functions(
    tmp_path: Path, toggle: Toggle, package: Path
) -> None:
    (package / "rows.py").write_text("class Rows:\n    wide = 3\n\n\ndef width():\n    return 3\n")
    field = Patch.of("toggle 78", "sglang.rows:Rows", ("wide = 3", "wide = 2"))
    other = replace(toggle, pr=78, foreign={"sglang": {">=0.5.13": (field,)}})
    assert edit_imports(release(tmp_path), [toggle, other]) == {78}


def test_a_release_that_is_another_now_is_refused_with_the_nearest_place(
    tmp_path: Path, toggle: Toggle, package: Path
) -> None:
    (package / "rows.py").write_text("def width():\n    return 4\n")
    for version in (r"0\.5\.13", r"0\.5\.14\.dev57\+gabc1234"):
        with pytest.raises(SpecDebugError, match=rf"77 does not fit sglang=={version} in .*nearest is .*rows\.py:2"):
            patches_of(release(tmp_path, version.replace("\\", "")), [toggle])
    with pytest.raises(
        SpecDebugError, match=r"77 cannot be reverted in sglang==0\.5\.14: patches are for >=0\.5\.13,<0"
    ):
        patches_of(release(tmp_path, "0.5.14"), [toggle])


def test_a_package_is_where_its_environment_imports_it_from() -> None:
    assert module._package(sys.executable, "json").name == "json"
    with pytest.raises(SpecDebugError, match="cannot import no_such_engine any more"):
        module._package(sys.executable, "no_such_engine")


def test_a_checkout_between_two_releases_takes_the_patches_of_the_one_before_if_they_fit(
    tmp_path: Path, toggle: Toggle, package: Path
) -> None:
    checkout = release(tmp_path, "0.5.14.dev57+gabc1234")  # in no range: it is neither 0.5.13 nor 0.5.14
    (patch,) = patches_of(checkout, [toggle])
    assert patch.owner == "toggle 77"
    with pytest.raises(SpecDebugError, match=r"77 cannot be reverted in sglang==0\.5\.18\+gabc1234: patches are for"):
        patches_of(release(tmp_path, "0.5.18+gabc1234"), [toggle])


MEND = """
pr: {pr}
title: narrow the rows
url: https://example.org/pull/{pr}
family: rows
symptom: wide rows
mends: [sglang]
patches:
  sglang:
    ">=0.5.13,<0.5.14":
      - target: sglang.rows:{name}
        edits: [{{match: return {old}, replacement: return 1}}]
"""


def mend(tmp_path: Path, pr: int, name: str, old: int) -> Toggle:
    (tmp_path / f"{pr}.yaml").write_text(MEND.format(pr=pr, name=name, old=old))
    return load_toggle(tmp_path / f"{pr}.yaml")


def test_known_bugs_of_a_release_are_mended(tmp_path: Path, toggle: Toggle, package: Path) -> None:
    (package / "rows.py").write_text("def width():\n    return 3\n\n\ndef height():\n    return 4\n")
    known = [toggle, mend(tmp_path, 78, "height", 4), mend(tmp_path, 79, "height", 5)]
    found = mends_of(release(tmp_path), [], known)
    assert (found.numbers, [each.owner for each in found.patches]) == ((78,), ["toggle 78"]), "a revert is no mend"
    assert [why.partition(": ")[0] for why in found.left_out] == ["79 is not mended"]
    assert mends_of(release(tmp_path, "0.5.14"), [], known) == Mends(), "of another release nothing is said"
    assert mends_of(release(tmp_path), [known[1]], known[:2]) == Mends(), "it is put in anyway"
    found = mends_of(release(tmp_path), [toggle], [mend(tmp_path, 78, "width", 3)])  # it edits what is reverted
    assert (found.numbers, [why.partition(": ")[0] for why in found.left_out]) == ((), ["78 is not mended"])


FILE = """
engine: toyserve
patches:
  ">=1,<2":
    - {target: "toyserve.a:f", edits: [{match: return 1, replacement: "probe()\\nreturn 1"}]}
"""


def toyserve(version: str) -> Installed:
    return Installed(Path("x"), "toyserve", version, "cpu", "python", False)


def test_a_release_gets_the_patches_of_its_range(tmp_path: Path) -> None:
    (tmp_path / "toyserve.yaml").write_text(FILE)
    (patch,) = added_sites(toyserve("1.5"), tmp_path)
    assert (patch.target, patch.owner) == ("toyserve.a:f", "probe sites")
    assert [edit.id for edit in patch.edits] == ["sites#1"]
    assert added_sites(toyserve("2.0"), tmp_path) == ()
    assert added_sites(toyserve("1.5"), tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("old", "new"), [("engine: toyserve", "engine: other"), (">=1,<2", "one"), ("match:", "mach:")]
)
def test_a_malformed_file_is_refused(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "toyserve.yaml").write_text(FILE.replace(old, new))
    with pytest.raises(ContentError):
        read_sites(tmp_path / "toyserve.yaml")


def test_every_shipped_call_is_one_that_there_is() -> None:
    files = list((shipped_root() / "probes" / "sites").glob("*.yaml"))
    assert files
    for file in files:
        for patches in read_sites(file).values():
            for edit in (edit for patch in patches for edit in patch.edits):
                (call,) = (line for line in edit.replacement.splitlines() if "__specdebug_probes__" in line)
                assert hasattr(_Probes, call.partition("__.")[2].partition("(")[0])
                assert [line for line in edit.replacement.splitlines() if line != call] == edit.match.splitlines()
