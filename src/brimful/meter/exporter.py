"""What Prometheus reads from `admin exporter`. Names are stable: docs/reference/metrics.md lists them.

Read from the driver at each scrape. What a card or a process does not report is left out, never zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from brimful.meter.machine import Looker, Machine
from brimful.meter.runtime import Live
from brimful.meter.samples import PHASES

_CARD = ("gpu", "uuid")
_RUN = ("pid", "job", "model")

Table = dict[str, tuple[tuple[str, ...], str]]  # name -> (labels, description)

# Fields of the samples that are exported unchanged -> their name here, and the description.
_OF_A_CARD = {
    "memory_total_bytes": ("brimful_gpu_memory_total_bytes", "memory of the card"),
    "memory_used_bytes": ("brimful_gpu_memory_used_bytes", "memory that programs hold"),
    "memory_reserved_bytes": ("brimful_gpu_memory_reserved_bytes", "memory the driver keeps for itself"),
    "busy_frac": (
        "brimful_gpu_busy_ratio",
        "share of the time some kernel ran: not how much useful work it did",
    ),
    "memory_busy_frac": ("brimful_gpu_memory_busy_ratio", "share of the time memory was read or written"),
    "power_w": ("brimful_gpu_power_watts", "power drawn"),
    "power_limit_w": ("brimful_gpu_power_limit_watts", "power it may draw"),
    "temperature_c": ("brimful_gpu_temperature_celsius", "temperature of the chip"),
    "fan_frac": ("brimful_gpu_fan_ratio", "speed of the fan, of its highest"),
    "sm_clock_hz": ("brimful_gpu_sm_clock_hertz", "clock of the multiprocessors"),
    "sm_clock_max_hz": ("brimful_gpu_sm_clock_max_hertz", "highest clock of the multiprocessors"),
    "memory_clock_hz": ("brimful_gpu_memory_clock_hertz", "clock of the memory"),
}
_OF_A_STEP = {
    "step": ("brimful_run_step", "the newest optimizer step of a run"),
    "step_s": ("brimful_run_step_seconds", "how long it took, evaluation and checkpoints left out"),
    "tokens_per_s": ("brimful_run_tokens_per_second", "tokens of that step by its seconds"),
    "mfu": ("brimful_run_mfu_ratio", "useful FLOPs of the card's own peak"),
    "hfu": ("brimful_run_hfu_ratio", "the same with recomputed work"),
    "peak_allocated_bytes": ("brimful_run_allocated_peak_bytes", "most bytes of tensors at once"),
    "peak_reserved_bytes": ("brimful_run_reserved_peak_bytes", "most bytes PyTorch took from the driver"),
    "fragmentation": (
        "brimful_run_fragmentation_ratio",
        "of the reserved bytes, free pieces of blocks in use",
    ),
    "step_s_vs_estimate": ("brimful_run_step_vs_estimate_ratio", "measured by predicted step time"),
}

# From the driver about a card, then about a process, then from a Meter about its run.
GAUGES: Table = {
    "brimful_nvml_up": ((), "1 while NVIDIA's driver answers"),
    "brimful_gpu_info": ((*_CARD, "name", "driver"), "1, with the card's name and the driver's version"),
    "brimful_gpu_up": (_CARD, "1 while the card answers, 0 when it fell off the bus or needs a reset"),
    **{name: (_CARD, what) for name, what in _OF_A_CARD.values()},
    "brimful_gpu_mfu_ratio": (_CARD, "useful FLOPs of the card's own peak, as the runs on it report"),
    "brimful_gpu_throttled": ((*_CARD, "reason"), "1 for each reason that holds the clock down now"),
    "brimful_gpu_processes": (_CARD, "processes that hold memory of the card"),
    "brimful_process_memory_bytes": ((*_CARD, "pid", "user", "job"), "memory a process holds on a card"),
    **{name: (_RUN, what) for name, what in _OF_A_STEP.values()},
    "brimful_run_age_seconds": (_RUN, "since that step ended"),
    "brimful_run_part_seconds": ((*_RUN, "part"), "its parts: data, forward, backward, optimizer, other"),
    "brimful_run_peak_flops_per_second": (_RUN, "the peak both are a share of"),
}
COUNTERS: Table = {
    "brimful_gpu_ecc_errors": (_CARD, "uncorrected memory errors since the driver came up"),
}

Figure = tuple[str, tuple[str, ...], float | None]  # name, label values, number


class Exported(Collector):
    """A prometheus_client collector: looks at the machine on each scrape."""

    def __init__(self, looker: Looker, clock: Callable[[], float] = time.time) -> None:
        self._looker, self._clock = looker, clock

    def collect(self) -> Iterable[Metric]:
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for name, labels, number in figures(self._looker.look(self._clock())):
            if number is not None:
                found.setdefault(name, {})[labels] = float(number)
        yield from families(GAUGES, COUNTERS, found)


def families(
    gauges: Table, counters: Table, found: Mapping[str, Mapping[tuple[str, ...], float]]
) -> Iterator[Metric]:
    """What prometheus_client writes, from the figures by name and labels."""
    for kind, table in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
        for name, (labels, words) in table.items():
            family = kind(name, words, labels=labels)
            for values, number in found.get(name, {}).items():
                family.add_metric(values, number)
            yield family


def registry(looker: Looker) -> CollectorRegistry:
    found = CollectorRegistry(auto_describe=False)
    found.register(Exported(looker))
    return found


def as_text(looker: Looker) -> str:
    """The text of one scrape."""
    return generate_latest(registry(looker)).decode("utf-8")


def figures(machine: Machine) -> Iterator[Figure]:
    yield "brimful_nvml_up", (), 0 if machine.problem else 1
    runs: dict[int, Live] = {each.pid: each for each in machine.elsewhere}
    for card in machine.cards:
        own = (card.label, card.sample.uuid)
        yield "brimful_gpu_info", (*own, card.sample.name, machine.driver), 1
        yield "brimful_gpu_up", own, 0 if card.sample.problem else 1
        yield "brimful_gpu_mfu_ratio", own, card.mfu
        yield "brimful_gpu_processes", own, None if card.sample.problem else len(card.holders)
        yield "brimful_gpu_ecc_errors", own, card.sample.ecc_errors
        for field, (name, _) in _OF_A_CARD.items():
            yield name, own, getattr(card.sample, field)
        for reason in card.sample.throttle:
            yield "brimful_gpu_throttled", (*own, reason), 1
        for holder in card.holders:
            process = holder.process
            labels = (*own, str(process.pid), process.user, holder.job or "")
            yield "brimful_process_memory_bytes", labels, process.used_bytes
            if holder.live:
                runs[process.pid] = holder.live
    for each in runs.values():
        yield from _run(each, machine.at_s)


def _run(each: Live, now_s: float) -> Iterator[Figure]:
    labels = (str(each.pid), each.run.job or "", each.run.model)
    yield "brimful_run_age_seconds", labels, each.age_s(now_s)
    if each.step is None or not each.fresh(now_s):
        return  # an old rate is not the current rate
    for field, (name, _) in _OF_A_STEP.items():
        yield name, labels, getattr(each.step, field)
    yield "brimful_run_peak_flops_per_second", labels, each.run.peak_flops_per_s
    for part in PHASES:
        yield "brimful_run_part_seconds", (*labels, part), each.step.parts_s[part]
