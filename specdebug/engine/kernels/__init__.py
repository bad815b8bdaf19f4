"""The speculative plumbing kernels: torch references, which write as device kernels do, by flat offset.

Each hands tensors on a GPU to its twin in ``triton``: one to three launches, nothing read back. What a reference
reports as an illegal address is one there. Twins take index and length lists ([B] and the like) to be contiguous.
"""
