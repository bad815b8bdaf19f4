"""What the runners share: one arena in a fixed order, views made once, and inputs that belong to nobody."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specdebug.engine.graph.runner import StaticBuffer, StaticBuffers, padded_size
from specdebug.engine.kernels.pointer import raw_block
from specdebug.engine.memory.arena import ArenaLayout, FillMode, FillPolicy


def _buffers(fill: FillMode = "zeros", *, guards: bool = True) -> StaticBuffers:
    metadata = ArenaLayout(guards=guards)
    metadata.add("m.indices", (2, 5), torch.int32)
    return StaticBuffers(
        "s",
        2,
        inputs=[StaticBuffer("ids", 2, (), torch.int64), StaticBuffer("hidden", 2, (3,), torch.float32)],
        metadata=metadata,
        outputs=[StaticBuffer("tokens", 2, (2,), torch.int64)],
        fill=FillPolicy(fill),
        device=torch.device("cpu"),
    )


def test_inputs_metadata_and_outputs_lie_one_after_another() -> None:
    buffers = _buffers()
    names = ["s.ids", "s.hidden", "m.indices", "s.tokens"]
    places = [buffers[name].data_ptr() for name in names]
    assert places == sorted(places)
    assert len({buffers[name].untyped_storage().data_ptr() for name in names}) == 1
    assert buffers.take("m.indices", (1, 1), torch.int32).data_ptr() == places[2]
    for name, victim in zip(names, [*names[1:], "end of arena"], strict=True):
        raw_block(buffers[name], buffers[name].numel(), 1, "test").fill_(3)
        assert [(v.buffer, v.victim) for v in buffers.check_guards()] == [(name, victim)]
    assert buffers.check_guards() == []


def test_guards_are_those_of_the_metadata() -> None:
    buffers = _buffers(guards=False)
    raw_block(buffers["s.ids"], 4, 1, "test").fill_(-1)
    assert buffers.check_guards() == []


def test_rows_are_views_made_once() -> None:
    buffers = _buffers()
    view = buffers.rows("s.hidden", 2)
    assert view.shape == (2, 3)
    assert buffers.rows("s.hidden", 2) is view
    view.fill_(5)
    assert buffers["s.hidden"][:, 0].tolist() == [5, 5, 0, 0]
    assert buffers.rows("s.hidden", 3).shape == (3, 3)


def test_a_declared_input_is_loaded_and_seen_by_its_field() -> None:
    buffers = _buffers()
    buffers["s.ids"].fill_(7)
    live = SimpleNamespace(ids=torch.tensor([1, 2]), hidden=torch.ones(2, 3))
    buffers.load(live)
    assert buffers["s.ids"].tolist() == [1, 2, 7, 7]
    assert buffers["s.hidden"][:, 0].tolist() == [1, 1, 0, 0]
    views = buffers.inputs_of(1)
    assert {name: view.shape[0] for name, view in views.items()} == {"ids": 2, "hidden": 2}
    assert torch.equal(views["ids"], live.ids)


def test_a_declared_output_is_stored_and_seen_by_its_field() -> None:
    buffers = _buffers()
    buffers.store(SimpleNamespace(tokens=torch.full((2, 2), 3)), 1)
    assert buffers["s.tokens"].tolist() == [[3, 3], [3, 3], [0, 0], [0, 0]]
    assert buffers.outputs_of(1)["tokens"].tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize("fill", ["zeros", "nan", "garbage"])
def test_released_inputs_are_repainted_and_nothing_else_is(fill: FillMode) -> None:
    buffers = _buffers(fill)
    for name in ("s.ids", "s.hidden", "m.indices", "s.tokens"):
        buffers[name].fill_(2)
    buffers.release_inputs()
    kept = {name: bool((buffers[name] == 2).all()) for name in ("s.ids", "s.hidden", "m.indices", "s.tokens")}
    poisoned = fill != "zeros"
    assert kept == {"s.ids": not poisoned, "s.hidden": not poisoned, "m.indices": True, "s.tokens": True}
    assert bool(buffers["s.hidden"].isnan().all()) is (fill == "nan")
    assert buffers.check_guards() == []


@pytest.mark.parametrize(("raw", "padded"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, None), (100, None)])
def test_a_batch_is_padded_to_the_next_captured_size(raw: int, padded: int | None) -> None:
    assert padded_size((1, 2, 4, 8), raw) == padded
