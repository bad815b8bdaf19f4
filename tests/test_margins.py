"""The recorder of how much of its tolerance a comparison uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.margins import VARIABLE, Margins, share_used

ROOT = Path(__file__).parent.parent


def test_the_share_is_of_what_is_allowed_there() -> None:
    expected = torch.tensor([0.0, 2.0])
    assert share_used(expected + 0.25, expected, rtol=0.25, atol=0.5) == pytest.approx(0.5)
    assert share_used(expected, expected, rtol=0.0, atol=0.0) == 0
    assert share_used(torch.tensor([float("nan"), 2.0]), expected, rtol=0.0, atol=1.0) == 0


def test_the_widest_use_of_a_place_is_kept(tmp_path: Path) -> None:
    margins = Margins()
    margins.append_to(tmp_path / "m")
    assert not (tmp_path / "m").exists()
    for share in (0.1, 0.3, 0.2):
        margins.note(share, "tests/a.py:1")
    margins.append_to(tmp_path / "m")
    margins.append_to(tmp_path / "m")
    first, second = (json.loads(line) for line in (tmp_path / "m").read_text().splitlines())
    assert first == second
    assert first["tests/a.py:1"][0] == 0.3


def test_every_way_to_compare_is_recorded(tmp_path: Path) -> None:
    """In a process of its own: the recorder changes the functions for good."""
    file = ROOT / "tests" / "test_margins_sample.py"
    script = f"""
import pytest, torch
from pathlib import Path
from tests import margins
seen = margins.install(Path({str(tmp_path / "m")!r}))
code = '''
torch.testing.assert_close(torch.tensor([1.0]), torch.tensor([1.0 + 2e-6]), rtol=0, atol=1e-5)
torch.testing.assert_close((torch.ones(2), torch.tensor([3])), (torch.ones(2), torch.tensor([3])))
assert torch.allclose(torch.tensor([1.0]), torch.tensor([1.001]), atol=0.01)
assert 1.05 == pytest.approx(1.0, abs=0.1)
assert not 2.0 == pytest.approx(1.0, abs=0.1)
'''
exec(compile(code, {str(file)!r}, "exec"))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop(VARIABLE, None)
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    seen = json.loads((tmp_path / "m").read_text())
    shares = {place.rpartition(":")[2]: share for place, (share, _) in seen.items()}
    assert shares["2"] == pytest.approx(0.2, abs=0.02)
    assert shares["4"] == pytest.approx(0.1, abs=0.01)
    assert shares["5"] == pytest.approx(0.5, abs=0.01)
    assert shares["6"] == pytest.approx(10, abs=0.1)
    assert "3" not in shares
