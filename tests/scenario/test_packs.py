"""Packs: the shipped ones hold, and what is wrong with one is said at its place."""

import math
from pathlib import Path

import pytest
import torch

from specdebug import async_probe
from specdebug.async_probe import Rule
from specdebug.async_probe.sites import Site, find_sites
from specdebug.base.errors import ContentError
from specdebug.base.yamlio import parse_yaml
from specdebug.kernel_memory.finding import KernelRule
from specdebug.scenario.library import live_in
from specdebug.scenario.packs import ProbePack, activate, check_globs, kernel_rules, load_pack, read_pack, rules

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "probes").glob("*.yaml"))

IDS = """\
name: ids
mode: record
sites:
  - glob: "*"
    kinds: [oob, page_aligned]
  - {glob: "sampler.*", mode: off}
"""


def _pack(text: str) -> ProbePack:
    return read_pack(parse_yaml(text, "p.yaml"))


def _complaint(text: str) -> str:
    with pytest.raises(ContentError) as caught:
        _pack(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("mode: record", "mode: recrod", "p.yaml:2:7: mode cannot be 'recrod'; did you mean 'record'?"),
        ("mode: record", "mode: off", "p.yaml:2:7: mode cannot be 'off'; known: assert, record"),
        ("mode: record\n", "", "p.yaml:1:1: the file lacks the key 'mode'"),
        ("name: ids", "name: My Ids", "p.yaml:1:7: name 'My Ids' does not fit the form"),
        ("name: ids", "name: 7", "p.yaml:1:7: name must be text, not 7; quote it"),
        ("sites:", "site:", "p.yaml:3:1: unknown key 'site'; did you mean 'sites'?"),
        ("kinds:", "kind:", "p.yaml:5:5: unknown key 'kind' in sites[0]; did you mean 'kinds'?"),
        ("oob,", "obb,", "p.yaml:5:13: sites[0].kinds[0] cannot be 'obb'; did you mean 'oob'?"),
        ("[oob, page_aligned]", "[]", "p.yaml:5:12: sites[0].kinds needs at least 1 item"),
        ("[oob, page_aligned]", "oob", "p.yaml:5:12: sites[0].kinds must be a list, not 'oob'"),
        ('"*"', '"a b"', "p.yaml:4:11: sites[0].glob 'a b' does not fit the form"),
        ('- glob: "*"\n   ', "-", "p.yaml:4:5: sites[0] lacks the key 'glob'"),
        ("mode: off", "mode: of", "p.yaml:6:31: sites[1].mode cannot be 'of'; did you mean 'off'?"),
    ],
)
def test_what_is_wrong_is_said_at_its_place(old: str, new: str, complaint: str) -> None:
    assert old in IDS
    assert _complaint(IDS.replace(old, new, 1)).startswith(complaint)


KERNELS = """\
name: mine
mode: record
kernels:
  - glob: "*"
  - {glob: "copy_*.data_ptrs", kinds: [unwritten], mode: assert}
  - {glob: "argmax.*", mode: off}
"""


def test_a_pack_of_kernels() -> None:
    pack = _pack(KERNELS)
    assert pack.entries == ()
    assert rules([pack]) == ()
    assert kernel_rules([pack, _pack(IDS)]) == (
        KernelRule("*", "record"),
        KernelRule("copy_*.data_ptrs", "assert", ("unwritten",)),
        KernelRule("argmax.*", "off"),
    )
    assert [rule.mode for rule in kernel_rules([pack], "assert")] == ["assert", "assert", "off"]
    assert live_in(pack, [Site("verify.logits", "nan", "a.py", 1)]) == set()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("unwritten", "nan", "p.yaml:5:40: kernels[1].kinds[0] cannot be 'nan'"),
        ("mode: off", "mode: of", "p.yaml:6:30: kernels[2].mode cannot be 'of'"),
        ("kernels:", "kernel:", "p.yaml:3:1: unknown key 'kernel'; did you mean 'kernels'?"),
    ],
)
def test_what_is_wrong_of_kernels_is_said_at_its_place(old: str, new: str, complaint: str) -> None:
    assert _complaint(KERNELS.replace(old, new)).startswith(complaint)


def test_a_glob_that_matches_no_site() -> None:
    sites = [Site("draft.step.logits", "nan", "a.py", 1), Site("verify.ids", "oob", "a.py", 2)]
    head = "name: x\nmode: record\nsites:\n  - glob: "
    check_globs(_pack(head + "draft.*\n"), sites)
    with pytest.raises(ContentError, match=r"p\.yaml:4:11: no site matches 'draft.step.logit'; did you mean"):
        check_globs(_pack(head + "draft.step.logit\n"), sites)
    with pytest.raises(ContentError, match=r"no site matches 'zzz\.\*'; `specdebug probes list` shows them"):
        check_globs(_pack(head + "zzz.*\n"), sites)
    with pytest.raises(ContentError, match=r"p\.yaml:4:11: sites that match 'draft\.\*' probe nan only"):
        check_globs(_pack(head + "draft.*\n    kinds: [oob]\n"), sites)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_packs_match_sites_of_the_engine(path: Path) -> None:
    pack = load_pack(path)
    assert pack.name == path.stem
    assert pack.description
    check_globs(pack, find_sites(ROOT / "specdebug" / "engine"))


def test_a_mode_replaces_every_mode_but_off() -> None:
    assert rules([_pack(IDS)], "assert") == (
        Rule("*", "assert", ("oob", "page_aligned")),
        Rule("sampler.*", "off"),
    )


def test_activating_packs() -> None:
    everything = load_pack(ROOT / "probes" / "default.yaml")
    bad = torch.tensor([math.nan])
    try:
        activate([everything, _pack(IDS)])
        async_probe.maybe_detect_nan(bad, "sampler.probs")
        async_probe.maybe_detect_nan(bad, "verify.logits")
        assert [found.site for found in async_probe.drain()] == ["verify.logits"]
        activate([everything], "assert")
        with pytest.raises(RuntimeError, match=r"nan@verify\.logits"):
            async_probe.maybe_detect_nan(bad, "verify.logits")
        activate([])
        async_probe.maybe_detect_nan(bad, "verify.logits")
        assert async_probe.reached() == {}
    finally:
        async_probe.configure("off")
