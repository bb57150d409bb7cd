"""Where samples go: the terminal, a file, `brimful watch`, the job's server, TensorBoard, W&B.

A sink never stops a training run. One that fails is reported once and skipped from then on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Protocol

from brimful.errors import BadInput
from brimful.language import Number, Percent, Plain, Seconds, Several, Size, Value, figures, say, told
from brimful.language.failures import needs_package
from brimful.meter.runtime import Place
from brimful.meter.samples import PHASES, EndSample, RunSample, StepSample, as_line, source_said
from brimful.units import GIB


class Sink(Protocol):
    """Takes samples. Each method may raise anything; see `Sinks`."""

    def start(self, run: RunSample) -> None: ...
    def step(self, sample: StepSample) -> None: ...
    def end(self, sample: EndSample) -> None: ...


class Sinks:
    """All sinks of one run."""

    def __init__(self, sinks: list[Sink]) -> None:
        self._sinks = sinks

    def start(self, run: RunSample) -> None:
        self._each(lambda sink: sink.start(run))

    def step(self, sample: StepSample) -> None:
        self._each(lambda sink: sink.step(sample))

    def end(self, sample: EndSample) -> None:
        self._each(lambda sink: sink.end(sample))

    def flush(self) -> None:
        """No more samples for now: a buffering sink writes what it has."""
        self._each(lambda sink: sink.flush() if isinstance(sink, Jsonl | Runtime) else None)

    def _each(self, act: Callable[[Sink], None]) -> None:
        for sink in list(self._sinks):
            try:
                act(sink)
            except Exception as error:  # noqa: BLE001 - whatever a disk or a tracker does, training goes on
                self._sinks.remove(sink)
                tell(say("meter.sink_failed", sink=type(sink).__name__, error=f"{error!r:.200}"))


def tell(said: Value, out: IO[str] | None = None) -> None:
    """A line on stderr, in the language of the locale."""
    out = out or sys.stderr
    out.write(f"brimful: {told(said)}\n")
    out.flush()


class Jsonl:
    """A file of samples, one line each; `read_samples` reads it, even while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def start(self, run: RunSample) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # A new run begins a new file: two runs in one would be read as one.
        self._file = self._path.open("w", encoding="utf-8")
        self._write(as_line(run))

    def step(self, sample: StepSample) -> None:
        self._write(as_line(sample))

    def end(self, sample: EndSample) -> None:
        self._write(as_line(sample))
        assert self._file is not None
        self._file.close()

    def flush(self) -> None:
        if self._file is not None and not self._file.closed:
            self._file.flush()

    def _write(self, line: str) -> None:
        assert self._file is not None
        self._file.write(line + "\n")


class Runtime:
    """The newest sample, where `brimful watch` and `brimful admin exporter` look for it.

    With a path, in the file that a brimful server reads; it stays there when the run is over.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._place: Place | None = None
        self._run: RunSample | None = None
        self._step: StepSample | None = None
        self._told = True

    def start(self, run: RunSample) -> None:
        self._place, self._run = self._place or Place(self._path), run
        self._place.leave(run, None)

    def step(self, sample: StepSample) -> None:
        self._step, self._told = sample, False

    def flush(self) -> None:
        if self._place is not None and self._run is not None and not self._told:
            self._place.leave(self._run, self._step)
            self._told = True

    def end(self, sample: EndSample) -> None:
        if self._place is None or self._run is None:
            return
        if self._path is None:
            self._place.close()
        else:
            self._place.leave(self._run, self._step, sample)


class Terminal:
    """A line every few seconds, and the means at the end."""

    def __init__(self, out: IO[str] | None = None, *, every_s: float = 10.0) -> None:
        self._out, self._every_s, self._told = out, every_s, 0.0
        self._run: RunSample | None = None

    def start(self, run: RunSample) -> None:
        self._run = run

    def step(self, sample: StepSample) -> None:
        assert self._run is not None
        if sample.at_s - self._told >= self._every_s:
            self._told = sample.at_s
            tell(step_said(self._run, sample), self._out)

    def end(self, sample: EndSample) -> None:
        assert self._run is not None
        for said in end_said(self._run, sample):
            tell(said, self._out)


class TensorBoard:
    """Scalars under `brimful/`, by PyTorch's own writer."""

    def __init__(self, folder_or_writer: Any) -> None:
        self._own = isinstance(folder_or_writer, str | Path)
        self._writer = folder_or_writer
        if self._own:
            with needs("tensorboard=", "tensorboard"):
                from torch.utils.tensorboard import SummaryWriter
            self._writer = SummaryWriter(log_dir=str(folder_or_writer))

    def start(self, run: RunSample) -> None:
        self._writer.add_text("brimful/run", as_line(run))

    def step(self, sample: StepSample) -> None:
        for name, value in scalars(sample):
            self._writer.add_scalar(f"brimful/{name}", value, sample.step)

    def end(self, _sample: EndSample) -> None:
        self._writer.close() if self._own else self._writer.flush()


