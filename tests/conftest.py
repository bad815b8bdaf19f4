"""Without a GPU, Triton kernels run in Triton's interpreter, on CPU tensors.

Triton decides when it is imported, and some test modules import it while they are collected: so the choice is made
here, before any of them.
"""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
