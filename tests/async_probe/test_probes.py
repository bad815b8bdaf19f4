"""The four probes, in both modes and compiled, on everything a model can hand them."""

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from specdebug import async_probe
from specdebug.async_probe import (
    ProbeFinding,
    Rule,
    maybe_detect_inf,
    maybe_detect_nan,
    maybe_detect_nonfinite,
    maybe_detect_oob,
    maybe_detect_page_aligned,
    parse_message,
)

Probe = Callable[[torch.Tensor | None], None]

PROBES: dict[str, Probe] = {
    "nan": lambda t: maybe_detect_nan(t, "test.nan"),
    "inf": lambda t: maybe_detect_inf(t, "test.inf"),
    "oob": lambda t: maybe_detect_oob(t, 0, 10, "test.oob"),
    "page_aligned": lambda t: maybe_detect_page_aligned(t, 4, "test.page_aligned"),
}
CLEAN = {
    "nan": torch.tensor([1.0, math.inf]),
    "inf": torch.tensor([1.0, math.nan]),
    "oob": torch.tensor([0, 9]),
    "page_aligned": torch.tensor([0, 8]),
}
BAD = {
    "nan": torch.tensor([[1.0, 2.0], [math.nan, math.nan]]),
    "inf": torch.tensor([[1.0, 2.0], [-math.inf, math.inf]]),
    "oob": torch.tensor([[1, 2], [-3, -4]]),
    "page_aligned": torch.tensor([[4, 8], [7, 9]]),
}
BOUND = {"nan": None, "inf": None, "oob": "below 0", "page_aligned": "not a multiple of 4"}
VALUE = {"inf": -math.inf, "oob": -3, "page_aligned": 7}
KINDS = list(PROBES)


def _raised(run: Callable[[], object]) -> ProbeFinding:
    with pytest.raises(RuntimeError) as caught:
        run()
    violation = parse_message(str(caught.value))
    assert violation is not None
    return violation


