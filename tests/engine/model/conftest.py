"""A random Llama as the target of heads, and a head's first layer as a table or computed."""

from pathlib import Path

import pytest

from specdebug.engine.model import models
from specdebug.engine.model.loader import load_target
from specdebug.engine.model.models import TargetModel
from tests.engine.model.helpers import make_target


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    make_target(folder)
    return folder


@pytest.fixture(scope="session")
def target(target_folder: Path) -> TargetModel:
    return load_target(target_folder)


@pytest.fixture(params=[0, models.MAX_TABLE_BYTES], ids=["computed", "tabulated"])
def tables(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MAX_TABLE_BYTES", request.param)
