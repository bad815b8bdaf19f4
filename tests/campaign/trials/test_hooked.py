"""Which fixes a job can be tried with, told by the packages that it imports."""

from pathlib import Path

import pytest

from specdebug.base.yamlio import parse_yaml
from specdebug.campaign.trials.hooked import HookedSource, Look, keep_look, kept_look, reachable
from specdebug.patching.toggles import Registry, Toggle, load_registry, read_toggle
from tests.patching.hook.test_hooked_runs import FIX, POOL


@pytest.fixture
def fix() -> Toggle:
    patches = FIX.partition("toyspec:\n")[2].replace("\n", "\n  ").rstrip()
    return read_toggle(parse_yaml(FIX.partition("    - target")[0] + f'    ">=2,<3":\n  {patches}\n', "501.yaml"))


@pytest.fixture
def origin(tmp_path: Path) -> str:
    package = tmp_path / "venv/lib/python3.11/site-packages/toyspec"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "pool.py").write_text(POOL)
    return str(package / "__init__.py")


def installed(origin: str, version: str) -> None:
    (Path(origin).parents[1] / f"toyspec-{version}.dist-info").mkdir()


def test_a_fix_is_tried_in_a_version_that_it_has_patches_for_and_in_a_bare_checkout(fix: Toggle, origin: str) -> None:
    registry = Registry({}, {501: fix})
    assert reachable(registry, {"toyspec": origin}) == ([fix], {})
    assert reachable(registry, {"other": origin}) == ([], {})
    installed(origin, "2.5")
    assert reachable(registry, {"toyspec": origin}) == ([fix], {})


def test_one_that_does_not_fit_is_left_out_with_the_reason(fix: Toggle, origin: str) -> None:
    Path(origin).with_name("pool.py").write_text("def width(page, topk):\n    return topk * page\n")
    installed(origin, "2.5")
    fitting, left = reachable(Registry({}, {501: fix}), {"toyspec": origin})
    assert fitting == []
    assert "does not fit toyspec 2.5" in left["501"]


def test_our_own_engine_is_reached_by_what_our_own_processes_do() -> None:
    registry = load_registry()
    fitting, left = reachable(registry, {"specdebug": "anywhere"})
    assert [toggle.pr for toggle in fitting] == list(registry.toggles)
    assert left == {}


def test_a_look_is_kept_until_what_the_job_imports_changes(origin: str, tmp_path: Path) -> None:
    journal, look = tmp_path / "j.sqlite", Look({"toyspec": origin})
    assert kept_look(journal, {"job": "1"}) is None
    keep_look(journal, {"job": "1"}, look)
    assert kept_look(journal, {"job": "1"}) == look
    assert kept_look(journal, {"job": "2"}) is None
    installed(origin, "2.5")
    assert kept_look(journal, {"job": "1"}) is None


def test_an_unknown_number_is_no_candidate(fix: Toggle) -> None:
    with pytest.raises(Exception, match="no toggle reverts 502"):
        HookedSource(["true"], Registry({}, {501: fix}), numbers=[502])
