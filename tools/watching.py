"""The picture of `brimful watch` in README.md and the how-to: made-up readings, and labelled so there.

A page asks for it with `<!-- watch: COLUMNS -->` … `<!-- end -->`.
"""

from __future__ import annotations

import os
import re
import time

from brimful.cli.operate.watch import History, remember, screen
from brimful.meter.machine import Holder, Machine, SeenGpu
from brimful.meter.runtime import Live
from brimful.meter.samples import GpuSample, ProcessSample, RunSample, StepSample
from brimful.units import GIB, MIB

BLOCK = re.compile(r"(<!-- watch: (\d+) -->\n).*?(<!-- end -->)", re.DOTALL)
AT_S = 1_800_000_000.0


def with_watch(text: str) -> str:
    return BLOCK.sub(lambda m: f"{m[1]}```text\n{picture(int(m[2]))}\n```\n{m[3]}", text)


def picture(columns: int) -> str:
    """Two cards: one whose process has a Meter, one whose process has none."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    history = History()
    for look in range(40):
        remember(history, _machine(0.25 + 0.16 * min(1.0, look / 20), 0.97 if look % 7 else 0.55))
    return screen(_machine(0.412, 0.97), history, columns, 40)


def _machine(mfu: float, busy: float) -> Machine:
    run = RunSample(at_s=AT_S, pid=4711, host="", peak_flops_per_s=58.3e12, peak_format="bf16")
    step = StepSample(at_s=AT_S, step=1204, step_s=0.437, tokens_per_s=28_100, mfu=mfu, data_s=0.052)
    live = Live(pid=4711, run=run, step=step)
    metered = ProcessSample(
        pid=4711, used_bytes=10 * GIB, name="python train.py config/train_gpt2.py", user="anna"
    )
    plain = ProcessSample(pid=5120, used_bytes=int(11.1 * GIB), name="python finetune.py", user="ben")
    first = GpuSample(
        at_s=AT_S, index=0, name="NVIDIA GeForce RTX 4070", memory_total_bytes=12282 * MIB,
        memory_used_bytes=int(10.4 * GIB), busy_frac=busy, power_w=187, power_limit_w=200, temperature_c=67,
        sm_clock_hz=2475e6, sm_clock_max_hz=3105e6,
    )  # fmt: skip
    second = GpuSample(
        at_s=AT_S, index=1, name="NVIDIA GeForce RTX 4070", memory_total_bytes=12282 * MIB,
        memory_used_bytes=int(11.3 * GIB), busy_frac=busy, power_w=96, power_limit_w=200, temperature_c=83,
        sm_clock_hz=1410e6, sm_clock_max_hz=3105e6, throttle=("too hot",),
    )  # fmt: skip
    holder = Holder(process=metered, job="train-7", live=live, idle=None, works_here=True)
    other = Holder(process=plain, job=None, live=None, idle=None, works_here=False)
    cards = (
        SeenGpu(sample=first, holders=(holder,), mfu=mfu),
        SeenGpu(sample=second, holders=(other,), mfu=None),
    )
    return Machine(at_s=AT_S, driver="580.65.06", cards=cards, elsewhere=())
