"""One arm, inside its worker: put the reverts in place, build the engine, run the workload, look again.

This module is imported by the worker before any revert is in place, so it imports nothing of the engine, and
of the scenario's classes only what :func:`run_arm` unpickles afterwards. Everything is reported as it
happens (see ``ledger.py``); whatever goes wrong is reported too, so this function only returns.
"""

from __future__ import annotations

import pickle
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from specdebug.assets import checkpoint_path
from specdebug.errors import ConfigError, ContentError, SpecDebugError
from specdebug.reference.config import read_config
from specdebug.scenario.text import Decode, decoder, load_tokenizer
from specdebug.verdict.device_errors import device_failure, device_lost, out_of_memory
from specdebug.verdict.outcome import EXIT_CODES
from specdebug.workers.coredump import wait_for_coredump
from specdebug.workers.device import DeviceUnavailable, claim, leave_now
from specdebug.workers.machine_failure import MachineFailed, machine_failure
from specdebug.workers.wire import Sink

if TYPE_CHECKING:
    from specdebug.faults.injector import Injector
    from specdebug.run.loop import RunLoop
    from specdebug.run.oracle import Judge
    from specdebug.scenario.model import AcceptOracle, OracleSpec, Scenario


class Onlooker(Protocol):
    """Somebody who wants to see an arm's run."""

    def building(self) -> None:
        """The engine is about to be built, its graphs to be captured."""

    def built(self, loop: RunLoop) -> None:
        """It is there and has done nothing yet."""


def run_arm(payload: Mapping[str, Any], sink: Sink, onlooker: Onlooker | None = None) -> None:
    """Run one arm of a scenario. ``payload`` is what ``replay.ArmRun.job`` packs.

    When the arm costs this process its device, it ends the process as well.
    """
    try:
        _Arm(payload, sink, onlooker).run()
    except DeviceUnavailable as error:
        sink.emit("usage", message=str(error), option=["device"], unavailable=True)
    except ConfigError as error:
        # The engine's InvalidOption, whose class is not imported before the reverts are in place.
        option = list(getattr(error, "key_path", ()))
        sink.emit("usage", message=getattr(error, "reason", str(error)), option=option)
    except SpecDebugError as error:
        sink.emit("usage", message=str(error))


