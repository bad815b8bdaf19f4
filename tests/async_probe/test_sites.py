"""Sites are read from the source, and one that cannot be read is an error."""

from pathlib import Path

import pytest

from specdebug.async_probe.sites import Site, find_sites


def test_every_way_to_call_a_probe(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.py").write_text(
        "from specdebug.async_probe import maybe_detect_oob\n"
        "maybe_detect_oob(x, 0, 9, 'draft.ids', relative_to=y)\n"
        "def f():\n"
        "    return lambda: maybe_detect_page_aligned(\n"
        "        x, 4, site='kv.row'\n"
        "    )\n"
    )
    (tmp_path / "a.py").write_text(
        "async_probe.maybe_detect_nan(x, 'draft.logits')\n"
        "maybe_detect_inf(x, 'draft.logits')\n"
        "maybe_detect_nonfinite(x, 'verify.logits', at=rows)\n"
        "other('not.a.site')\n"
    )
    assert find_sites(tmp_path) == [
        Site("draft.ids", "oob", "deep/b.py", 2),
        Site("draft.logits", "inf", "a.py", 2),
        Site("draft.logits", "nan", "a.py", 1),
        Site("kv.row", "page_aligned", "deep/b.py", 4),
        Site("verify.logits", "inf", "a.py", 3),
        Site("verify.logits", "nan", "a.py", 3),
    ]


def test_sites_that_cannot_be_read_are_all_listed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "maybe_detect_nan(x, f'draft.{i}')\n"
        "maybe_detect_oob(x, 0, 9, NAME)\n"
        "maybe_detect_inf(x)\n"
        "maybe_detect_nan(x, 'EagleWorker: topk_p')\n"
        "maybe_detect_nan(x, 'fine.name')\n"
        "maybe_detect_nonfinite(x, site)\n"
    )
    with pytest.raises(ValueError, match="the site") as caught:
        find_sites(tmp_path)
    assert str(caught.value).splitlines() == [
        "a.py:1: the site of this nan probe must be a string literal",
        "a.py:2: the site of this oob probe must be a string literal",
        "a.py:3: the site of this inf probe must be a string literal",
        "a.py:4: the site 'EagleWorker: topk_p' must be a dotted name",
        "a.py:6: the site of this nan and inf probe must be a string literal",
    ]
