"""The embedded engine as a target: what a run loop may ask of it, and how it is built inside a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from specdebug.engine import Engine


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

    @property
    def observers(self) -> Any: ...
    @property
    def requests(self) -> Any: ...
    @property
    def has_work(self) -> bool: ...
    @property
    def config(self) -> Any: ...
    def add_request(self, rid: str, prompt_ids: list[int], sampling: Any, *, speculative: bool = True) -> object: ...
    def abort(self, rid: str) -> object: ...
    def step(self) -> StepReportLike: ...
    def flush_cache(self) -> object: ...
    def check_pools(self) -> Sequence[str]: ...
    def check_guards(self) -> Sequence[Any]: ...
    def damage_seen(self) -> Sequence[Any]: ...


_models: dict[tuple[Any, ...], Any] = {}


def keep_models(options: Mapping[str, Any]) -> None:
    """Load what an engine of these options serves, for engines that are built later, here or in a fork.

    Raises ConfigError or CheckpointError.
    """
    from specdebug.engine import EngineConfig
    from specdebug.engine.engine import load_models

    config = EngineConfig.from_dict(options)
    if config.device == "cpu" and _models_of(config) not in _models:  # a GPU's memory does not survive a fork
        _models[_models_of(config)] = load_models(config)


def drop_models() -> None:
    """Forget them: engines built from now on load their own."""
    _models.clear()


def _models_of(config: Any) -> tuple[Any, ...]:
    """Everything in a configuration that loading models depends on."""
    spec = config.speculative
    draft = None if spec is None else (spec.algorithm, spec.draft_model)
    return (config.device, config.dtype, config.reach, config.model, draft)


def build_engine(options: Mapping[str, Any], seed: int) -> Engine:
    """An engine of these options. Imports the engine, so reverts must be in place by now.

    Raises ConfigError or CheckpointError.
    """
    from specdebug.engine import Engine, EngineConfig

    config = EngineConfig.from_dict({"seed": seed, **options})
    return Engine(config, _models.get(_models_of(config)))


def sampling_params(**fields: Any) -> Any:
    """The engine's own ``SamplingParams``."""
    from specdebug.engine import SamplingParams

    return SamplingParams(**fields)