@pytest.mark.parametrize("mode", ["assert", "record"])
@pytest.mark.parametrize("kind", KINDS)
def test_clean_empty_and_none_are_silent(kind: str, mode: str) -> None:
    async_probe.configure(mode)
    for tensor in (None, torch.empty(0), torch.empty((3, 0), dtype=torch.int64)):
        PROBES[kind](tensor)
    assert async_probe.reached() == {}
    PROBES[kind](CLEAN[kind])
    assert async_probe.drain() == []
    assert async_probe.reached() == {f"test.{kind}": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_record_says_what_where_and_how_much(kind: str) -> None:
    async_probe.configure("record")
    async_probe.set_step(7)
    PROBES[kind](BAD[kind])
    (found,) = async_probe.drain()
    assert (found.site, found.kind, found.step) == (f"test.{kind}", kind, 7)
    assert (found.index, found.count, found.bound) == (2, 2, BOUND[kind])
    if kind == "nan":
        assert found.value is not None
        assert math.isnan(found.value)
    else:
        assert found.value == VALUE[kind]
    assert async_probe.totals() == {(f"test.{kind}", kind): 2}
    assert async_probe.drain() == []


@pytest.mark.parametrize("kind", KINDS)
def test_assert_says_what_where_and_how_much(kind: str) -> None:
    async_probe.configure("assert")
    async_probe.set_step(7)
    found = _raised(lambda: PROBES[kind](BAD[kind]))
    assert found.signature == f"{kind}@test.{kind}"
    assert (found.step, found.index, found.count, found.bound) == (7, 2, 2, BOUND[kind])
    assert async_probe.drain() == []


def test_rows_of_dimension_one_are_looked_at_alone() -> None:
    async_probe.configure("record")
    pool = torch.full((2, 6, 3), math.nan)
    pool[:, [1, 4]] = 1.0
    maybe_detect_nan(pool, "a.b", at=torch.tensor([4, 1]))
    maybe_detect_nan(pool, "a.b", at=torch.tensor([], dtype=torch.int64))
    assert async_probe.drain() == []
    pool[1, 4, 2] = math.inf
    maybe_detect_nonfinite(pool, "a.b", at=torch.tensor([1, 4, 6, 0]))  # there is no row 6
    assert [(found.kind, found.index, found.count) for found in async_probe.drain()] == [
        ("nan", 9, 6),
        ("inf", 17, 1),
    ]


def test_configure_and_reset_forget() -> None:
    async_probe.configure("record")
    async_probe.set_step(5)
    maybe_detect_nan(torch.tensor([math.nan]), "a.b")
    async_probe.reset()
    assert (async_probe.drain(), async_probe.totals(), async_probe.reached()) == ([], {}, {})
    maybe_detect_nan(torch.tensor([math.nan]), "a.b")
    assert async_probe.drain()[0].step == 0
    with pytest.raises(ValueError, match="capacity 0 must be at least 1"):
        async_probe.configure("record", capacity=0)


@settings(max_examples=100)
@given(
    arrays=st.lists(
        hnp.arrays(
            np.int64,
            hnp.array_shapes(min_dims=1, max_dims=3, max_side=4),
            elements=st.integers(-3, 12),
        ),
        max_size=6,
    ),
    capacity=st.integers(1, 6),
    transposed=st.booleans(),
)
def test_recordings_against_numpy(arrays: list[np.ndarray], capacity: int, transposed: bool) -> None:
    async_probe.configure("record", capacity=capacity)
    expected: list[ProbeFinding] = []
    total = 0
    for step, array in enumerate(arrays):
        tensor = torch.from_numpy(array)
        if transposed:
            array, tensor = array.T, tensor.permute(*reversed(range(array.ndim)))
        async_probe.set_step(step)
        maybe_detect_oob(tensor, 0, 10, "a.b")
        for bound, bad in (("below 0", array < 0), ("not below 10", array >= 10)):
            flat = bad.ravel()
            if flat.any():
                first = int(flat.argmax())
                value, count = int(array.ravel()[first]), int(flat.sum())
                expected.append(ProbeFinding("a.b", "oob", step, first, value, count, bound))
                total += count
    assert async_probe.drain() == expected[:capacity]
    assert async_probe.totals() == ({("a.b", "oob"): total} if total else {})
    # Drained, the ring has room again.
    maybe_detect_oob(torch.tensor([-1]), 0, 10, "a.b")
    assert len(async_probe.drain()) == 1


def _in_a_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_environment_decides_at_import_and_nothing_else_is_imported() -> None:
    code = (
        "import sys, torch, specdebug\n"
        "before = set(sys.modules)\n"
        "from specdebug import async_probe\n"
        "own = {m for m in sys.modules if m.startswith('specdebug')}\n"
        "assert all(m == 'specdebug' or m.startswith('specdebug.async_probe') for m in own), own\n"
        "roots = {m.partition('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)\n"
        "assert roots <= {'specdebug', 'torch'}, roots\n"
        "async_probe.maybe_detect_nan(torch.tensor([float('nan')]), 'a.b')\n"
    )
    on = _in_a_process(code, SGLANG_ENABLE_ASYNC_ASSERT="yes")
    assert on.returncode == 1
    assert "RuntimeError: async probe nan@a.b" in on.stderr
    off = _in_a_process(code, SGLANG_ENABLE_ASYNC_ASSERT="0")
    assert (off.returncode, off.stderr) == (0, "")
    odd = _in_a_process(code, SGLANG_ENABLE_ASYNC_ASSERT="perhaps")
    assert odd.returncode == 1
    assert "ValueError: SGLANG_ENABLE_ASYNC_ASSERT is 'perhaps'" in odd.stderr


def test_modes_messages_and_sites_can_be_read_without_torch() -> None:
    code = (
        "import sys\n"
        "from specdebug.async_probe import KINDS, Rule, parse_message\n"
        "from specdebug.async_probe.sites import find_sites\n"
        "assert 'torch' not in sys.modules\n"
    )
    assert _in_a_process(code).returncode == 0


def test_unknown_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute 'maybe_detect_noon'"):
        async_probe.maybe_detect_noon  # type: ignore[attr-defined]  # noqa: B018


def test_replays_count_what_was_reached_in_the_capture() -> None:
    async_probe.configure("record")
    ids = torch.tensor([1])
    maybe_detect_oob(ids, 0, 10, "test.outside")
    with async_probe.capturing() as reach:
        maybe_detect_oob(ids, 0, 10, "test.outside")
        for _ in range(2):
            maybe_detect_oob(ids, 0, 10, "test.inside")
    reach.replayed()
    maybe_detect_oob(ids, 0, 10, "test.later")
    reach.replayed()
    assert async_probe.reached() == {"test.outside": 4, "test.inside": 6, "test.later": 1}


def test_a_hook_gets_every_call_and_what_it_leaves_is_what_is_probed():
    seen: list[async_probe.SiteCall] = []
    async_probe.configure("record", [Rule("test.oob")])
    tensor, base = torch.tensor([4, 5]), torch.tensor([4, 5])

    def damage(call: async_probe.SiteCall) -> None:
        seen.append(call)
        if call.site == "test.oob":
            call.tensor[1] = 9

    async_probe.on_site(damage)
    try:
        maybe_detect_oob(tensor, 0, 1, "test.oob", base)
        maybe_detect_nonfinite(torch.ones(2), "test.off")
        maybe_detect_nan(torch.ones(1, 3), "test.rows", torch.tensor([2]))
        maybe_detect_nan(None, "test.none")
    finally:
        async_probe.on_site(None)
    assert [(call.site, call.kind, call.low, call.high) for call in seen] == [
        ("test.oob", "oob", 0, 1),
        ("test.off", "nonfinite", 0, 0),
        ("test.rows", "nan", 0, 0),
    ]
    assert seen[0].tensor is tensor
    assert seen[0].relative_to is base
    assert seen[2].at is not None
    assert [(found.site, found.value) for found in async_probe.drain()] == [("test.oob", 4)]


def test_rows_that_a_hook_asked_for_are_those_that_are_probed():
    async_probe.configure("record")
    pool = torch.zeros(2, 4, 1)
    gathered: list[torch.Tensor] = []

    def look(call: async_probe.SiteCall) -> None:
        gathered.append(call.rows())
        pool.fill_(float("nan"))  # too late for the probe, so that it shows which rows that looked at

    async_probe.on_site(look)
    try:
        maybe_detect_nan(pool, "test.rows", torch.tensor([[3], [1]]))
        maybe_detect_nan(pool, "test.all")
    finally:
        async_probe.on_site(None)
    assert (gathered[0].shape, gathered[1] is pool) == ((2, 2, 1), True)
    assert [found.site for found in async_probe.drain()] == ["test.all"]


def test_a_hook_is_told_of_captures_and_of_their_replays() -> None:
    async_probe.configure("off")
    calls: list[tuple[str, async_probe.Capture | None]] = []
    replays: list[async_probe.Capture] = []
    async_probe.on_site(lambda call: calls.append((call.site, call.capture)), replays.append)
    try:
        maybe_detect_oob(torch.tensor([1]), 0, 10, "test.outside")
        with async_probe.capturing() as capture:
            maybe_detect_oob(torch.tensor([1]), 0, 10, "test.inside")
        maybe_detect_oob(torch.tensor([1]), 0, 10, "test.later")
        capture.replayed()
        capture.replayed()
    finally:
        async_probe.on_site(None)
    capture.replayed()
    assert calls == [("test.outside", None), ("test.inside", capture), ("test.later", None)]
    assert replays == [capture, capture]


def _model(x: torch.Tensor, ids: torch.Tensor, vocab: int) -> torch.Tensor:
    y = x / x.abs()
    maybe_detect_nan(y, "test.y")
    maybe_detect_inf(x, "test.x")
    maybe_detect_nan(None, "test.none")
    maybe_detect_oob(ids, 0, vocab, "test.ids", relative_to=ids.new_zeros(1))
    maybe_detect_page_aligned(ids, 1, "test.pages")
    maybe_detect_nonfinite(y.expand(2, -1), "test.rows", at=ids.clamp(0, 0))
    return y * 2


@pytest.fixture(params=["eager", "aot_eager"])
def compiled(request: pytest.FixtureRequest) -> Iterator[Callable[..., torch.Tensor]]:
    torch._dynamo.reset()
    yield torch.compile(_model, backend=request.param, fullgraph=True)
    torch._dynamo.reset()


def test_record(compiled: Callable[..., torch.Tensor]) -> None:
    async_probe.configure("record")
    for step, (zeros, ids) in enumerate([(0, [3]), (1, [3, 10]), (2, [-1, 3, 11])]):
        async_probe.set_step(step)
        result = compiled(torch.tensor([0.0] * zeros + [-3.0]), torch.tensor(ids), 10)
        assert result[-1].item() == -2.0
    found = async_probe.drain()
    assert [(each.signature, each.step, each.count, each.bound) for each in found] == [
        ("nan@test.y", 1, 1, None),
        ("oob@test.ids", 1, 1, "not below 10"),
        ("nan@test.rows", 1, 4, None),
        ("nan@test.y", 2, 2, None),
        ("oob@test.ids", 2, 1, "below 0"),
        ("oob@test.ids", 2, 1, "not below 10"),
        ("nan@test.rows", 2, 6, None),
    ]
    assert async_probe.reached() == dict.fromkeys(["test.y", "test.x", "test.ids", "test.pages", "test.rows"], 3)


def test_switched_on_and_off_again(compiled: Callable[..., torch.Tensor]) -> None:
    bad = (torch.tensor([0.0]), torch.tensor([1]), 10)
    compiled(*bad)
    async_probe.configure("record")
    compiled(*bad)
    assert len(async_probe.drain()) == 2
    async_probe.configure("off")
    compiled(*bad)
    assert async_probe.drain() == []


def test_inference_mode_can_come_and_go() -> None:
    async_probe.configure("record")
    with torch.inference_mode():
        maybe_detect_nan(torch.tensor([math.nan]), "a.b")
    maybe_detect_nan(torch.tensor([math.nan]), "a.b")
    async_probe.set_step(1)
    with torch.inference_mode():
        maybe_detect_nan(torch.tensor([math.nan]), "a.b")
    assert [found.step for found in async_probe.drain()] == [0, 0, 1]
