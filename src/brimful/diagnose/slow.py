"""Why is it slow? From samples to a cause, its evidence in numbers, and the change that helps.

Each rule looks at what was measured and says which part of the time its cause takes; the largest is the
answer. A rule whose numbers are not there stays silent and says what it would need. Nothing is guessed: where
the time is spent well nothing is found, and where too little was measured, that is the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from brimful.errors import NotFound
from brimful.meter.samples import EndSample, GpuSample, RunSample, Sample, StepSample
from brimful.specs.gpu import find_gpu
from brimful.units import show_seconds

HEALTHY, CANNOT_TELL = "healthy", "cannot tell"
LEAST_STEPS = 5  # after warming up: fewer say nothing about the next one
_RECENT = 500  # steps that are looked at: what it does now, not what it did yesterday
_WORTH = 0.10  # of the time: what is less is not why it is slow
_PAUSE_FRAC = 0.05  # of the time that evaluation may take before somebody asks
_GOOD_MFU = 0.35  # a transformer that reaches it leaves little to find; published runs lie at 0.35 to 0.60
_AS_PREDICTED = 1.3  # times the predicted step: nine in ten published runs lie within 1.7
_BRIEF_S = 0.005  # of arithmetic in a micro-step: less, and what surrounds it weighs more
_LOW_CLOCK = 0.85
_PEAK_OFF = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause: what it costs, how that is known, what to change."""

    cause: str
    says: str
    evidence: tuple[str, ...]
    change: str
    lost_frac: float  # of the time, that the change could give back

    def as_dict(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "says": self.says,
            "evidence": list(self.evidence),
            "change": self.change,
            "lost_frac": round(self.lost_frac, 4),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The cause that costs most, the others behind it, and what was not there to look at."""

    findings: tuple[Finding, ...]
    missing: tuple[str, ...]
    steps: int
    step_s: float | None
    mfu: float | None
    verdict: str = ""  # where nothing was found: healthy or cannot tell
    says: str = ""

    @property
    def cause(self) -> str:
        return self.findings[0].cause if self.findings else self.verdict

    def as_dict(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "says": self.findings[0].says if self.findings else self.says,
            "steps": self.steps,
            "step_s": self.step_s,
            "mfu": self.mfu,
            "findings": [each.as_dict() for each in self.findings],
            "missing": list(self.missing),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """One process over its last steps, as sums and means."""

    run: RunSample
    steps: Sequence[StepSample]
    gpus: Sequence[GpuSample]
    ranks: Sequence[tuple[int, float]]  # every rank's number and its share of time in collectives
    estimate: dict[str, Any] | None

    @property
    def step_s(self) -> float:
        return fmean(step.step_s for step in self.steps)

    def part_s(self, phase: str) -> float:
        return fmean(step.parts_s[phase] for step in self.steps)

    @property
    def on_device(self) -> bool:
        return all(step.clock == "cuda" for step in self.steps)

    @property
    def mfu(self) -> float | None:
        known = [step.mfu for step in self.steps if step.mfu is not None]
        return fmean(known) if known else None

    @property
    def busy_frac(self) -> float | None:
        known = [gpu.busy_frac for gpu in self.gpus if gpu.busy_frac is not None]
        return fmean(known) if known else None

    @property
    def host_s(self) -> float | None:
        """What the program itself needs for a step: waiting for the device taken out."""
        if not all(step.host_s for step in self.steps):
            return None
        return fmean(max(0.0, sum(step.host_s.values()) - (step.sync_s or 0.0)) for step in self.steps)

    @property
    def waits(self) -> float:
        """Times a step that the program waited for the device."""
        known = [step.syncs for step in self.steps if step.syncs is not None]
        return fmean(known) if known else 0.0

    @property
    def fast(self) -> bool:
        """Whether its MFU leaves little to find."""
        return self.mfu is not None and self.mfu >= _GOOD_MFU

    @property
    def micro_steps(self) -> float:
        return max(1.0, fmean(step.micro_steps for step in self.steps))


def diagnose(files: Sequence[Sequence[Sample]], *, estimate: dict[str, Any] | None = None) -> Diagnosis:
    """The cause for the process whose samples come first; those of other ranks and of cards help."""
    processes = [found for found in map(_process, files) if found is not None]
    gpus = [sample for file in files for sample in file if isinstance(sample, GpuSample)]
    if not processes:
        what = "no run in these samples: a Meter writes one, and its steps, with jsonl=PATH"
        return _thin(0, None, what)
    run, steps = processes[0]
    if len(steps) < LEAST_STEPS:
        what = f"{LEAST_STEPS} steps after warming up; there are {len(steps)}"
        return _thin(len(steps), None, what)
    seen = _Seen(
        run=run,
        steps=steps,
        gpus=_during(gpus, run, steps),
        ranks=[(other.rank, _share(theirs, "comm_s")) for other, theirs in processes if theirs],
        estimate=estimate or run.estimate,
    )
    found = sorted((f for rule in _RULES for f in rule(seen)), key=lambda f: -f.lost_frac)
    missing = tuple(_missing(seen))
    verdict, says = ("", "") if found else _nothing_found(seen)
    return Diagnosis(
        findings=tuple(found),
        missing=missing,
        steps=len(steps),
        step_s=seen.step_s,
        mfu=seen.mfu,
        verdict=verdict,
        says=says,
    )


def why_line(samples: Sequence[Sample]) -> str | None:
    """The cause in a few words, for a line of `brimful watch`; None where it cannot be told."""
    found = diagnose([samples])
    if found.findings:
        return f"{found.findings[0].cause}: {found.findings[0].says}"
    return HEALTHY if found.verdict == HEALTHY else None


def _thin(steps: int, mfu: float | None, missing: str) -> Diagnosis:
    return Diagnosis(
        findings=(), missing=(missing,), steps=steps, step_s=None, mfu=mfu, verdict=CANNOT_TELL,
        says="too little was measured",
    )  # fmt: skip


def _process(samples: Sequence[Sample]) -> tuple[RunSample, list[StepSample]] | None:
    """The last run of a file and its steady steps: a restart appends another."""
    run: RunSample | None = None
    steps: list[StepSample] = []
    for sample in samples:
        if isinstance(sample, RunSample):
            run, steps = sample, []
        elif isinstance(sample, StepSample) and not sample.warmup and sample.step_s > 0:
            steps.append(sample)
    return None if run is None else (run, steps[-_RECENT:])


def _during(gpus: Sequence[GpuSample], run: RunSample, steps: Sequence[StepSample]) -> list[GpuSample]:
    """Looks at this process's card while it trained."""
    begin, end = steps[0].at_s - steps[0].step_s, steps[-1].at_s
    own = [g for g in gpus if begin <= g.at_s <= end and not g.problem]
    named = [g for g in own if run.gpu_uuid and g.uuid == run.gpu_uuid]
    holding = [g for g in own if any(process.pid == run.pid for process in g.processes)]
    single = own if len({(g.index, g.mig) for g in own}) == 1 else []
    return named or holding or single


def _share(steps: Sequence[StepSample], name: str) -> float:
    total = sum(step.step_s for step in steps)
    return sum(getattr(step, name) or 0.0 for step in steps) / total if total else 0.0


# Rules. Each yields what it finds, with the part of the time that is lost to it.


def _pauses(seen: _Seen) -> Iterator[Finding]:
    train_s = sum(step.step_s for step in seen.steps)
    totals: Counter[str] = Counter()
    for step in seen.steps:
        totals.update(step.pauses_s)
    wall_s = train_s + sum(totals.values())
    for kind, total_s in totals.items():
        share = total_s / wall_s
        if share - _PAUSE_FRAC < _WORTH:
            continue
        times = sum(1 for step in seen.steps if step.pauses_s.get(kind))
        each_s, every = total_s / times, len(seen.steps) / times
        # e / (e + i t) = 5 %  =>  i = 19 e / t
        wanted = round((1 / _PAUSE_FRAC - 1) * each_s / seen.step_s)
        yield Finding(
            cause=f"{kind}-heavy",
            says=f"{share:.0%} of the time goes to {kind}: {show_seconds(each_s)} every {every:.3g} steps",
            evidence=(
                f"{times} pauses for {kind} in {len(seen.steps)} steps, {show_seconds(total_s)} together",
                f"training itself took {show_seconds(train_s)}",
            ),
            change=f"once in {wanted:,} steps it would take {_PAUSE_FRAC:.0%} of the time",
            lost_frac=share - _PAUSE_FRAC,
        )


def _data(seen: _Seen) -> Iterator[Finding]:
    wait_s = seen.part_s("data")
    share = wait_s / seen.step_s
    if share < _WORTH:
        return
    whose = "the GPU waits" if seen.on_device else "the loop waits"
    yield Finding(
        cause="data-starved",
        says=f"{whose} {share:.0%} of each step for its batch: {show_seconds(wait_s)} of "
        f"{show_seconds(seen.step_s)}",
        evidence=(
            (
                f"data {show_seconds(wait_s)}, forward {show_seconds(seen.part_s('forward'))}, backward "
                f"{show_seconds(seen.part_s('backward'))}, optimizer "
                f"{show_seconds(seen.part_s('optimizer'))} a step"
            ),
        ),
        change="more DataLoader workers (num_workers), prefetching, data on a local disk, tokenised before; "
        f"a step would take {show_seconds(seen.step_s - wait_s)}",
        lost_frac=share,
    )


def _communication(seen: _Seen) -> Iterator[Finding]:
    share = _share(seen.steps, "comm_s")
    if share < _WORTH:
        return
    evidence = [
        f"{show_seconds(share * seen.step_s)} of each {show_seconds(seen.step_s)} step in collectives"
    ]
    change = (
        "overlap it with the backward pass (DDP's buckets), accumulate more before it, or a faster link; "
        f"without it a step would take {show_seconds((1 - share) * seen.step_s)}"
    )
    slowest = min(seen.ranks, key=lambda pair: pair[1], default=None)
    if slowest is not None and len(seen.ranks) > 1 and slowest[1] < share / 2:
        shares = ", ".join(f"rank {rank} {part:.0%}" for rank, part in seen.ranks)
        evidence.append(
            f"time in collectives: {shares}: rank {slowest[0]} comes last and the others wait for it"
        )
        change = (
            f"find out why rank {slowest[0]} is slow (its own samples, throttling, its disk), then {change}"
        )
    yield Finding(
        cause="communication",
        says=f"{share:.0%} of the time is spent waiting for other ranks",
        evidence=tuple(evidence),
        change=change,
        lost_frac=share,
    )


def _synchronisation(seen: _Seen) -> Iterator[Finding]:
    """A wait empties the queue; until the program has filled it again the device does nothing.

    Without looks at the card it idled for no longer than the program's own part, and how long is not known.
    """
    host_s, busy, waits = seen.host_s, seen.busy_frac, seen.waits
    if not seen.on_device or host_s is None or waits < 1 or (busy is None and seen.fast):
        return
    kernels_s = seen.step_s - host_s if busy is None else busy * seen.step_s
    best_s = max(kernels_s, host_s)
    lost = 1 - best_s / seen.step_s
    if lost < _WORTH:
        return
    ran = "how long kernels ran is not known" if busy is None else f"kernels ran {busy:.0%} of the time"
    least = "at least " if busy is None else ""
    yield Finding(
        cause="synchronisation",
        says=f"the program waits for the GPU {waits:.3g} times a step (.item(), .cpu()), and then the GPU "
        "for the program",
        evidence=(
            f"{ran}; the program alone needs {show_seconds(host_s)} of each {show_seconds(seen.step_s)} step",
            f"{show_seconds(_share(seen.steps, 'sync_s') * seen.step_s)} a step inside those waits",
        ),
        change="print and log every few steps, keep losses on the device; a step would take "
        f"{least}{show_seconds(best_s)}",
        lost_frac=lost,
    )


def _launches(seen: _Seen) -> Iterator[Finding]:
    """The program needs as long for a step as the device has: it cannot launch faster.

    Looks at the card show the gaps; without them, waits that take no time do: the device was done before.
    """
    host_s, busy = seen.host_s, seen.busy_frac
    if not seen.on_device or host_s is None or host_s < 0.85 * seen.step_s:
        return
    evidence = [f"the program is at work for {show_seconds(host_s)} of each {show_seconds(seen.step_s)} step"]
    if busy is None:
        if seen.waits < 1 or seen.fast or _share(seen.steps, "sync_s") > 0.05:
            return
        lost = _WORTH if seen.mfu is None else max(_WORTH, 1 - seen.mfu / _GOOD_MFU)
        says, best = "the GPU is done before the program asks: kernels cannot be launched faster", ""
        evidence.append(f"waits for the GPU: {seen.waits:.3g} a step, and they take no time")
    else:
        lost = 1 - busy
        if lost < _WORTH:
            return
        says = f"kernels run only {busy:.0%} of the time: the program cannot launch them faster"
        best = f"; at best a step takes {show_seconds(busy * seen.step_s)}"
    evidence.append(f"forward passes in a step: {seen.micro_steps:.3g}")
    yield Finding(
        cause="launch-bound small kernels",
        says=says,
        evidence=tuple(evidence),
        change="torch.compile (mode='reduce-overhead' for CUDA graphs), a fused optimizer, or a larger "
        f"micro-batch{best}{_by_fit(seen)}",
        lost_frac=lost,
    )


def _small(seen: _Seen) -> Iterator[Finding]:
    """So little arithmetic in a micro-step that what surrounds it weighs more."""
    flops, peak, mfu = seen.run.flops_per_step, seen.run.peak_flops_per_s, seen.mfu
    if not flops or not peak or mfu is None or mfu >= _GOOD_MFU or mfu > 1:
        return
    ideal_s = flops / peak / seen.micro_steps
    computing_s = seen.part_s("forward") + seen.part_s("backward") + seen.part_s("optimizer")
    if ideal_s >= _BRIEF_S or computing_s < 0.5 * seen.step_s:
        return
    tokens = [step.tokens for step in seen.steps if step.tokens]
    held = f"{fmean(tokens) / seen.micro_steps:,.0f} tokens" if tokens else "one batch"
    lost = max(0.0, (computing_s - flops / peak / _GOOD_MFU) / seen.step_s)
    if lost < _WORTH or (seen.busy_frac is not None and seen.busy_frac < 0.8):
        return  # kernels that do not even run are another cause
    yield Finding(
        cause="small matmuls",
        says=f"a micro-step of {held} holds {_brief(ideal_s)} of arithmetic at the peak and takes "
        f"{_brief(computing_s / seen.micro_steps)}",
        evidence=(
            f"MFU {mfu:.1%} of {peak / 1e12:,.3g} TFLOPS ({seen.run.peak_source})",
            (
                f"micro-steps in a step: {seen.micro_steps:.3g}; forward, backward and optimizer take "
                f"{computing_s / seen.step_s:.0%} of it"
            ),
        ),
        change="more sequences in a micro-step, and less accumulation for the same effective batch"
        + _by_fit(seen),
        lost_frac=lost,
    )


def _memory_bound(seen: _Seen) -> Iterator[Finding]:
    """Kernels that move numbers and multiply none: updates of the weights, norms, activations, the loss."""
    update = seen.part_s("optimizer") / seen.step_s
    if update >= 0.25:
        yield Finding(
            cause="memory-bound ops",
            says=f"{update:.0%} of each step is the optimizer: it moves every weight and multiplies nothing",
            evidence=(
                f"optimizer {show_seconds(seen.part_s('optimizer'))} of {show_seconds(seen.step_s)} a step",
            ),
            change="AdamW(fused=True); more tokens for each optimizer step, by accumulation",
            lost_frac=update - _WORTH,
        )
    moving = [g.memory_busy_frac for g in seen.gpus if g.memory_busy_frac is not None]
    predicted = (seen.estimate or {}).get("speed", {}).get("bound_by") == "bandwidth"
    mfu = seen.mfu
    if mfu is None or mfu >= _GOOD_MFU or not (predicted or (moving and fmean(moving) >= 0.7)):
        return
    evidence = [f"MFU {mfu:.1%}"]
    if moving:
        evidence.append(f"memory was read or written {fmean(moving):.0%} of the time")
    if predicted:
        evidence.append("Fit predicts that this config is bound by bandwidth")
    yield Finding(
        cause="memory-bound ops",
        says="the GPU moves numbers more than it multiplies",
        evidence=tuple(evidence),
        change=f"torch.compile (fuses norms, activations and the loss), flash attention{_by_fit(seen)}",
        lost_frac=max(_WORTH, _GOOD_MFU - mfu),
    )


def _throttling(seen: _Seen) -> Iterator[Finding]:
    held = [g for g in seen.gpus if g.throttle]
    clocks = [g.sm_clock_hz / g.sm_clock_max_hz for g in seen.gpus if g.sm_clock_hz and g.sm_clock_max_hz]
    if not held or 2 * len(held) < len(seen.gpus) or not clocks or median(clocks) >= _LOW_CLOCK:
        return
    reasons = Counter(reason for g in held for reason in g.throttle)
    hot = [g.temperature_c for g in held if g.temperature_c is not None]
    watts = [
        (g.power_w, g.power_limit_w) for g in held if g.power_w is not None and g.power_limit_w is not None
    ]
    clock = median(clocks)
    evidence = [
        f"clock at {clock:.0%} of its maximum in {len(held)} of {len(seen.gpus)} looks: "
        + ", ".join(reason for reason, _ in reasons.most_common())
    ]
    if hot:
        evidence.append(f"{max(hot)} °C at most")
    if watts:
        evidence.append(f"{fmean(p for p, _ in watts):.0f} W of {watts[-1][1]:.0f} W allowed")
    yield Finding(
        cause="throttling",
        says=f"the card runs at {clock:.0%} of its clock: {reasons.most_common(1)[0][0]}",
        evidence=tuple(evidence),
        change="cool it where it is hot (fans, dust, spacing); raise the power limit where that holds it "
        f"(nvidia-smi -pl); at full clock a step takes up to {1 - clock:.0%} less",
        lost_frac=1 - clock,
    )


def _wrong_peak(seen: _Seen) -> Iterator[Finding]:
    """An MFU is a share of a peak: of another card's, or of none, it says nothing."""
    mfu, peak = seen.mfu, seen.run.peak_flops_per_s
    if mfu is None or not peak:
        return
    own = _catalog_peak(seen.run)
    if own is not None and abs(peak / own - 1) > _PEAK_OFF:
        right = mfu * peak / own
        yield Finding(
            cause="wrong peak",
            says=f"the MFU of {mfu:.1%} is a share of {peak / 1e12:,.4g} TFLOPS; this card has "
            f"{own / 1e12:,.4g}, of which it is {right:.1%}",
            evidence=(f"{seen.run.gpu}: {own / 1e12:,.4g} TFLOPS dense {seen.run.peak_format or 'bf16'}",),
            change="leave the peak to the Meter: it takes the card's own",
            lost_frac=1.0,
        )
    elif mfu > 1:
        yield Finding(
            cause="wrong peak",
            says=f"an MFU of {mfu:.0%} is impossible: the peak of {peak / 1e12:,.4g} TFLOPS is too low, or "
            "FLOPs are counted twice",
            evidence=(
                (
                    f"{(seen.run.flops_per_step or 0) / 1e9:,.4g} GFLOP ({seen.run.flops_source}) in "
                    f"{show_seconds(seen.step_s)} a step"
                ),
                f"peak: {seen.run.peak_source}",
            ),
            change="declare the peak of this device and number format, dense and not sparse",
            lost_frac=1.0,
        )


def _catalog_peak(run: RunSample) -> float | None:
    if not run.gpu:
        return None
    try:
        card = find_gpu(run.gpu)
    except NotFound:
        return None
    number = run.peak_format or ("bf16" if card.bf16 else "fp16")
    return card.dense_flops_per_s.get(number)


def _retries(seen: _Seen) -> Iterator[Finding]:
    known = [step.malloc_retries for step in seen.steps if step.malloc_retries is not None]
    if not known or fmean(known) < 0.2:
        return
    yield Finding(
        cause="memory nearly full",
        says=f"{sum(known)} times in {len(known)} steps no memory was left and PyTorch emptied its cache",
        evidence=(f"{fmean(known):.2g} cudaMalloc retries a step",),
        change="PYTORCH_ALLOC_CONF=expandable_segments:True, or a smaller micro-batch with more accumulation",
        lost_frac=_WORTH,
    )


_RULES: tuple[Callable[[_Seen], Iterator[Finding]], ...] = (
    _wrong_peak, _pauses, _data, _communication, _synchronisation, _launches, _throttling, _retries, _small,
    _memory_bound,
)  # fmt: skip


def _brief(seconds: float) -> str:
    return show_seconds(seconds) if seconds >= 0.001 else f"{1e6 * seconds:.0f} µs"


def _by_fit(seen: _Seen) -> str:
    """The change Fit finds best for this config, and by how much."""
    ways = (seen.estimate or {}).get("faster") or []
    best = min(
        (way for way in ways if way.get("fits")), key=lambda way: way["step_time_factor"], default=None
    )
    if best is None:
        return ""
    change = ", ".join(f"{key} {now} -> {then}" for key, (now, then) in best["change"].items())
    return f"; Fit: {change} takes {best['step_time_factor']:.2f} times the step time"


def _nothing_found(seen: _Seen) -> tuple[str, str]:
    mfu = seen.mfu
    predicted = (seen.estimate or {}).get("speed", {}).get("step_s", {}).get("likely")
    parts = ", ".join(
        f"{phase} {seen.part_s(phase) / seen.step_s:.0%}"
        for phase in ("data", "forward", "backward", "optimizer", "other")
    )
    if predicted and seen.step_s <= _AS_PREDICTED * predicted:
        return HEALTHY, (
            f"a step takes {show_seconds(seen.step_s)}, {seen.step_s / predicted:.2f} times what Fit "
            f"predicts ({parts})"
        )
    if mfu is not None and mfu >= _GOOD_MFU:
        peak = (seen.run.peak_flops_per_s or 0) / 1e12
        return HEALTHY, f"MFU {mfu:.0%} of {peak:,.4g} TFLOPS, and no part of the step stands out ({parts})"
    if mfu is None:
        return (
            CANNOT_TELL,
            f"no part of the step stands out ({parts}), and how fast it should be is not known",
        )
    return CANNOT_TELL, f"MFU is {mfu:.1%}, and nothing that was measured explains it ({parts})"


def _missing(seen: _Seen) -> Iterator[str]:
    """What would tell more."""
    if seen.run.peak_flops_per_s is None:
        yield "the device's peak: Meter(peak_flops_per_s=…), or gpu= with a name of the catalog"
    elif seen.run.flops_per_step is None and seen.mfu is None:
        yield "the work of a step: Meter(flops_per_step=…)"
    if seen.run.device.startswith("cuda") and not seen.gpus:
        yield "looks at its card: throttling and idle kernels show there (--look 10 while it runs)"
    if seen.estimate is None:
        yield "a prediction to hold it against: --config FILE --gpu NAME, or Meter(estimate=brimful.fit(…))"
    if seen.run.world > len(seen.ranks):
        yield f"samples of the other ranks: {len(seen.ranks)} of {seen.run.world} are here"


def ended(samples: Sequence[Sample]) -> EndSample | None:
    """How the last run of a file ended, if it did."""
    return next((sample for sample in reversed(samples) if isinstance(sample, EndSample)), None)
