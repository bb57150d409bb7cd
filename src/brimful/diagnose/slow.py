"""Why is it slow? From samples to a cause, its evidence in numbers, and the change that helps.

Each rule looks at what was measured and says which part of the time its cause takes; the largest is the
answer. A rule without its numbers stays silent and says what it would need. Nothing is guessed: if the time
is well spent nothing is found, and if too little was measured, that is the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from brimful.configs.reading import change_text
from brimful.diagnose.findings import (
    CANNOT_TELL,
    HEALTHY,
    Diagnosis,
    Finding,
    brief,
    cause_words,
    do,
)
from brimful.errors import NotFound
from brimful.language import Number, Percent, Plain, Seconds, Sentence, Several, figures, say
from brimful.meter.nvml import throttle_said
from brimful.meter.samples import GpuSample, RunSample, Sample, StepSample, source_said
from brimful.specs.gpu import find_gpu

LEAST_STEPS = 5  # after warm-up: fewer say nothing about the next one
_RECENT = 500  # steps considered: what it does now, not what it did yesterday
_WORTH = 0.10  # of the time: less is not why it is slow
_PAUSE_FRAC = 0.05  # of the time that evaluation may take without a finding
_GOOD_MFU = 0.35  # a transformer that reaches it leaves little to find; published runs are at 0.35 to 0.60
_AS_PREDICTED = 1.3  # times the predicted step: nine in ten published runs are within 1.7
_BRIEF_S = 0.005  # of arithmetic in a micro-step: with less, the overhead weighs more
_LOW_CLOCK = 0.85
_PEAK_OFF = 0.10


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
        """What the program itself needs for a step, without waiting for the device."""
        if not all(step.host_s for step in self.steps):
            return None
        return fmean(max(0.0, sum(step.host_s.values()) - (step.sync_s or 0.0)) for step in self.steps)

    @property
    def waits(self) -> float:
        """How often per step the program waited for the device."""
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
        return _too_little_data(0, say("slow.no_run"))
    run, steps = processes[0]
    if len(steps) < LEAST_STEPS:
        return _too_little_data(len(steps), say("slow.few_steps", least=LEAST_STEPS, steps=len(steps)))
    seen = _Seen(
        run=run,
        steps=steps,
        gpus=_during(gpus, run, steps),
        ranks=[(other.rank, _share(theirs, "comm_s")) for other, theirs in processes if theirs],
        estimate=estimate or run.estimate,
    )
    found = sorted((f for rule in _RULES for f in rule(seen)), key=lambda f: -f.lost_frac)
    missing = tuple(_missing(seen))
    verdict, judged = ("", None) if found else _nothing_found(seen)
    return Diagnosis(
        findings=tuple(found),
        missing=missing,
        steps=len(steps),
        step_s=seen.step_s,
        mfu=seen.mfu,
        verdict=verdict,
        judged=judged,
    )


def why_line(samples: Sequence[Sample]) -> Sentence | None:
    """The cause in brief, for a line of `brimful watch`; None if unknown."""
    found = diagnose([samples])
    if found.findings:
        return say("slow.line", cause=cause_words(found.cause), says=found.says)
    return cause_words(HEALTHY) if found.verdict == HEALTHY else None


def _too_little_data(steps: int, missing: Sentence) -> Diagnosis:
    return Diagnosis(
        findings=(), missing=(missing,), steps=steps, step_s=None, mfu=None, verdict=CANNOT_TELL,
        judged=say("slow.too_little"),
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
    """Samples of this process's card while it trained."""
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
            says=say(
                "slow.pauses", frac=Percent(share), kind=kind, each=Seconds(each_s), every=figures(every)
            ),
            evidence=(
                say(
                    "slow.pauses_counted",
                    times=times,
                    kind=kind,
                    steps=len(seen.steps),
                    total=Seconds(total_s),
                ),
                say("slow.training_itself", took=Seconds(train_s)),
            ),
            change=do(say("slow.pause_less", steps=wanted, frac=Percent(_PAUSE_FRAC))),
            lost_frac=share - _PAUSE_FRAC,
        )


