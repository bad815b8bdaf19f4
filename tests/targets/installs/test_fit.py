"""The static fit of our looks and stand-ins, told from an engine's files: here of packages made to be as it wants."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from specdebug.report.engines import fit_lines
from specdebug.targets.installs import fit
from specdebug.targets.installs.fit import FitPart, fit_of
from specdebug.targets.installs.store import Installed
from specdebug.targets.sglang.fit import LOOKS
from specdebug.targets.sglang.inside import books, graph_runners, stand_ins
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
    return [*of_looks, *graph_runners.NEEDED, *(each.seat for each in stand_ins.STAND_INS if each.needed)]


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
    assert lost[books.BOOKS] == (f"SGLang has no {gone}",)
    assert lost["kernels.ops.attention.extend_attention:_fwd_kernel"] == (
        "SGLang's kernel kernels.ops.attention.extend_attention:_fwd_kernel has no argument kv_indptr",
    )
    assert "a recording" not in lost


def test_on_a_gpu_there_is_nothing_to_stand_in_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = installed(monkeypatch, tmp_path / "sglang", "sglang", "0.5.23", "cuda")
    assert not any(part.stand_in for part in fit_of(here))


def test_of_vllm_the_looks_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [place for some in VLLM_LOOKS.values() for place in some]
    write(tmp_path / "vllm", [place for place in places if not place.endswith(".propose")], {})
    here = installed(monkeypatch, tmp_path / "vllm", "vllm", "0.32.0", "cpu")
    lost = {part.what: part.lost for part in fit_of(here) if part.lost}
    assert lost == {"the stages of a step": ("vLLM has no v1.spec_decode.eagle:EagleProposer.propose",)}


def test_the_lines_count_what_fits_and_name_the_rest() -> None:
    here = Installed(Path("/s/x"), "sglang", "0.5.21", "cpu", "/p", False)
    parts = [FitPart("the books", False, ("gone",)), FitPart("probes", False, ()), FitPart("a kernel", True, ())]
    assert fit_lines(here, parts) == ["1 of 2 looks and 1 of 1 stand-in fit sglang==0.5.21", "  lost: the books: gone"]