class _Busy:
    """What the engine says it is busy with, and the kernels compiled meanwhile, as one line at a time."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._said = ""

    def said(self, text: str) -> None:
        self._said = text
        self._sink.emit("progress", text=text)

    def compiling(self, kernel: str) -> None:
        self._sink.emit("progress", text=f"compiling {kernel}")

    def compiled(self) -> None:
        self._sink.emit("progress", text=self._said)

    def over(self) -> None:
        """A new stage begins; the event that says so ends what was said before it."""
        self._said = ""


class _Arm:
    def __init__(self, payload: Mapping[str, Any], sink: Sink, onlooker: Onlooker | None) -> None:
        self._payload = payload
        self._onlooker = onlooker
        self._sink = sink
        self._stages: dict[str, float] = {}
        self._busy = _Busy(sink)
        self._coredump: str | None = None
        self._lost = False
        self._built = False
        self._injector: Injector | None = None

    def run(self) -> None:
        with self._stage("revert"):
            hits = self._revert()
        if hits is None:
            return
        scenario: Scenario = pickle.loads(self._payload["scenario"])
        try:
            with self._stage("build"):
                loop, judge, accept = self._build(scenario)
                self._built = True
                if self._onlooker is not None:
                    self._onlooker.built(loop)
            self._serve(loop, judge, accept)
        except MachineFailed as error:
            self._sink.emit("machine", cause=error.failure.cause, line=error.failure.line)
        except SpecDebugError as error:
            if error.exit_code == EXIT_CODES["unknown"] or _lacks_flashinfer(error):
                self._sink.emit("impossible", reason=str(error), unavailable=True)
            elif error.exit_code == 2:
                raise _placed(error, scenario, self._payload["arm"]) from None
            else:
                self._fail(error)
        except Exception as error:
            self._fail(error)
        finally:
            from specdebug import async_probe

            if self._injector is not None:
                self._injector.finish()
            self._sink.emit("coverage", reached=async_probe.reached(), hits=hits())
        self._sink.emit("done", stages_s=self._stages, peak_rss_mb=_peak_rss_mb())
        if self._lost:
            self._leave()

    def _fail(self, error: Exception) -> None:
        """An exception outside the run loop, such as out of the engine's construction.

        A device, or a host, that is too small for the engine says nothing of the engine.
        """
        from specdebug.run.exceptions import out_of_host_memory, violation_of

        traceback.print_exc()
        machine = next(filter(None, map(machine_failure, _chain(error))), None)
        if machine is not None:
            self._sink.emit("machine", cause=machine.cause, line=machine.line)
            self._lost = machine.cause == "device"
            return
        memory = next(filter(None, map(out_of_memory, _chain(error))), None)
        if memory is not None and not device_lost(error):
            reason = f"{memory} (while loading or capturing graphs)"
            self._sink.emit("impossible", reason=reason, unavailable=True)
            return
        if not self._built and device_failure(error) is None and out_of_host_memory(error):
            reason = f"the engine asks for more memory than this machine has: {' '.join(str(error).split())}"
            self._sink.emit("impossible", reason=reason, unavailable=True)
            return
        self._lost = device_lost(error)
        self._sink.emit("violation", **asdict(violation_of(error, 0)))

    def _leave(self) -> None:
        """Everything is reported, the device is gone: end here, while the engine still holds what it had on it."""
        if self._coredump is not None:
            wait_for_coredump(self._coredump)
        leave_now()

    def _revert(self) -> Callable[[], dict[str, dict[str, int]]] | None:
        """Put the fixes' reverts in place; returns a reader of how often each edit has run, by fix.

        None when they cannot be put in place, which makes the run impossible rather than the scenario wrong.
        """
        from specdebug.patching import PatchError, apply

        toggles = pickle.loads(self._payload["toggles"])
        try:
            applied = apply([patch for toggle in toggles for patch in toggle.patches], "import")
        except PatchError as error:
            self._sink.emit("impossible", reason=str(error))
            return None

        def hits() -> dict[str, dict[str, int]]:
            counts = applied.hits()
            return {
                str(toggle.pr): {e.id: counts[e.id] for patch in toggle.patches for e in patch.edits}
                for toggle in toggles
            }

        self._sink.emit("reverts", hits=hits())
        return hits

    def _serve(self, loop: RunLoop, judge: Judge, accept: AcceptOracle | None) -> None:
        from specdebug.run.loop import Stopped

        try:
            with self._stage("run"):
                loop.run()
                loop.settle()
            for rid, count in judge.zero_filled.items():
                self._note(f"{rid}: draft KV of {count} cached positions zero-filled by policy, not compared")
            if accept is not None:
                with self._stage("cold"):
                    self._measure_cold(loop, judge, accept.min_ratio)
                    loop.settle()
        except Stopped:
            self._lost = loop.lost
        finally:
            self._sink.emit("looked", counts=dict(judge.looks))

    def _build(self, scenario: Scenario) -> tuple[RunLoop, Judge, AcceptOracle | None]:
        import torch

        from specdebug import async_probe
        from specdebug.faults.injector import Injector
        from specdebug.run.driver import WorkloadDriver
        from specdebug.run.loop import RunLoop
        from specdebug.scenario.packs import activate
        from specdebug.scenario.random_streams import stream
        from specdebug.targets.embedded import build_engine, sampling_params

        arm, seed, packs = self._payload["arm"], self._payload["seed"], pickle.loads(self._payload["packs"])
        device = self._claim(scenario)
        activate(packs, scenario.arms[arm].mode)
        if self._onlooker is not None:
            self._onlooker.building()
        engine = build_engine(scenario.engine_of(arm), seed)
        self._busy.said("")  # what the engine said last, such as what it captured, is done
        if device != "cpu":
            async_probe.drain()  # what warm-ups before a capture said of their dummy inputs is nobody's failure
        tokenizer = load_tokenizer(engine.config.model)
        workload = pickle.loads(self._payload["workload"])
        faults = scenario.faults_of(arm)
        self._sink.emit(
            "setup", probes_enabled=len(packs), requests=len(workload.requests), faults=[str(each) for each in faults]
        )
        oracles = scenario.oracles_of(arm)
        decode = decoder(tokenizer)
        judge = self._judge(oracles, engine.config, decode)
        engine.observer = judge
        self._injector = Injector(faults, seed, self._sink, stream)
        self._injector.attach(engine)
        loop = RunLoop(
            engine,
            WorkloadDriver(workload),
            self._sink,
            judge,
            max_steps=scenario.limits.max_steps,
            check_pools=oracles.pools,
            make_sampling=sampling_params,
            decode=decode,
            vocab_size=read_config(checkpoint_path(engine.config.model)).vocab_size,
            synchronize=None if device == "cpu" else torch.cuda.synchronize,
            injector=self._injector,
        )
        return loop, judge, oracles.accept

    def _claim(self, scenario: Scenario) -> str:
        """Take the arm's device, say what the arm runs on, and pass on what the engine is busy with."""
        from specdebug.engine import EngineConfig, progress
        from specdebug.workers.compiling import watch_triton

        config = EngineConfig.from_dict(scenario.engine_of(self._payload["arm"]))
        label = f"{scenario.name}-{self._payload['arm']}"
        if config.device != "cpu":
            self._sink.emit("claiming", device=config.device)
        stack = claim(config.device, config.attention_backend, config.dtype, label)
        self._coredump = stack.get("coredump")
        self._sink.emit("stack", **stack)
        progress.listen(self._busy.said)
        if config.device != "cpu":
            watch_triton(self._busy.compiling, self._busy.compiled)
        return config.device

    def _judge(self, oracles: OracleSpec, config: Any, decode: Decode) -> Judge:
        """The observer, with a reference model only if something is to be compared with it."""
        from specdebug.run.dense import DenseReference
        from specdebug.run.oracle import Judge, OracleSettings

        spec, draft_model = config.speculative, config.draft_model if oracles.draft_kv else None
        draft_kv = draft_model is not None
        settings = OracleSettings(
            lossless=oracles.lossless,
            draft_kv=draft_kv,
            dtype=config.dtype,
            zero_fill=spec is not None and spec.draft_kv_on_hit == "zero_fill",
            each_step=oracles.each_step,
        )
        reference = DenseReference(config.model, draft_model) if oracles.lossless or draft_kv else None
        return Judge(
            settings,
            reference,
            report=lambda violation: self._sink.emit("violation", **asdict(violation)),
            tie=lambda rid, tie: self._sink.emit("tie", rid=rid, **asdict(tie)),
            decode=decode,
            # Arms share the cores: on a CPU, count what the engine computed and not what it waited for.
            clock=time.process_time if config.device == "cpu" else time.perf_counter,
        )

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._sink.emit("stage", name=name)
        self._busy.over()
        began = time.perf_counter()
        try:
            yield
        finally:
            self._stages[name] = round(time.perf_counter() - began, 4)

    def _note(self, text: str) -> None:
        self._sink.emit("note", text=text)

    def _measure_cold(self, loop: RunLoop, judge: Judge, min_ratio: float) -> None:
        """Serve every request that hit the cache again, cold, and compare what was accepted, group by group.

        Where the dtype's rounding made a greedy request go on otherwise than its cold twin, what comes after is another
        text, whose drafts are as good as they are: only what they have in common is compared.
        """
        from specdebug.run.loop import COLD
        from specdebug.verdict.outcome import Violation, first_difference, mean

        judge.active = False
        lengths: dict[str, tuple[list[int], list[int]]] = {}
        for rid, arrival in loop.arrived.items():
            request = loop.engine.requests[rid]
            if not request.cached_tokens or not request.accept_lengths or request.finish_reason == "abort":
                continue
            cold = loop.serve_cold(rid)
            self._sink.emit("cold", rid=rid, accept_lengths=cold)
            hit_lengths, cold_lengths = lengths.setdefault(arrival.group, ([], []))
            parted = first_difference(request.output_ids, loop.engine.requests[COLD + rid].output_ids)
            if arrival.sampling.temperature > 0:
                parted = None
            hit_lengths.extend(over_before(parted, request.accept_lengths))
            cold_lengths.extend(over_before(parted, cold))
        for group, both in lengths.items():
            hit_mean, cold_mean = (mean(side) or 0.0 for side in both)
            if hit_mean < min_ratio * cold_mean:
                detail = (
                    f"requests of group {group} accept {hit_mean:.2f} tokens a verify after a cache hit, "
                    f"{cold_mean:.2f} cold: less than {min_ratio:g} of it"
                )
                loop.report(Violation("accept-drop", group, None, detail))


