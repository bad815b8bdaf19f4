"""How SGLang's processes come to be on a CPU: forked, where it would have them spawned.

It spawns its scheduler and its detokenizer because a forked process cannot use its parent's GPU. Without a GPU they
need not import everything anew, which takes more than half of a start. At that point the parent has loaded its modules
and its plugins, and nothing else.
"""

from __future__ import annotations

import multiprocessing


def fork_for_spawn() -> str:
    """Have processes forked that are asked to be spawned; returns the name of what was replaced."""
    real = multiprocessing.set_start_method

    def set_start_method(method: str | None, force: bool = False) -> None:
        real("fork" if method == "spawn" else method, force)

    multiprocessing.set_start_method = set_start_method
    return "multiprocessing.set_start_method"