def _data(seen: _Seen) -> Iterator[Finding]:
    wait_s = seen.part_s("data")
    share = wait_s / seen.step_s
    if share < _WORTH:
        return
    parts = {name: Seconds(seen.part_s(name)) for name in ("data", "forward", "backward", "optimizer")}
    waits = {"frac": Percent(share), "wait": Seconds(wait_s), "step": Seconds(seen.step_s)}
    yield Finding(
        cause="data-starved",
        says=say("slow.gpu_waits_for_data", **waits)
        if seen.on_device
        else say("slow.loop_waits_for_data", **waits),
        evidence=(say("slow.parts", **parts),),
        change=do(say("slow.load_faster"), say("slow.would_take", step=Seconds(seen.step_s - wait_s))),
        lost_frac=share,
    )


def _communication(seen: _Seen) -> Iterator[Finding]:
    share = _share(seen.steps, "comm_s")
    if share < _WORTH:
        return
    evidence = [say("slow.in_collectives", spent=Seconds(share * seen.step_s), step=Seconds(seen.step_s))]
    change = [say("slow.overlap", step=Seconds((1 - share) * seen.step_s))]
    slowest = min(seen.ranks, key=lambda pair: pair[1], default=None)
    if slowest is not None and len(seen.ranks) > 1 and slowest[1] < share / 2:
        shares = [say("slow.rank_share", rank=Plain(rank), frac=Percent(part)) for rank, part in seen.ranks]
        evidence.append(say("slow.rank_comes_last", shares=Several(tuple(shares)), rank=Plain(slowest[0])))
        change.insert(0, say("slow.find_why_rank_is_slow", rank=Plain(slowest[0])))
    yield Finding(
        cause="communication",
        says=say("slow.waits_for_ranks", frac=Percent(share)),
        evidence=tuple(evidence),
        change=do(*change),
        lost_frac=share,
    )


def _synchronisation(seen: _Seen) -> Iterator[Finding]:
    """A wait empties the queue; until the program has refilled it the device is idle.

    Without card samples, all that is known is that it idled for no longer than the program's own part.
    """
    host_s, busy, waits = seen.host_s, seen.busy_frac, seen.waits
    if not seen.on_device or host_s is None or waits < 1 or (busy is None and seen.fast):
        return
    kernels_s = seen.step_s - host_s if busy is None else busy * seen.step_s
    best_s = max(kernels_s, host_s)
    lost = 1 - best_s / seen.step_s
    if lost < _WORTH:
        return
    host = {"host": Seconds(host_s), "step": Seconds(seen.step_s)}
    yield Finding(
        cause="synchronisation",
        says=say("slow.waits_for_gpu", waits=figures(waits)),
        evidence=(
            say("slow.kernels_unknown", **host)
            if busy is None
            else say("slow.kernels_ran", busy=Percent(busy), **host),
            say("slow.inside_waits", spent=Seconds(_share(seen.steps, "sync_s") * seen.step_s)),
        ),
        change=do(
            say("slow.log_less"),
            say("slow.would_take_at_least", step=Seconds(best_s))
            if busy is None
            else say("slow.would_take", step=Seconds(best_s)),
        ),
        lost_frac=lost,
    )


def _launches(seen: _Seen) -> Iterator[Finding]:
    """The program needs as long for a step as the device: it cannot launch faster.

    Card samples show the gaps; without them, waits that take no time do: the device was already done.
    """
    host_s, busy = seen.host_s, seen.busy_frac
    if not seen.on_device or host_s is None or host_s < 0.85 * seen.step_s:
        return
    evidence = [say("slow.program_at_work", host=Seconds(host_s), step=Seconds(seen.step_s))]
    change = [say("slow.launch_less")]
    if busy is None:
        if seen.waits < 1 or seen.fast or _share(seen.steps, "sync_s") > 0.05:
            return
        lost = _WORTH if seen.mfu is None else max(_WORTH, 1 - seen.mfu / _GOOD_MFU)
        says = say("slow.gpu_done_before")
        evidence.append(say("slow.waits_take_no_time", waits=figures(seen.waits)))
    else:
        lost = 1 - busy
        if lost < _WORTH:
            return
        says = say("slow.kernels_run_only", busy=Percent(busy))
        change.append(say("slow.at_best", step=Seconds(busy * seen.step_s)))
    evidence.append(say("slow.forward_passes", n=figures(seen.micro_steps)))
    yield Finding(
        cause="launch-bound small kernels",
        says=says,
        evidence=tuple(evidence),
        change=do(*change, *_by_fit(seen)),
        lost_frac=lost,
    )


