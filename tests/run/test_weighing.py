"""A reference asked about texts: the dense model, and transformers' of the same checkpoint."""

from pathlib import Path
from typing import Any

import pytest

from specdebug.base.assets import checkpoint_path
from specdebug.run.weighing import DENSE, HUGGING_FACE, weigh
from tests.run.fakes import ListSink

IDS = tuple(range(5, 29))


def weighed(*by: str, model: str = "tiny", texts: Any = ((IDS, 20), (IDS[:9], 8))) -> list[dict[str, Any]]:
    sink = ListSink()
    folder = str(checkpoint_path(model).resolve()) if model.startswith("tiny") else model
    weigh({"model": model, "folder": folder, "by": by, "texts": texts}, sink)
    return sink.events


@pytest.mark.parametrize("model", ["tiny", "tiny-mla"])
def test_transformers_and_the_dense_model_say_the_same(model: str) -> None:
    dense, other = weighed(DENSE, model=model), weighed(HUGGING_FACE, model=model)
    assert [each["event"] for each in dense] == ["asked", "weighed", "weighed"]
    assert (dense[0]["reference"], other[0]["reference"]) == (DENSE, HUGGING_FACE)
    for one, two, count in zip(dense[1:], other[1:], (4, 1), strict=True):
        assert len(one["rows"]) == count
        for mine, its in zip(one["rows"], two["rows"], strict=True):
            assert mine[0] == its[0]
            assert mine[1:] == pytest.approx(its[1:], abs=1e-3)


def test_one_that_cannot_be_made_gives_way_to_the_next(tmp_path: Path) -> None:
    assert weighed(HUGGING_FACE, DENSE, texts=()) == [{"event": "asked", "reference": HUGGING_FACE}]
    (wrong,) = weighed(DENSE, HUGGING_FACE, model=str(tmp_path))
    assert wrong["event"] == "usage"
    assert "transformers cannot load" in wrong["message"]
