"""The speculative plumbing kernels as torch references, which write by flat offset as device kernels do.

Tensors on a GPU go to the twins in ``triton``, which read nothing back and check no address. Twins take index and
length lists ([B] and the like) to be contiguous.
"""
