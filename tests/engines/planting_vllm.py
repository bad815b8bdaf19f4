"""Run by vLLM's own Python: damage done inside its engine, one kind after the other, and what our probes find of it.

``python planting_vllm.py ARGUMENTS``, engine arguments as JSON; the answer is the last line of its output that is an
object in JSON: by the name of each plant the findings of two requests that were served with it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from specdebug import async_probe
from specdebug.async_probe.gate import KINDS, RECORD, Rule
from specdebug.targets.base import Asked, Busy, Opening
from specdebug.targets.vllm.session import VllmSession, build
from specdebug.targets.vllm.target import SHOWS

OUTSIDE = 5000
"""A token of no vocabulary here."""


@dataclass(frozen=True)
class Sampling:
    max_new_tokens: int = 8
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    seed: int = 0


class Plants:
    """``now``: the plant that acts. Those of ``below`` are done beneath the probes' taps, those of ``above`` over them;
    what would end the engine behind a tap is mended there."""

    def __init__(self, engine: Any) -> None:
        self.now = ""
        self.runner = engine.model_executor.driver_worker.worker.model_runner
        self.drafter = getattr(self.runner, "drafter", None)
        self.vocab = engine.vllm_config.model_config.get_vocab_size()

    def changes(self, owner: Any, name: str, **plants: Callable[[Any], Any]) -> None:
        """Have the plant that acts change what a function answers."""
        call = getattr(owner, name)

        def changed(*args: Any, **named: Any) -> Any:
            answer = call(*args, **named)
            return plants[self.now](answer) if self.now in plants else answer

        setattr(owner, name, changed)

    def below(self) -> None:
        runner, nan = self.runner, torch.nan
        self.changes(runner, "_preprocess", ids=lambda it: (torch.full_like(it[0], OUTSIDE), *it[1:]))
        self.changes(runner.model, "compute_logits", logits=lambda it: it + nan, infinite=lambda it: it + torch.inf)
        self.changes(runner, "execute_model", features=self._features)
        self.changes(
            runner, "_sample", sampled=lambda it: replace(it, sampled_token_ids=it.sampled_token_ids + OUTSIDE)
        )
        self.changes(runner, "_get_slot_mappings", slots=lambda it: ({0: torch.full_like(it[0][0], 3)}, it[1]))
        if self.drafter is None:
            return
        drafter = self.drafter
        self.changes(
            drafter,
            "prepare_next_token_ids_padded",
            bonus=lambda it: (it[0] + OUTSIDE, it[1]),
            counts=lambda it: (it[0], it[1] + 9),
        )
        self.changes(drafter, "set_inputs_first_pass", draft_ids=self._draft_ids)
        self.changes(drafter, "_sample_draft_tokens", drafts=lambda it: (it[0] + OUTSIDE, it[1]))
        self.changes(drafter.model, "compute_logits", draft_logits=lambda it: it + nan)
        self.changes(drafter, "_update_positions_dependent_metadata", positions=self._positions)
        plain = drafter._update_positions_dependent_metadata

        def misplaced(positions: Any, metadata: Any, *args: Any, **named: Any) -> Any:
            answer = plain(positions, metadata, *args, **named)
            if self.now == "draft_slots":
                metadata.slot_mapping = torch.full_like(metadata.slot_mapping, 3)
            return answer

        drafter._update_positions_dependent_metadata = misplaced
        drafter.model.register_forward_hook(
            lambda _, __, it: tuple(each + nan for each in it) if self.now == "draft_hidden" else it
        )

    def above(self) -> None:
        """What must not get any further, and what is damaged before a tap looks at it."""

        def within(_: Any, args: Any, named: dict[str, Any]) -> Any:
            return args, named | {"input_ids": named["input_ids"].clamp(0, self.vocab - 1)}

        self.runner.model.register_forward_pre_hook(within, with_kwargs=True)
        keep = self.runner._bookkeeping_sync

        def kept(scheduled: Any, sampled: Any, *args: Any, **named: Any) -> Any:
            sampled.sampled_token_ids.clamp_(max=self.vocab - 1)
            return keep(scheduled, sampled, *args, **named)

        self.runner._bookkeeping_sync = kept
        if self.drafter is None:
            return
        self.drafter.model.register_forward_pre_hook(within, with_kwargs=True)
        prepare, propose = self.drafter.prepare_inputs_padded, self.drafter.propose
        most = self.drafter.num_speculative_tokens + 1

        def prepared(common: Any, verified: Any, counts: Any) -> Any:
            return prepare(common, verified, counts.clamp(1, most))

        def proposed(**named: Any) -> Any:
            if self.now == "extend_features":
                named["target_hidden_states"] = named["target_hidden_states"] + torch.nan
            return propose(**named)

        self.drafter.prepare_inputs_padded, self.drafter.propose = prepared, proposed

    def _features(self, answer: Any) -> Any:
        state = self.runner.execute_model_state
        self.runner.execute_model_state = state._replace(hidden_states=state.hidden_states + torch.nan)
        return answer

    def _draft_ids(self, answer: Any) -> Any:
        self.drafter.input_ids.fill_(OUTSIDE)
        return answer

    def _positions(self, answer: Any) -> Any:
        self.drafter.positions.add_(1)
        return answer


def main() -> int:
    engine = build(json.loads(sys.argv[1]))
    async_probe.configure(RECORD, [Rule("*", RECORD, tuple(KINDS))])
    plants = Plants(engine)
    plants.below()
    session = VllmSession(engine, Asked("tiny"), SHOWS, Opening("planted", lambda *_, **__: None, Busy(print)))
    plants.above()
    found = {}
    spec = ["bonus", "counts", "draft_ids", "drafts", "draft_logits", "positions", "draft_slots", "draft_hidden"]
    names = ["", "ids", "logits", "infinite", "features", "sampled", "slots"]
    names += [] if plants.drafter is None else [*spec, "extend_features"]
    for number, name in enumerate([*names, ""]):
        plants.now = name
        for each, prompt in enumerate((list(range(5, 45)), list(range(105, 125)))):
            session.add(f"{number}-{each}", prompt, Sampling(), speculative=True)
        while session.has_work:
            session.advance()
        session.flush_cache()
        for cache in plants.runner.kv_caches:
            cache.zero_()
        said = {finding.message() for finding in async_probe.drain()}
        found[name or ("sound" if number == 0 else "sound again")] = sorted(said)
    print(json.dumps(found), flush=True)
    os._exit(0)  # vLLM's threads do not end by themselves


if __name__ == "__main__":
    sys.exit(main())
