"""Target KV, with ``each_step``: what a step wrote may stay cached and never be read by the request that wrote it."""

from __future__ import annotations

import torch

from specdebug.events import Finishing, Going, OfRequest
from specdebug.run.oracles.base import Oracle, OracleSettings
from specdebug.run.oracles.kv import report_first_bad


class TargetKV(Oracle):
    """Compares the target's cache of a request with the reference's, all layers of a position together. In float32
    only: how far half precision moves deep layers' KV was not measured."""

    name = "target_kv"
    needs = frozenset({"kv"})
    hears = (Finishing, Going)

    @classmethod
    def wanted(cls, settings: OracleSettings) -> bool:
        return settings.spec.each_step and settings.spec.lossless and settings.target.dtype == "float32"

    @torch.no_grad()
    def on(self, event: OfRequest) -> None:
        reference, request = self.bench.reference, event.request
        if reference is None:
            return
        self.bench.looked(self.name)
        stop = request.kv_len
        expected = reference.target_kv(request.all_ids, stop)
        keys, values = (
            (ours.cpu().transpose(0, 1).flatten(1, 2), want)
            for ours, want in zip(self.bench.session.target_kv(request, 0, stop), expected, strict=True)
        )
        report_first_bad(self.bench, "target", request, stop, (keys, values))
