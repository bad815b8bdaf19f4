"""vLLM's own code as a target: a release that is installed here, before which a small server of ours stands.

``options.py`` maps a scenario's options to its arguments, ``checkpoints.py`` has draft heads as vLLM reads them, and
``inside/`` runs in its process: SGLang's HTTP interface before vLLM's engine, which tells what each verify accepted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdebug.targets.serving import EngineSettings
    from specdebug.targets.vllm.target import VllmTarget


def target_of(settings: EngineSettings) -> VllmTarget:
    """The target that a scenario's words about a release mean."""
    from specdebug.targets.vllm.target import VllmTarget

    return VllmTarget(settings)
