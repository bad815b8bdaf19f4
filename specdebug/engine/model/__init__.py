"""The models the engine runs, inference only: targets of Llama's family and DeepSeek's, and drafts for them.

The engine owns attention and the KV cache; a model calls back into it once per layer (``LayerAttention``).
"""
