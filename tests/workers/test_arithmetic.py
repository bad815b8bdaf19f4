"""What the last bits of a sum depend on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdebug.workers import arithmetic as facts
from specdebug.workers.arithmetic import arithmetic


def test_what_torch_makes_of_this_processor_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in facts.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    found = arithmetic()
    assert found["cpu capability"] == torch.backends.cpu.get_cpu_capability()
    assert found["threads"] == str(torch.get_num_threads())
    assert found["settings"] == "none"
    assert all(found.values())
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert arithmetic()["settings"] == "ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE"


@pytest.mark.parametrize(
    ("text", "name"), [("processor : 0\nmodel name\t: A CPU of 2 GHz\n", "A CPU of 2 GHz"), ("", None)]
)
def test_the_processors_name(text: str, name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_CPUINFO", tmp_path / "cpuinfo")
    if text:
        (tmp_path / "cpuinfo").write_text(text)
    found = arithmetic()["cpu"]
    assert found == name if name else found


@pytest.mark.parametrize(
    ("config", "blas"),
    [
        ("Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605", "MKL 2024.2-Product"),
        ("Build settings: BLAS_INFO=open, BUILD_TYPE=Release", "open"),
        ("nothing of it", "unknown"),
    ],
)
def test_the_blas(config: str, blas: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.__config__, "show", lambda: config)
    assert arithmetic()["blas"] == blas
