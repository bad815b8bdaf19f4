"""Errors of a running engine; a user sees each as one line."""

from collections.abc import Mapping
from typing import Any

from specdebug.base.errors import SpecDebugError


class EngineError(SpecDebugError):
    """Base of the engine's run-time errors."""

    exit_code = 1


class IllegalAddress(EngineError):
    """An access through a raw pointer left its allocation; ``site`` names the kernel and buffer, ``arena`` the bytes of
    both, as in ``GuardViolation``."""

    def __init__(self, site: str, detail: str, arena: Mapping[str, Any] | None = None) -> None:
        self.site, self.arena = site, arena
        super().__init__(f"illegal address in {site}: {detail}")


class PlanAssertion(EngineError):
    """A planner's always-on size check failed before any kernel ran; ``site`` names the planner."""

    def __init__(self, site: str, detail: str) -> None:
        self.site = site
        super().__init__(f"assertion in {site}: {detail}")


class RequestRejected(EngineError):
    """A request cannot be served under this configuration (too long, empty, duplicate id, bad token ids)."""

    exit_code = 2

    def __init__(self, rid: str, why: str) -> None:
        self.rid = rid
        super().__init__(f"request {rid!r} {why}")


class FlashInferError(EngineError):
    """FlashInfer is asked for and cannot be had: missing, of another version, or not compilable here."""

    exit_code = 2
