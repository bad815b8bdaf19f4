"""CUDA's own words, in every wrapping they come in."""

import pytest
import torch

from specdebug.logs.device import assertion_in
from specdebug.run.session_run import violation_of
from specdebug.verdict.deaths import device_failure, device_lost, noticed_in, out_of_memory

ADVICE = (
    "Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/ for more information.\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
MEMORY = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.72 GiB of which 1.25 GiB is "
    "free. Including non-PyTorch memory, this process has 138.46 GiB memory in use."
)
PROBE = "async probe oob@draft_graph.replay.topk_index: value not below 2048"
TORCH_ASSERT = (
    f"/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], "
    f"thread: [0,0,0] Assertion `{PROBE}` failed.\n"
)
INDEX_ASSERT = (
    "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: [3,0,0], thread: [64,0,0] "
    'Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.\n'
)
TRITON_ASSERT = (
    "/x/specdebug/engine/kernels/triton/kv_indices.py:57: write_kv_indices: block: [0,0,0], thread: [31,0,0] "
    "Assertion `slot in range` failed.\n"
)


@pytest.mark.parametrize(
    ("text", "signature", "lost"),
    [
        (f"CUDA error: device-side assert triggered\n{ADVICE}", "assert@engine", True),
        (f"CUDA error: an illegal memory access was encountered\n{ADVICE}", "illegal-address@engine", True),
        ("Triton Error [CUDA]: an illegal memory access was encountered", "illegal-address@engine", True),
        ("CUDA error: misaligned address", "illegal-address@engine", True),
        ("CUDA error: unspecified launch failure", "launch-failure@engine", True),
        ("CUDA error: an illegal instruction was encountered", "launch-failure@engine", True),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`", "launch-failure@engine", True),
        ("CUDA error: invalid configuration argument", "launch-failure@engine", False),
        ("Triton Error [CUDA]: too many resources requested for launch", "launch-failure@engine", False),
        (MEMORY, "oom@cuda", False),
        ("CUDA error: out of memory", "oom@cuda", False),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "oom@cuda", False),
    ],
)
def test_what_is_wrong_with_the_device(text: str, signature: str, lost: bool) -> None:
    for error in (torch.AcceleratorError(text), RuntimeError(f"flashinfer: plan failed\n{text}")):
        violation = violation_of(error, 7)
        assert (violation.signature, violation.step) == (signature, 7)
        assert violation.data == {"device": "cuda", "lost": lost}
        assert "\n" not in violation.detail
        assert "CUDA_LAUNCH_BLOCKING" not in violation.detail
        assert device_lost(error) is lost


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("index 9 is out of bounds for dimension 0 with size 4"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("CUDA error: no kernel image is available for execution on the device"),
        ValueError("invalid argument"),
        MemoryError(),
    ],
)
def test_what_is_not_the_device_s(error: Exception) -> None:
    assert device_failure(error) is None
    assert out_of_memory(error) is None


def test_the_driver_s_assertion_names_probe_kernel_or_file() -> None:
    found = assertion_in(f"loading\n{TORCH_ASSERT}{INDEX_ASSERT}")
    assert found is not None
    assert (found.kind, found.site, found.text) == ("oob", "draft_graph.replay.topk_index", PROBE)
    found = assertion_in(INDEX_ASSERT * 3)
    assert found is not None
    assert (found.kind, found.site) == ("assert", "IndexKernel.cu")
    assert "index out of bounds" in found.text
    found = assertion_in(TRITON_ASSERT)
    assert found is not None
    assert (found.kind, found.site) == ("assert", "write_kv_indices")
    assert assertion_in(f"{PROBE}\nAssertionError: no\n") is None


ENGINE = """
def _inner(error):
    raise error

class Engine:
    def __init__(self, error=None):
        if error is not None:
            _inner(error)
    def step(self, error, how):
        getattr(self, how)(error)
    def _decode(self, error):
        _inner(error)
    def _prefill(self, error):
        _inner(error)
    def check_guards(self, error):
        _inner(error)
"""


def test_the_place_is_what_the_engine_was_called_for_not_where_it_happened_to_look() -> None:
    namespace: dict[str, object] = {"__name__": "specdebug.engine.textbook.engine"}
    exec(ENGINE, namespace)
    make: type = namespace["Engine"]  # type: ignore[assignment]
    error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    calls = {
        "decode": lambda: make().step(error, "_decode"),
        "prefill": lambda: make().step(error, "_prefill"),
        "check_guards": lambda: make().check_guards(error),
        "load": lambda: make(error),
    }
    for place, call in calls.items():
        with pytest.raises(torch.AcceleratorError) as caught:
            call()
        assert noticed_in(caught.value.__traceback__) == place
        error.__traceback__ = None
    assert noticed_in(None) == "engine"
