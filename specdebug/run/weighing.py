"""A reference model asked about texts that an engine gave, in a worker: which token it prefers at each place, by how
much, and the log probability of the token that is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from specdebug.base.errors import CheckpointError, SpecDebugError
from specdebug.workers.wire import Sink

if TYPE_CHECKING:
    from torch import Tensor

TARGET = f"{__name__}:weigh"
DENSE, HUGGING_FACE = "this package's dense model", "transformers' model"


class TextReference(Protocol):
    """A model that reads texts whole."""

    def logits(self, ids: Sequence[int], start: int) -> Tensor:
        """The float32 logits [n, V] by which the tokens at positions ``start`` (at least 1) up to the end follow."""


class HuggingFaceReference:
    """The model of a checkpoint's architecture as transformers has it, float32, on the CPU.

    Raises CheckpointError where it cannot be made.
    """

    def __init__(self, folder: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        made: Any = AutoModelForCausalLM
        try:
            self._model = made.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
        except Exception as error:
            raise CheckpointError(f"transformers cannot load {folder}: {' '.join(str(error).split())}") from None

    def logits(self, ids: Sequence[int], start: int) -> Tensor:
        import torch

        with torch.inference_mode():
            every = self._model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits
        logits: Tensor = every[0, start - 1 : len(ids) - 1].float()
        return logits


def weigh(payload: Mapping[str, Any], sink: Sink) -> None:
    """Emit ``asked``, which reference it is, then ``weighed`` for every text: a row [token preferred, gap, largest
    logit, log probability] for each of its positions from ``start`` on. What is wrong is told as ``usage``.

    ``payload``: ``model`` by name and by ``folder``, ``texts`` (ids, start), and ``by``, references to try in turn.
    """
    import torch

    try:
        name, reference = _made(payload)
    except SpecDebugError as error:
        sink.emit("usage", message=str(error))
        return
    sink.emit("asked", reference=name)
    for number, (ids, start) in enumerate(payload["texts"]):
        with torch.inference_mode():
            logits = reference.logits(ids, start)
            given = torch.tensor(list(ids[start:]))[:, None]
            best, choice = logits.max(-1)
            own = logits.gather(-1, given)[:, 0]
            logprobs = torch.log_softmax(logits, -1).gather(-1, given)[:, 0]
            columns = choice, best - own, logits.abs().amax(-1), logprobs
        sink.emit("weighed", number=number, rows=list(zip(*(each.tolist() for each in columns), strict=True)))


def _made(payload: Mapping[str, Any]) -> tuple[str, TextReference]:
    wrong: list[str] = []
    for name in payload["by"]:
        try:
            if name == DENSE:
                from specdebug.run.dense import DenseReference

                return name, DenseReference(payload["model"], None)
            return name, HuggingFaceReference(payload["folder"])
        except (SpecDebugError, ImportError) as error:
            wrong.append(str(error))
    raise CheckpointError("; ".join(wrong))