class Wandb:
    """Into the Weights & Biases run that the script has started or passes in."""

    def __init__(self, run: Any) -> None:
        if run is True:
            with needs("wandb=True", "wandb"):
                import wandb
            if wandb.run is None:
                raise BadInput(say("meter.no_wandb_run"))
            run = wandb.run
        self._run = run

    def start(self, run: RunSample) -> None:
        self._run.config.update({"brimful_peak_flops_per_s": run.peak_flops_per_s}, allow_val_change=True)

    def step(self, sample: StepSample) -> None:
        # Without `commit` the numbers join the script's own for the same step, whenever it logs them.
        self._run.log({f"brimful/{name}": value for name, value in scalars(sample)}, commit=False)

    def end(self, sample: EndSample) -> None:
        if sample.mfu is not None:
            self._run.summary["brimful/mean_mfu"] = sample.mfu


def scalars(sample: StepSample) -> Iterator[tuple[str, float]]:
    """The numbers of a step that make a curve."""
    for name in ("step_s", "tokens_per_s", "mfu", "hfu", "fragmentation", "malloc_retries", "syncs"):
        value = getattr(sample, name)
        if value is not None:
            yield name, float(value)
    for phase, seconds in sample.parts_s.items():
        yield f"{phase}_frac", seconds / sample.step_s if sample.step_s else 0.0
    for name in ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes"):
        value = getattr(sample, name)
        if value is not None:
            yield name.replace("_bytes", "_gib"), value / GIB
    for name, seconds in sample.pauses_s.items():
        yield f"pause_{name}_s", seconds


def step_said(run: RunSample, sample: StepSample) -> Value:
    """'step 120  412 ms  39,800 tokens/s  MFU 41.2 % of 117 TFLOPS bf16  data 2 % · forward 31 % · …'"""
    parts = [say("meter.step", step=Plain(sample.step)), *_rates(run, sample)]
    if sample.peak_allocated_bytes is not None and sample.reserved_bytes is not None:
        sizes = {"peak": Size(sample.peak_allocated_bytes), "reserved": Size(sample.reserved_bytes)}
        parts.append(say("meter.peak_of_reserved", **sizes))
    if sample.malloc_retries:
        parts.append(say("meter.malloc_retries", n=sample.malloc_retries))
    if sample.step_s_vs_estimate is not None:
        parts.append(say("meter.times_the_estimate", factor=Number(sample.step_s_vs_estimate, 2)))
    return Several(tuple(parts), between="  ")


def end_said(run: RunSample, sample: EndSample) -> Iterator[Value]:
    if sample.step_s is None:
        yield say("meter.too_few_steps", n=sample.steps)
        return
    parts = [say("meter.steady_mean", n=sample.steady_steps), *_rates(run, sample)]
    if sample.mfu is None and run.peak_flops_per_s is None:
        parts.append(say("meter.no_mfu", why=source_said(run.peak_source)))
    yield Several(tuple(parts), between="  ")
    if sample.pauses_s:
        kinds = tuple(Several((kind, Seconds(s)), between=" ") for kind, s in sample.pauses_s.items())
        share = sum(sample.pauses_s.values()) / sample.wall_s if sample.wall_s else 0.0
        wall = Seconds(sample.wall_s)
        yield say("meter.not_counted", kinds=Several(kinds), share=Percent(share), wall=wall)


def _rates(run: RunSample, sample: StepSample | EndSample) -> Iterator[Value]:
    yield Seconds(sample.step_s or 0.0)
    if sample.tokens_per_s is not None:
        yield say("meter.tokens_per_s", rate=Number(sample.tokens_per_s))
    if sample.mfu is not None:
        yield say("meter.mfu_of", mfu=Percent(sample.mfu, 1), peak=peak_said(run))
    whole = sum(sample.parts_s.values())
    if whole:
        shares = {phase: Percent(sample.parts_s.get(phase, 0.0) / whole) for phase in PHASES}
        parts = (Several((say(f"meter.phase_{phase}"), share), " ") for phase, share in shares.items())
        yield Several(tuple(parts), between=" · ")


def peak_said(run: RunSample) -> Value:
    """'117 TFLOPS bf16', or '2.5 GFLOPS' if that little was declared."""
    peak = run.peak_flops_per_s or 0.0
    unit, size = ("TFLOPS", 1e12) if peak >= 1e12 else ("GFLOPS", 1e9)
    basis = run.peak_format or say("meter.as_declared")
    return Several((figures(peak / size, 4), unit, basis), between=" ")


def needs(what: str, package: str) -> AbstractContextManager[None]:
    return needs_package("meter.needs_package", BadInput, code=None, what=what, package=package)