def over_before(position: int | None, accept_lengths: Sequence[int]) -> list[int]:
    """Accept lengths of the verifies whose tokens all lie before an output position; None: of all of them.

    The first output token is the prefill's.
    """
    ends = accumulate(accept_lengths, initial=1)
    next(ends)
    return [n for n, end in zip(accept_lengths, ends, strict=True) if position is None or end <= position]


def _lacks_flashinfer(error: SpecDebugError) -> bool:
    """Whether an arm cannot run because FlashInfer is missing or does not compile: this machine's lack, which other
    arms may not share. Called once the reverts are in place, so the engine can be imported."""
    from specdebug.engine.errors import FlashInferError

    return isinstance(error, FlashInferError)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those it was raised over: a capture that memory ran out in ends with an error of its own."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _placed(error: SpecDebugError, scenario: Scenario, arm: str) -> SpecDebugError:
    """The error with the line of the group whose request the engine rejects; any other as it is."""
    rid = getattr(error, "rid", None)  # the class is not imported before the reverts are in place
    for number, group in enumerate(scenario.workload):
        if rid in group.rids:
            return ContentError(f"arm '{arm}': {error}", scenario.where("workload", number))
    return error


def _peak_rss_mb() -> float:
    """Highest resident memory of this process so far, in MiB (macOS counts in bytes, Linux in KiB)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak / 2**20 if sys.platform == "darwin" else peak / 2**10)
