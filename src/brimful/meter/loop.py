"""`Meter`: what each step of a training loop did with the time and the memory it took.

    with brimful.Meter(model, tokens_per_step=batch * length) as meter:
        for batch in loader:
            loss = model(**batch).loss
            loss.backward()
            optimizer.step(); optimizer.zero_grad()
            meter.step()

It adds hooks and reads clocks; it never waits for the GPU. With several GPUs each process meters its own.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from brimful.errors import BadInput
from brimful.language import say
from brimful.meter.flops import Formula, counted, formula_of
from brimful.meter.hooks import Hooks, Seen
from brimful.meter.peak import Peak, declared_peak, no_peak, peak_of
from brimful.meter.samples import PHASES, EndSample, RunSample, StepSample
from brimful.meter.sinks import Jsonl, Runtime, Sink, Sinks, TensorBoard, Terminal, Wandb
from brimful.meter.timeline import PAUSE, Event, Lap, Timeline
from brimful.specs.estimate import Estimate
from brimful.specs.training import Checkpointing, Dtype

# Samples are built from marks in batches: between two steps the caches are cold, which costs time.
DRAIN_S = 2.0
WARMUP = 3  # steps in which PyTorch still allocates, compiles and tunes
_NAMES: dict[Any, Dtype] = {torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """A step whose device times are not available yet."""

    step: int
    at_s: float
    lap: Lap
    seen: Seen
    memory: dict[str, Any]


class Meter:
    def __init__(
        self,
        model: Any,
        *,
        tokens_per_step: int | None = None,
        sequence_tokens: int | None = None,
        flops_per_step: float | None = None,
        recompute: Checkpointing | None = None,
        peak_flops_per_s: float | None = None,
        gpu: str | None = None,
        gpus: int = 1,
        estimate: Estimate | None = None,
        warmup: int = WARMUP,
        terminal_s: float | None = 10.0,
        jsonl: str | Path | None = None,
        tensorboard: Any = None,
        wandb: Any = None,
        sinks: Sequence[Sink] = (),
        share: bool = True,
        count_waits: bool | None = None,
        forward_hooks: bool = True,
        clock: Callable[[], float] = time.perf_counter,
        **more: object,
    ) -> None:
        """Measure `model` while it trains. Everything except the model is optional.

        `tokens_per_step`: of this process, accumulation included; without it the integers that the model is
        called with are counted. `flops_per_step`: what MFU counts, if neither brimful's formula nor PyTorch's
        counter knows better. `recompute`: "full" or "selective" activation checkpointing. `peak_flops_per_s`
        or `gpu` (a name): what MFU is a share of; by default the card's own peak. `gpus`: how many share the
        work of this one process. `estimate`: what `brimful.fit` predicted. `terminal_s`: seconds between
        lines on stderr, None for none. `share`: leave the newest sample where `brimful watch` and a job's
        server find it. `count_waits`: how often the program waits for the device (.item() …); on by default
        on a GPU. `clock`: seconds of the program, for tests. Other keywords go into the file of samples.
        """
        for name, value in (("tokens_per_step", tokens_per_step), ("gpus", gpus)):
            if value is not None and value < 1:
                raise BadInput(say("meter.below_one", name=name, value=value))
        self._model, self._tokens, self._length = model, tokens_per_step, sequence_tokens
        self._declared_flops, self._gpus, self._warmup = flops_per_step, gpus, warmup
        self._peak = declared_peak(peak_flops_per_s) if peak_flops_per_s is not None else None
        self._gpu, self._estimate, self._more = gpu, estimate, more
        self._device = next((each.device for each in model.parameters()), torch.device("cpu"))
        cuda = self._device.type == "cuda"
        self._formula = None if flops_per_step else formula_of(model, checkpointing=recompute)
        self.timeline, self._clock = Timeline(self._event if cuda else None, clock), clock
        waits = cuda if count_waits is None else count_waits
        self.hooks = Hooks(model, self.timeline, forward=forward_hooks, waits=waits)
        self._counter: Any = None
        self._counted: tuple[float, float] | None = None  # FLOPs of a step: useful, recomputed
        self._phase_flops: dict[str, float] = {}  # while the first step is counted
        self._closed = False
        self._pending: deque[_Pending] = deque()
        self._steps, self._retries = 0, 0
        self._sums = _Sums()
        self._run: RunSample | None = None
        self._last: StepSample | None = None
        self._drained_s = -math.inf  # the first step is reported at once
        rank = int(os.environ.get("RANK", "0") or 0)
        # Of many processes only the first writes to the terminal and to the file that a job's engine reads.
        first = [] if rank else _first_rank_sinks(terminal_s, tensorboard, wandb)
        path = Path(jsonl) if jsonl else None
        if path is not None and rank:
            path = path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
        samples = "" if rank else os.environ.get("BRIMFUL_SAMPLES", "")
        self._shared = [Runtime(), *([Runtime(Path(samples))] if samples else [])] if share else []
        self._sinks = Sinks([*first, *([Jsonl(path)] if path else []), *self._shared, *sinks])

    # What a loop calls.

    def __enter__(self) -> Meter:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close(error="" if kind is None else kind.__name__)

    def start(self) -> None:
        self._began_s = self._clock()
        self.hooks.attach()
        compiled = hasattr(self._model, "_orig_mod")  # its kernels are not ops that could be counted
        if self._formula is None and not self._declared_flops and not compiled:
            from torch.utils.flop_counter import FlopCounterMode

            self._counter = FlopCounterMode(display=False)
            self._counter.__enter__()
            self.timeline.leaving = self._count
        for sink in self._shared:  # at once: a run that never finishes a step must be visible too
            # It will be reported at the first step, with the other sinks.
            with contextlib.suppress(Exception):
                sink.start(self._facts())

    def step(self, step: int | None = None) -> None:
        """An optimizer step is over. `step`: its number, if the loop has one."""
        self._stop_counting()
        lap = self.timeline.cut()
        self._steps = self._steps + 1 if step is None else step
        seen = self.hooks.take()
        self._pending.append(
            _Pending(step=self._steps, at_s=time.time(), lap=lap, seen=seen, memory=self._memory())
        )
        self._start_sinks()
        if self._clock() - self._drained_s >= DRAIN_S:
            self._drain()

    def pause(self, kind: str) -> AbstractContextManager[None]:
        """`with meter.pause("checkpoint"):` not training: left out of the mean, and shown separately."""
        return self.hooks.pause(kind)

    def data(self, loader: Iterable[Any]) -> Iterator[Any]:
        """`for batch in meter.data(batches):` this is waiting for data. A DataLoader does not need it."""
        iterator = iter(loader)
        while True:
            with self.hooks.part("data"):
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            yield batch

    @property
    def last(self) -> StepSample | None:
        """The newest step that the device has finished."""
        self._drain()
        return self._last

    def summary(self) -> EndSample:
        """The means so far: steady steps only, without pauses."""
        self._drain()
        return self._sums.end(self, error="")

    def close(self, *, error: str = "") -> None:
        if self._closed:
            return
        self._closed = True
        self._stop_counting()
        self.hooks.detach()
        self._start_sinks()
        with contextlib.suppress(RuntimeError):  # a dead device has nothing more to report
            if self._pending and self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # the run is over: nothing is slowed down
            self._drain()
        self._sinks.end(self._sums.end(self, error=error))

    def _start_sinks(self) -> None:
        """Once: its facts are known at the first step."""
        if self._run is None:
            self._run = self._facts()
            self._sinks.start(self._run)

    # What it knows.

    @property
    def wall_s(self) -> float:
        return self._clock() - self._began_s

    @property
    def peak(self) -> Peak:
        """What MFU is a share of. Known once the first forward pass has shown the number format."""
        if self._peak is None:
            card, memory = self._gpu, None
            if card is None and self._device.type == "cuda":
                found = torch.cuda.get_device_properties(self._device)
                card, memory = found.name, found.total_memory
            if card is None:
                return no_peak(self._device.type)
            dtype = _NAMES.get(self.hooks.dtype, "float32")
            tf32 = torch.get_float32_matmul_precision() != "highest" or torch.backends.cuda.matmul.allow_tf32
            peak = peak_of(card, memory_bytes=memory, dtype=dtype, tf32=tf32)
            if self.hooks.dtype is None:
                return peak  # a guess before the first step
            self._peak = peak
        return self._peak

    def _facts(self) -> RunSample:
        model = getattr(self._model, "_orig_mod", self._model)
        cuda = self._device.type == "cuda"
        card = torch.cuda.get_device_properties(self._device) if cuda else None
        peak = self.peak
        useful, again = self._flops(Seen(inputs=[(self._tokens or 0, self._length or 1)]))
        return RunSample(
            at_s=time.time(),
            pid=os.getpid(),
            host=socket.gethostname(),
            command=tuple(each[:300] for each in sys.argv[:40]),
            job=os.environ.get("BRIMFUL_JOB"),
            rank=int(os.environ.get("RANK", "0") or 0),
            world=int(os.environ.get("WORLD_SIZE", "1") or 1),
            model=type(model).__name__,
            parameters=sum(each.numel() for each in model.parameters()),
            tokens_per_step=self._tokens,
            flops_per_step=useful or None,
            recompute_flops=again or 0.0,
            flops_source=self._flops_source(),
            device=str(self._device),
            gpu=self._gpu or (card.name if card else None),
            gpu_uuid=_uuid(card),
            peak_flops_per_s=peak.flops_per_s,
            peak_format=peak.format,
            peak_source=peak.source,
            torch=torch.__version__,
            estimate=self._estimate.as_dict() if self._estimate else None,
            more={
                name: value if isinstance(value, str | int | float | bool | None) else str(value)
                for name, value in self._more.items()
            },
        )

    def _flops_source(self) -> str:
        if self._declared_flops:
            return "declared"
        if self._formula:
            return f"formula: {self._formula.model.name}"
        return "counted" if self._counted else "no_flops"

    # How a step is measured.

    def _event(self) -> Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))  # the loop's current card may be another
        found: Event = event
        return found

    def _count(self, phase: str) -> None:
        """The FLOPs since the previous part ended belong to this one."""
        new = float(self._counter.get_total_flops()) - sum(self._phase_flops.values())
        self._phase_flops[phase] = self._phase_flops.get(phase, 0.0) + new

    def _stop_counting(self) -> None:
        if self._counter is None:
            return
        self._count(self.timeline.phase)
        self.timeline.leaving = None
        self._counter.__exit__(None, None, None)
        self._counter = None
        # A backward pass that no hook showed is in the rest; an evaluation belongs to no step.
        trained = {each: n for each, n in self._phase_flops.items() if not each.startswith(PAUSE)}
        total, forward = sum(trained.values()), trained.get("forward", 0.0)
        if total:
            self._counted = counted(forward, total - forward)

    def _flops(self, seen: Seen) -> tuple[float | None, float | None]:
        """For one step: what MFU counts, and what HFU adds."""
        if self._declared_flops:
            return self._declared_flops, 0.0
        if self._formula is not None:
            return self._formula_flops(self._formula, seen.inputs)
        return self._counted if self._counted else (None, None)

    def _formula_flops(
        self, formula: Formula, inputs: list[tuple[int, int]]
    ) -> tuple[float | None, float | None]:
        total = sum(tokens for tokens, _ in inputs)
        if not total:
            inputs, total = [(1, self._length or 1)], 1
            if self._tokens is None or self._length is None:
                return None, None
        share = (self._tokens or total) / total  # if both are known, the caller knows better
        parts = [formula.flops(tokens, sequence_tokens=self._length or length) for tokens, length in inputs]
        return share * sum(useful for useful, _ in parts), share * sum(again for _, again in parts)

    def _memory(self) -> dict[str, Any]:
        """What PyTorch's allocator holds. Reads only host-side counters."""
        if self._device.type != "cuda":
            return {}
        found = torch.cuda.memory_stats_as_nested_dict(self._device)
        if not found:
            return {}
        allocated, reserved = found["allocated_bytes"]["all"], found["reserved_bytes"]["all"]
        retries, self._retries = found["num_alloc_retries"] - self._retries, found["num_alloc_retries"]
        pieces = found["inactive_split_bytes"]["all"]["current"]
        return {
            "allocated_bytes": allocated["current"],
            "reserved_bytes": reserved["current"],
            "peak_allocated_bytes": allocated["peak"],
            "peak_reserved_bytes": reserved["peak"],
            "fragmentation": pieces / reserved["current"] if reserved["current"] else 0.0,
            "malloc_retries": retries,
        }

    def _drain(self) -> None:
        self._drained_s = self._clock()
        while self._pending and self._pending[0].lap.passed:
            sample = self._sample(self._pending.popleft())
            self._last = sample
            self._sums.add(sample)
            self._sinks.step(sample)
        self._sinks.flush()

    def _sample(self, done: _Pending) -> StepSample:
        host = done.lap.host_s()
        device = done.lap.device_s()
        parts = host if device is None else device
        step_s = sum(seconds for phase, seconds in parts.items() if not phase.startswith(PAUSE))
        phases: dict[str, Any] = {f"{phase}_s": parts.get(phase, 0.0) for phase in PHASES}
        useful, again = self._flops(done.seen)
        peak = self.peak.flops_per_s
        most = peak * step_s * self._gpus if peak and step_s else None
        tokens = self._tokens or sum(n for n, _ in done.seen.inputs) or None
        return StepSample(
            at_s=done.at_s,
            step=done.step,
            step_s=step_s,
            warmup=self._sums.steps < self._warmup,
            clock="host" if device is None else "cuda",
            **phases,
            host_s={} if device is None else {phase: host.get(phase, 0.0) for phase in PHASES},
            pauses_s={p.removeprefix(PAUSE): s for p, s in parts.items() if p.startswith(PAUSE)},
            syncs=done.seen.syncs if self.hooks.waits else None,
            sync_s=done.seen.sync_s if self.hooks.waits else None,
            comm_s=done.seen.comm_s if done.seen.collectives else None,
            micro_steps=done.seen.micro_steps,
            tokens=tokens,
            tokens_per_s=tokens / step_s if tokens and step_s else None,
            mfu=useful / most if useful and most else None,
            hfu=(useful + (again or 0.0)) / most if useful and most else None,
            **done.memory,
            **self._against_estimate(step_s, done.memory),
        )

    def _against_estimate(self, step_s: float, memory: dict[str, Any]) -> dict[str, Any]:
        if self._estimate is None:
            return {}
        likely = self._estimate.memory
        ratios = {"step_s_vs_estimate": step_s / self._estimate.speed.step_s.likely}
        if memory:
            allocated, reserved = memory["peak_allocated_bytes"], memory["peak_reserved_bytes"]
            ratios["allocated_vs_estimate"] = allocated / likely.allocated_bytes.likely
            ratios["reserved_vs_estimate"] = reserved / likely.reserved_bytes.likely
        return ratios


