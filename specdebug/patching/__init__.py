"""Edit the source of running or not yet imported Python, all or nothing, and take it back.

``apply`` puts patches in force by an import hook or in process, and says what each can change; ``Applied.hits`` proves
that the edited lines ran; ``Applied.restore`` gives every function the code object it had.
"""

from specdebug.patching.apply import Applied, Mode, apply
from specdebug.patching.source import Edit, Patch, PatchError, parse_target

__all__ = ["Applied", "Edit", "Mode", "Patch", "PatchError", "apply", "parse_target"]
