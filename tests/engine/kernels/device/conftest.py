"""Where device kernels run: compiled on a GPU if there is one, else interpreted on CPU tensors."""

from tests.interpreter import device

__all__ = ["device"]
