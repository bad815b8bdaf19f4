"""Faults of Triton's interpreter that vLLM's kernels of runner V2 meet, mended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def mend_interpreter() -> list[str]:
    """Mend each, in this process; returns what was replaced, in words for reports."""
    return [take_masks_of_integers(), cut_in_torch(), compute_log1p()]


def take_masks_of_integers() -> str:
    """Have a mask be one of bits. The interpreter gives a comparison the type of its left side, and what two of them
    come to by ``&`` is then an integer, which a masked load declines."""
    from triton import language
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def of_bits(mask: Any) -> Any:
        return mask if mask.data.dtype == np.bool_ else TensorHandle(mask.data.astype(np.bool_), language.int1)

    load: Callable[..., Any] = InterpreterBuilder.create_masked_load
    store: Callable[..., Any] = InterpreterBuilder.create_masked_store

    def create_masked_load(self: Any, ptrs: Any, mask: Any, *args: Any, **named: Any) -> Any:
        return load(self, ptrs, of_bits(mask), *args, **named)

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *args: Any, **named: Any) -> Any:
        return store(self, ptrs, value, of_bits(mask), *args, **named)

    InterpreterBuilder.create_masked_load = create_masked_load
    InterpreterBuilder.create_masked_store = create_masked_store
    return "masks of Triton's interpreter: those of integers are taken, too"


def cut_in_torch() -> str:
    """Have top-k and top-p cut in torch. vLLM's kernel asks ``tl.range`` for tensors, of which the interpreter makes
    plain numbers; where there is no Triton vLLM has this way itself."""
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.HAS_TRITON = False
    return "the kernel that cuts by top-k and top-p: vLLM's own way in torch"


def compute_log1p() -> str:
    """Have ``log1p``, of which the interpreter has none, computed by NumPy."""
    from triton import language
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import TensorHandle

    def log1p(value: Any, **_: Any) -> Any:
        return language.tensor(TensorHandle(np.log1p(value.handle.data), value.handle.dtype), value.type)

    libdevice.log1p = log1p
    return "log1p of Triton's interpreter: NumPy's"