def _small(seen: _Seen) -> Iterator[Finding]:
    """So little arithmetic in a micro-step that the overhead weighs more."""
    flops, peak, mfu = seen.run.flops_per_step, seen.run.peak_flops_per_s, seen.mfu
    if not flops or not peak or mfu is None or mfu >= _GOOD_MFU or mfu > 1:
        return
    ideal_s = flops / peak / seen.micro_steps
    computing_s = seen.part_s("forward") + seen.part_s("backward") + seen.part_s("optimizer")
    if ideal_s >= _BRIEF_S or computing_s < 0.5 * seen.step_s:
        return
    tokens = [step.tokens for step in seen.steps if step.tokens]
    lost = max(0.0, (computing_s - flops / peak / _GOOD_MFU) / seen.step_s)
    if lost < _WORTH or (seen.busy_frac is not None and seen.busy_frac < 0.8):
        return  # kernels that do not even run are another cause
    took = {"ideal": brief(ideal_s), "took": brief(computing_s / seen.micro_steps)}
    yield Finding(
        cause="small matmuls",
        says=say("slow.small_tokens", tokens=round(fmean(tokens) / seen.micro_steps), **took)
        if tokens
        else say("slow.small_batch", **took),
        evidence=(
            say(
                "slow.mfu_of_peak",
                mfu=Percent(mfu, 1),
                tflops=figures(peak / 1e12),
                source=source_said(seen.run.peak_source),
            ),
            say(
                "slow.micro_steps",
                n=figures(seen.micro_steps),
                frac=Percent(computing_s / seen.step_s),
            ),
        ),
        change=do(say("slow.larger_micro_step"), *_by_fit(seen)),
        lost_frac=lost,
    )


def _memory_bound(seen: _Seen) -> Iterator[Finding]:
    """Kernels that move data without multiplying: weight updates, norms, activations, the loss."""
    update = seen.part_s("optimizer") / seen.step_s
    if update >= 0.25:
        yield Finding(
            cause="memory-bound ops",
            says=say("slow.optimizer_moves", frac=Percent(update)),
            evidence=(
                say(
                    "slow.optimizer_takes",
                    took=Seconds(seen.part_s("optimizer")),
                    step=Seconds(seen.step_s),
                ),
            ),
            change=do(say("slow.fused_optimizer")),
            lost_frac=update - _WORTH,
        )
    moving = [g.memory_busy_frac for g in seen.gpus if g.memory_busy_frac is not None]
    predicted = (seen.estimate or {}).get("speed", {}).get("bound_by") == "bandwidth"
    mfu = seen.mfu
    if mfu is None or mfu >= _GOOD_MFU or not (predicted or (moving and fmean(moving) >= 0.7)):
        return
    evidence = [say("slow.mfu", mfu=Percent(mfu, 1))]
    if moving:
        evidence.append(say("slow.memory_busy", frac=Percent(fmean(moving))))
    if predicted:
        evidence.append(say("slow.fit_says_bandwidth"))
    yield Finding(
        cause="memory-bound ops",
        says=say("slow.moves_more"),
        evidence=tuple(evidence),
        change=do(say("slow.fuse"), *_by_fit(seen)),
        lost_frac=max(_WORTH, _GOOD_MFU - mfu),
    )


def _throttling(seen: _Seen) -> Iterator[Finding]:
    held = [g for g in seen.gpus if g.throttle]
    clocks = [g.sm_clock_hz / g.sm_clock_max_hz for g in seen.gpus if g.sm_clock_hz and g.sm_clock_max_hz]
    if not held or 2 * len(held) < len(seen.gpus) or not clocks or median(clocks) >= _LOW_CLOCK:
        return
    reasons = Counter(why for g in held for why in g.throttle)
    hot = [g.temperature_c for g in held if g.temperature_c is not None]
    watts = [
        (g.power_w, g.power_limit_w) for g in held if g.power_w is not None and g.power_limit_w is not None
    ]
    clock = median(clocks)
    shown = tuple(throttle_said(why) for why, _ in reasons.most_common())
    evidence = [
        say(
            "slow.clock_held",
            clock=Percent(clock),
            held=len(held),
            looks=len(seen.gpus),
            reasons=Several(shown),
        )
    ]
    if hot:
        evidence.append(say("slow.hottest", celsius=max(hot)))
    if watts:
        evidence.append(
            say("slow.power", power=Number(fmean(p for p, _ in watts)), limit=Number(watts[-1][1]))
        )
    yield Finding(
        cause="throttling",
        says=say("slow.throttled", clock=Percent(clock), reason=shown[0]),
        evidence=tuple(evidence),
        change=do(say("slow.cool"), say("slow.at_full_clock", frac=Percent(1 - clock))),
        lost_frac=1 - clock,
    )


