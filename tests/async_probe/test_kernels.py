"""The kernels against ``checks.parts``: on a GPU as they are, without one under Triton's interpreter."""

import math
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.async_probe import checks, jobs
from specdebug.async_probe.checks import Bound
from specdebug.async_probe.rows import RawFinding

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and Triton was imported before its interpreter could be chosen", allow_module_level=True)

from specdebug.async_probe.device import DeviceRing

pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
INTS = [torch.int64, torch.int32, torch.int16, torch.uint8]
RING = DeviceRing(DEVICE, capacity=16, step=5, programs=3)


def _found(
    kinds: tuple[str, ...],
    tensor: torch.Tensor,
    low: Bound = 0,
    high: Bound = 0,
    relative_to: torch.Tensor | None = None,
    at: torch.Tensor | None = None,
) -> list[RawFinding]:
    """What the kernels find, entries numbered by part."""
    on_device = [None if each is None else _moved(each) for each in (relative_to, at)]
    job = jobs.make(kinds, _moved(tensor), low, high, *on_device)
    if job is not None:
        RING.look([job], [tuple(None if part is None else i for i, part in enumerate(job.parts))])
    return RING.take()


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the device, with the strides and the place in memory that it has here."""
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).to(DEVICE)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _expected(
    kinds: tuple[str, ...],
    tensor: torch.Tensor,
    low: Bound = 0,
    high: Bound = 0,
    relative_to: torch.Tensor | None = None,
    at: torch.Tensor | None = None,
) -> list[RawFinding]:
    """What the checks find, one entry for every part there can be."""
    values = checks.subject(tensor, relative_to) if at is None else checks.picked(tensor, at)
    numbers = {"nan": 0, "inf": 1, "below": 0, "not below": 1, "not a multiple of": 0}
    findings = []
    for kind in kinds if values.numel() else ():
        for part in checks.parts(kind, values, low, high):
            bad = part.bad.reshape(-1)
            if bool(bad.any()):
                index, count = int(bad.nonzero()[0]), int(bad.sum())
                value = values.reshape(-1)[index].item()
                findings.append(RawFinding(numbers[part.phrase or kind], 5, index, value, count, part.limit))
    return findings


def _same(found: list[RawFinding], expected: list[RawFinding]) -> bool:
    return repr(found) == repr(expected)  # as NaN is not equal to itself


@st.composite
def _tensors(draw: st.DrawFn, dtypes: list[torch.dtype], special: list[float]) -> torch.Tensor:
    """Any layout: contiguous, misaligned, transposed, sliced, expanded; a few special values in ordinary ones."""
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(
        st.one_of(
            st.lists(st.integers(1, 7), max_size=5),
            st.tuples(st.integers(1, 4), st.sampled_from([16, 48, 1000, 2048])),
            st.integers(1, 5000).map(lambda size: [size]),
        )
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    offset = draw(st.sampled_from([0, 0, 1, 8]))
    size = math.prod(shape)
    flat = torch.randint(0, 8, (offset + size,), generator=generator).to(torch.float64)
    for value in draw(st.lists(st.sampled_from(special), max_size=4)):
        flat[draw(st.integers(0, offset + size - 1))] = value
    tensor = (flat.to(torch.int64) if not dtype.is_floating_point else flat).to(dtype)[offset:].view(tuple(shape))
    if draw(st.booleans()) and tensor.dim() > 1:
        tensor = tensor.permute(*draw(st.permutations(range(tensor.dim()))))
    if tensor.dim():
        tensor = tensor[draw(st.sampled_from([slice(None), slice(1, None), slice(None, None, 2)]))]
        tensor = tensor[..., draw(st.sampled_from([slice(None), slice(None), slice(None, None, 3)]))]
    if draw(st.integers(0, 7)) == 0:
        tensor = tensor.unsqueeze(-1).expand(*tensor.shape, 3)
    return tensor


@settings(max_examples=80)
@given(
    tensor=_tensors(FLOATS, [math.nan, math.inf, -math.inf, 448.0, -0.0]),
    kinds=st.sampled_from([("nan",), ("inf",), ("nan", "inf")]),
)
def test_infinities_and_nans(tensor: torch.Tensor, kinds: tuple[str, ...]) -> None:
    if tensor.numel():
        assert _same(_found(kinds, tensor), _expected(kinds, tensor))


@settings(max_examples=40)
@given(
    tensor=_tensors(INTS, [-9, 100, 2**30]),
    low=st.sampled_from([-(2**70), -1, 0, 1, 1.5, -math.inf]),
    high=st.sampled_from([7, 8, 8.5, 2**31, 2**63 - 1, 2**63, math.inf]),
)
def test_bounds_of_integers(tensor: torch.Tensor, low: Bound, high: Bound) -> None:
    if tensor.numel():
        assert _same(_found(("oob",), tensor, low, high), _expected(("oob",), tensor, low, high))


@settings(max_examples=40)
@given(
    tensor=_tensors(FLOATS, [math.nan, math.inf, -math.inf, -3.0]),
    low=st.sampled_from([0, 0.1, 1.0000001, -math.inf]),
    high=st.sampled_from([7, 7.0000001, math.inf]),
)
def test_bounds_of_floats(tensor: torch.Tensor, low: Bound, high: Bound) -> None:
    if tensor.numel():
        assert _same(_found(("oob",), tensor, low, high), _expected(("oob",), tensor, low, high))


@settings(max_examples=40)
@given(
    tensor=_tensors([torch.int64, torch.int32, torch.uint8, torch.float32], [-9, 100, 2**30]),
    unit=st.sampled_from([1, 2, 4, 7]),
)
def test_multiples(tensor: torch.Tensor, unit: int) -> None:
    if tensor.numel():
        assert _same(_found(("page_aligned",), tensor, 0, unit), _expected(("page_aligned",), tensor, 0, unit))


@settings(max_examples=40)
@given(
    tensor=_tensors([torch.int64, torch.int32], [-9, 100]),
    base=st.sampled_from(["same", "rows", "one", "float", "wide"]),
    seed=st.integers(0, 99),
)
def test_differences(tensor: torch.Tensor, base: str, seed: int) -> None:
    if not tensor.numel() or (base == "wide" and tensor.numel() > 1000):
        return
    shape = {
        "same": tensor.shape,
        "float": tensor.shape,
        "rows": (*tensor.shape[:-1], 1) if tensor.dim() else (),
        "one": (1,) * tensor.dim(),
        "wide": (2, *tensor.shape),
    }[base]
    other = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(seed))
    if base == "float":
        other = other.to(torch.float32) + 0.5
    assert _same(_found(("oob",), tensor, -2, 6, other), _expected(("oob",), tensor, -2, 6, other))


@settings(max_examples=40)
@given(
    dtype=st.sampled_from(FLOATS),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.sampled_from([1, 2, 16]), st.sampled_from([1, 8, 40])),
    at=st.lists(st.integers(-2, 10), min_size=1, max_size=9),
    bad=st.lists(st.integers(0, 10**9), max_size=5),
    layout=st.sampled_from(["whole", "tail", "transposed"]),
    picks=st.sampled_from(["flat", "columns", "column", "every other", "corner"]),
)
def test_rows_of_dimension_one(
    dtype: torch.dtype, shape: tuple[int, ...], at: list[int], bad: list[int], layout: str, picks: str
) -> None:
    flat = torch.ones(math.prod(shape))
    for place in bad:
        flat[place % flat.numel()] = math.nan
    tensor = flat.to(dtype).view(shape)
    if layout == "tail":
        tensor = tensor[shape[0] // 2 :]
    elif layout == "transposed":  # rows are no block of memory
        tensor = tensor.transpose(2, 3)
    rows = torch.tensor(at)
    if picks != "flat":
        matrix = torch.stack([rows, rows + 1, rows - 1], 1)
        rows = {
            "columns": matrix[:, :2],
            "column": matrix[:, 1],
            "every other": matrix[:, ::2],
            "corner": matrix[:1, :1],
        }[picks]
    assert _same(_found(("nan",), tensor, at=rows), _expected(("nan",), tensor, at=rows))


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_ends_of_words_and_of_what_lies_behind_the_words(dtype: torch.dtype) -> None:
    """One NaN at a time, in lengths around multiples of sixteen bytes."""
    for size, places in ((1, [0]), (16, [0, 15]), (17, [3, 16]), (31, [14, 30])):
        for index in places:
            tensor = torch.ones(size)
            tensor[index] = math.nan
            (found,) = _found(("nan", "inf"), tensor.to(dtype))
            assert (found.entry, found.index, found.count) == (0, index, 1)


def test_indices_that_need_an_int64() -> None:
    """The code for more than 2^31 elements, on few."""
    tensor = torch.ones(5000)
    tensor[4999] = math.nan
    for layout in (tensor, torch.stack([tensor, tensor], 1)[:, 0]):
        job = jobs.make(("nan",), _moved(layout), 0, 0, None, None)
        assert job is not None
        wide = _Wide(**{name: getattr(job, name) for name in job.__dataclass_fields__})
        RING.look([wide], [(0, None)])
        (found,) = RING.take()
        assert (found.index, found.count) == (4999, 1)


class _Wide(jobs.ProbeJob):
    @property
    def wide(self) -> bool:
        return True
