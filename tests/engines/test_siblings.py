"""The siblings of fixes that upstream found later are among the first ten places, in the releases that have them."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import pytest
from packaging.version import Version

from specdebug.apps.mining.siblings import Sibling, siblings
from specdebug.apps.mining.sought import fitting, places, sought, views_of
from specdebug.patching.drift.dist import Dist, Members, open_package
from specdebug.patching.rewrite import rewrite, tried
from specdebug.patching.source import Patch
from specdebug.scenario.library import Library
from specdebug.targets.installs.fit import dist_of, package_of
from specdebug.targets.installs.release import parse_release
from specdebug.targets.installs.store import find_installed, store_folder

pytestmark = [pytest.mark.engines, pytest.mark.slow]

RELEASE = "sglang==0.5.13"
NEWER = ("sglang==0.5.23", "vllm==0.32.0")


@cache
def installed(release: str) -> Dist:
    return dist_of(find_installed(store_folder(None), parse_release(release)))


def without(release: str, number: str) -> Dist:
    """A release as it was before a fix that it has."""
    here = find_installed(store_folder(None), parse_release(release))
    folder = package_of(here)
    patches: tuple[Patch, ...] = fitting(installed(release), Library().registry.find(number))
    placed, _ = tried(patches, installed(release).source)
    source = placed[0][0]
    text = "\n".join(rewrite(source, [one for _, one in placed]).lines).encode()
    name, plain = Path(source.path).relative_to(folder.parent).as_posix(), open_package(folder)

    def opened(each: str) -> io.BytesIO:
        return io.BytesIO(text if each == name else plain.read(each))

    return Dist(here.engine, Version(here.version), Members(folder, plain.names, opened, folder.parent))


def found(number: str, dist: Dist) -> list[Sibling]:
    toggle = Library().registry.find(number)
    views = views_of(toggle, [installed(RELEASE), installed(NEWER[0]), dist])
    return siblings(dist, sought(views, dist.name), places(dist, fitting(dist, toggle)))


def test_row_headroom_of_dflash_issue_33579_is_a_sibling_of_26972() -> None:
    told = {each.function.rpartition(":")[2]: each for each in found("26972", installed(NEWER[0]))}
    assert "page_aligned_decode_alloc_lens" in told["DFlashDraftInputV2.prepare_for_decode"].why["calls"]
    condition = told["get_req_to_token_extra_context_len"].why["condition"]
    assert condition == "the fix holds only where page_size > 1 or spec_algo.is_uno()"


def test_the_mla_backend_of_27460_is_a_sibling_of_27338() -> None:
    told = {each.function.rpartition(":")[2]: each for each in found("27338", without(RELEASE, "27460"))}
    latent = told["FlashInferMLAMultiStepDraftBackend.init_cuda_graph_state"]
    assert "cuda_graph_kv_indices" in latent.why["names"]
    assert "FlashInferMLAMultiStepDraftBackend.common_template" in told


def test_the_output_region_of_28254_is_a_sibling_of_26329() -> None:
    told = {each.function.rpartition(":")[2]: each for each in found("26329", installed(NEWER[0]))}
    assert "makes" in told["_compute_chunked_req_next_prompt_token"].why
    assert "MultiLayerEagleDraftWorker._draft_extend_for_prefill" in told


def test_the_chunk_tail_of_vllm_is_a_sibling_of_26329() -> None:
    told = [each.function.rpartition(":")[2] for each in found("26329", installed(NEWER[1]))]
    assert "SpecDecodeBaseProposer.prepare_next_token_ids_padded" in told
