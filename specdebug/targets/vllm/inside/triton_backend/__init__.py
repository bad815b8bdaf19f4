"""A backend ``cpu`` for Triton, by the entry points ``triton.backends``, so that vLLM takes its Triton kernels.
It compiles nothing: each kernel is interpreted."""