def _wrong_peak(seen: _Seen) -> Iterator[Finding]:
    """An MFU is a share of a peak: without the right card's peak it means nothing."""
    mfu, peak = seen.mfu, seen.run.peak_flops_per_s
    if mfu is None or not peak:
        return
    own = _catalog_peak(seen.run)
    if own is not None and abs(peak / own - 1) > _PEAK_OFF:
        right = mfu * peak / own
        yield Finding(
            cause="wrong peak",
            says=say(
                "slow.other_cards_peak",
                mfu=Percent(mfu, 1),
                said=figures(peak / 1e12, 4),
                own=figures(own / 1e12, 4),
                right=Percent(right, 1),
            ),
            evidence=(
                say(
                    "slow.dense_peak",
                    gpu=seen.run.gpu,
                    own=figures(own / 1e12, 4),
                    number=seen.run.peak_format or "bf16",
                ),
            ),
            change=do(say("slow.leave_peak_to_meter")),
            lost_frac=1.0,
        )
    elif mfu > 1:
        yield Finding(
            cause="wrong peak",
            says=say("slow.impossible_mfu", mfu=Percent(mfu), peak=figures(peak / 1e12, 4)),
            evidence=(
                say(
                    "slow.flops_of_a_step",
                    gflop=figures((seen.run.flops_per_step or 0) / 1e9, 4),
                    source=source_said(seen.run.flops_source),
                    step=Seconds(seen.step_s),
                ),
                say("slow.peak_source", source=source_said(seen.run.peak_source)),
            ),
            change=do(say("slow.declare_peak")),
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
        says=say("slow.cache_emptied", times=sum(known), steps=len(known)),
        evidence=(say("slow.retries", n=figures(fmean(known), 2)),),
        change=do(say("slow.less_memory")),
        lost_frac=_WORTH,
    )


_RULES: tuple[Callable[[_Seen], Iterator[Finding]], ...] = (
    _wrong_peak, _pauses, _data, _communication, _synchronisation, _launches, _throttling, _retries, _small,
    _memory_bound,
)  # fmt: skip


def _by_fit(seen: _Seen) -> list[Sentence]:
    """The change Fit finds best for this config, and by how much."""
    ways = (seen.estimate or {}).get("faster") or []
    best = min(
        (way for way in ways if way.get("fits")), key=lambda way: way["step_time_factor"], default=None
    )
    if best is None:
        return []
    times = Number(best["step_time_factor"], 2)
    return [say("slow.by_fit", change=change_text(best["change"]), times=times)]


def _nothing_found(seen: _Seen) -> tuple[str, Sentence]:
    mfu = seen.mfu
    predicted = (seen.estimate or {}).get("speed", {}).get("step_s", {}).get("likely")
    phases = ("data", "forward", "backward", "optimizer", "other")
    parts = say("slow.shares", **{phase: Percent(seen.part_s(phase) / seen.step_s) for phase in phases})
    if predicted and seen.step_s <= _AS_PREDICTED * predicted:
        times = Number(seen.step_s / predicted, 2)
        return HEALTHY, say("slow.as_predicted", step=Seconds(seen.step_s), times=times, parts=parts)
    if mfu is not None and mfu >= _GOOD_MFU:
        peak = figures((seen.run.peak_flops_per_s or 0) / 1e12, 4)
        return HEALTHY, say("slow.good_mfu", mfu=Percent(mfu), peak=peak, parts=parts)
    if mfu is None:
        return CANNOT_TELL, say("slow.nothing_stands_out", parts=parts)
    return CANNOT_TELL, say("slow.unexplained", mfu=Percent(mfu, 1), parts=parts)


def _missing(seen: _Seen) -> Iterator[Sentence]:
    """What would show more."""
    if seen.run.peak_flops_per_s is None:
        yield say("slow.needs_peak")
    elif seen.run.flops_per_step is None and seen.mfu is None:
        yield say("slow.needs_flops")
    if seen.run.device.startswith("cuda") and not seen.gpus:
        yield say("slow.needs_looks")
    if seen.estimate is None:
        yield say("slow.needs_estimate")
    if seen.run.world > len(seen.ranks):
        yield say("slow.needs_ranks", ranks=len(seen.ranks), world=seen.run.world)
