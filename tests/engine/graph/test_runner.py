"""What the runners share: one arena in a fixed order, views made once, and inputs that belong to no runner."""

import pytest
import torch

from specdebug.engine.graph.runner import StaticBuffer, StaticBuffers
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