class _Sums:
    """Over the steady steps; pauses of all steps."""

    def __init__(self) -> None:
        self.steps = self.steady = 0
        self._step_s = self._tokens = self._mfu_s = self._hfu_s = self._known_s = 0.0
        self._parts_s = dict.fromkeys(PHASES, 0.0)
        self._pauses_s: dict[str, float] = {}
        self._retries: int | None = None

    def add(self, sample: StepSample) -> None:
        self.steps += 1
        for kind, seconds in sample.pauses_s.items():
            self._pauses_s[kind] = self._pauses_s.get(kind, 0.0) + seconds
        if sample.malloc_retries is not None:
            self._retries = (self._retries or 0) + sample.malloc_retries
        if sample.warmup:
            return
        self.steady += 1
        self._step_s += sample.step_s
        self._tokens += sample.tokens or 0
        for phase, seconds in sample.parts_s.items():
            self._parts_s[phase] += seconds
        if sample.mfu is not None and sample.hfu is not None:
            self._known_s += sample.step_s
            self._mfu_s += sample.mfu * sample.step_s
            self._hfu_s += sample.hfu * sample.step_s

    def end(self, meter: Meter, *, error: str) -> EndSample:
        n, last = self.steady, meter._last
        return EndSample(
            at_s=time.time(),
            steps=self.steps,
            steady_steps=n,
            wall_s=meter.wall_s,
            step_s=self._step_s / n if n else None,
            tokens_per_s=self._tokens / self._step_s if self._tokens and self._step_s else None,
            mfu=self._mfu_s / self._known_s if self._known_s else None,
            hfu=self._hfu_s / self._known_s if self._known_s else None,
            parts_s={phase: seconds / n for phase, seconds in self._parts_s.items()} if n else {},
            pauses_s=dict(self._pauses_s),
            peak_allocated_bytes=last.peak_allocated_bytes if last else None,
            peak_reserved_bytes=last.peak_reserved_bytes if last else None,
            malloc_retries=self._retries,
            error=error,
        )


def _uuid(card: Any) -> str | None:
    uuid = getattr(card, "uuid", None)
    return f"GPU-{str(uuid).removeprefix('GPU-')}" if uuid else None  # as the driver writes it


def _first_rank_sinks(terminal_s: float | None, tensorboard: Any, wandb: Any) -> list[Sink]:
    return [
        *([Terminal(every_s=terminal_s)] if terminal_s is not None else []),
        *([TensorBoard(tensorboard)] if tensorboard is not None else []),
        *([Wandb(wandb)] if wandb else []),
    ]
