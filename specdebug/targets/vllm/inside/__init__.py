"""What runs in vLLM's own process, by its own Python: no file of it is edited. It may import torch, vLLM and what that
brings, and of this package what needs no more."""
