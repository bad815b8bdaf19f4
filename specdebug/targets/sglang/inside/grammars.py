"""Grammars in a scheduler of this process: built without them, it gets SGLang's own backend with the first request that
asks for one. A process with the backend's threads could not be forked."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import torch

from specdebug.targets.sglang.inside.seats import in_sglang


class AtOnce(Executor):
    """Compiles a grammar where it is asked for, so that the step at which a request begins is not the clock's."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **named))
        except Exception as error:
            done.set_exception(error)
        return done


def attempt_grammars(scheduler: Any) -> str:
    """Have a scheduler take grammars; why it cannot, or nothing where it does."""
    manager = getattr(scheduler, "grammar_manager", None)
    if manager is None:
        return "this release keeps its grammars elsewhere"
    if manager.grammar_backend is not None:
        return ""
    try:
        config = scheduler.model_config
        made = in_sglang("srt.constrained.xgrammar_backend").XGrammarGrammarBackend
        ends = list(config.hf_eos_token_id or ()) or None
        backend = made(scheduler.tokenizer, vocab_size=config.vocab_size, model_eos_token_ids=ends)
    except Exception as error:
        return f"its environment has no xgrammar that works ({type(error).__name__}: {error})"
    if torch.distributed.get_world_size() == 1:
        # With grammars it has ranks agree on each token. One rank agrees with itself, and in a fork the threads by
        # which it would ask are gone.
        in_sglang("srt.layers.sampler").Sampler._sync_token_ids_across_tp = lambda *_: None
    backend.executor.shutdown(wait=False)
    backend.executor, manager.grammar_backend = AtOnce(), backend
    return ""
