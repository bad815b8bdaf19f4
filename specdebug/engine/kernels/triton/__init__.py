"""Triton kernels. Imported only when a tensor lies on a GPU, or under Triton's interpreter."""
