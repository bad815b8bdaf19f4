"""The models the engine runs, inference only: targets of Llama's family and DeepSeek's, and drafts for them.

The engine owns attention and the KV cache; a model calls back into it once per layer (``LayerAttention``).
"""

from specdebug.engine.model.assistant import AssistantDraft
from specdebug.engine.model.assistant_loader import load_assistant
from specdebug.engine.model.eagle import EagleDraft
from specdebug.engine.model.eagle3 import Eagle3Draft
from specdebug.engine.model.interface import DraftModel
from specdebug.engine.model.llama import TargetModel
from specdebug.engine.model.loader import load_draft, load_target
from specdebug.engine.model.nextn import NextnDraft
from specdebug.engine.model.tokenizer import TargetTokenizer

__all__ = [
    "AssistantDraft",
    "DraftModel",
    "Eagle3Draft",
    "EagleDraft",
    "NextnDraft",
    "TargetModel",
    "TargetTokenizer",
    "load_assistant",
    "load_draft",
    "load_target",
]
