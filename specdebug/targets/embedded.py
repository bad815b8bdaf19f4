"""The embedded engine as a target: what a run loop may ask of it, and how it is built inside a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class StepReportLike(Protocol):
    """What one engine step decided."""

    @property
    def kind(self) -> str: ...
    @property
    def rids(self) -> Sequence[str]: ...
    @property
    def emitted(self) -> Mapping[str, Sequence[int]]: ...
    @property
    def accept_lengths(self) -> Mapping[str, int]: ...
    @property
    def cached(self) -> Mapping[str, int]: ...
    @property
    def finished(self) -> Sequence[str]: ...
    @property
    def retracted(self) -> Sequence[str]: ...


class EngineLike(Protocol):
    """The engine as a run loop sees it; ``specdebug.engine.Engine`` is one, tests bring others."""

    observer: Any

    @property
    def requests(self) -> Any: ...
    @property
    def has_work(self) -> bool: ...
    @property
    def config(self) -> Any: ...
    def add_request(
        self, rid: str, prompt_ids: list[int], sampling: Any, *, speculative: bool = True
    ) -> object: ...
    def abort(self, rid: str) -> object: ...
    def step(self) -> StepReportLike: ...
    def flush_cache(self) -> object: ...
    def check_pools(self) -> Sequence[str]: ...
    def check_guards(self) -> Sequence[Any]: ...
    def damage_seen(self) -> Sequence[Any]: ...


def build_engine(options: Mapping[str, Any], seed: int) -> EngineLike:
    """An engine of these options. Imports the engine, so reverts must be in place by now.

    Raises ConfigError or CheckpointError.
    """
    from specdebug.engine import Engine, EngineConfig

    engine: EngineLike = Engine(EngineConfig.from_dict({"seed": seed, **options}))
    return engine


def sampling_params(**fields: Any) -> Any:
    """The engine's own ``SamplingParams``."""
    from specdebug.engine import SamplingParams

    return SamplingParams(**fields)
