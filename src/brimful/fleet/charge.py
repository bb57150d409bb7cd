"""What a lease owes: the one place where GPU time becomes money.

Owed money is counted exactly, in 1/3,600,000 micro-dollars: a thousandth of a GPU for a second. It is rounded
down once, over the whole lease; rounding every tick would charge more for being preempted often.
Checkpoints that were moved are on the bill of the lease that moved them, once it is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from brimful.fleet.events import PoolPriced
from brimful.fleet.job import WHOLE_GPU
from brimful.fleet.money.prices import PriceLine
from brimful.fleet.node import Pool
from brimful.units import HOUR_S

PARTS = HOUR_S * WHOLE_GPU  # of a micro-dollar
PRICES_KEPT = 20_000  # of each market pool


@dataclass(slots=True, kw_only=True)
class Charge:
    """So many GPUs from a start to an end, at a price that may move meanwhile."""

    size: int  # GPUs held, over all nodes
    gpu_milli: int = WHOLE_GPU  # of each of them, and on the bill
    microusd_per_gpu_hour: int  # when it was granted; a market pool's price moves on (`line`)
    granted_s: int
    started_s: int | None = None
    ended_s: int | None = None
    line: PriceLine | None = None  # the prices of its market pool; None once it is over, and elsewhere
    final_owed: int | None = None  # what its GPUs came to when one with a line ended
    microusd_per_gib: int = 0  # for each GiB of checkpoints moved
    moved_bytes: int = 0  # known when it is over

    def billed_s(self, now_s: int) -> int:
        """Seconds on the bill up to now. What never ran costs nothing."""
        if self.started_s is None:
            return 0
        seconds = (now_s if self.ended_s is None else self.ended_s) - self.started_s
        return seconds if seconds > 0 else 0

    def runs_at(self, at_s: int) -> bool:
        return self.started_s is not None and self.started_s <= at_s

    def gpu_milli_s(self, now_s: int) -> int:
        """GPU time on the bill, in thousandths of a GPU-second: a share of a GPU counts as that share."""
        return self.size * self.gpu_milli * self.billed_s(now_s)

    @property
    def egress_owed(self) -> int:
        """What moving its checkpoints came to, in parts of a micro-dollar."""
        return self.moved_bytes * self.microusd_per_gib * PARTS >> 30

    @property
    def egress_microusd(self) -> int:
        return self.egress_owed // PARTS

    def owed(self, now_s: int) -> int:
        """What it has come to by now, exactly: in parts of a micro-dollar."""
        gpus = self.gpus_owed(now_s)
        return gpus + self.egress_owed if self.moved_bytes else gpus

    def gpus_owed(self, now_s: int) -> int:
        """The same for the GPUs alone."""
        if self.final_owed is not None:
            return self.final_owed
        if self.line is None or self.started_s is None:
            return self.microusd_per_gpu_hour * self.size * self.gpu_milli * self.billed_s(now_s)
        priced = self.line.between(
            self.started_s,
            now_s if self.ended_s is None else self.ended_s,
            granted_s=self.granted_s,
            granted=self.microusd_per_gpu_hour,
        )
        return priced * self.size * self.gpu_milli

    def cost_microusd(self, now_s: int) -> int:
        """On the bill up to now."""
        gpus = self.gpus_owed(now_s)
        return (gpus + self.egress_owed if self.moved_bytes else gpus) // PARTS

    def close(self, at_s: int, *, moved_bytes: int = 0) -> None:
        """Nothing is added from here on, however the price moves."""
        self.ended_s, self.moved_bytes = at_s, moved_bytes
        if self.line is not None:
            self.final_owed, self.line = self.gpus_owed(at_s), None

    def price_now(self) -> int:
        """Micro-dollars per GPU-hour that it pays at this moment, or paid last."""
        if self.line is None or self.line.last.at_s < self.granted_s:  # a pool that was a market once
            return self.microusd_per_gpu_hour
        return self.line.last.microusd_per_gpu_hour

    def price_paid(self) -> int:
        """The same; of one that is over and whose price moved, what it paid on the average."""
        gpu_milli_s = self.gpu_milli_s(self.ended_s or 0)
        if self.final_owed is None or not gpu_milli_s:
            return self.price_now()
        return round(self.final_owed / gpu_milli_s)

    @property
    def hourly_microusd(self) -> int:
        """What an hour of it costs at the price it pays now."""
        return self.price_now() * self.size * self.gpu_milli // WHOLE_GPU

    def reaches_s(self, microusd: int) -> int | None:
        """When it will have come to so much, at the price of now; None: never, or it has not begun."""
        if self.started_s is None:
            return None
        since_s, left = self.started_s, microusd * PARTS
        if self.line is not None:
            since_s = max(since_s, self.line.last.at_s)
            left = max(0, left - self.owed(since_s))
        per_s = self.price_now() * self.size * self.gpu_milli
        if per_s:
            return since_s - (-left // per_s)  # ceil
        return None if left else since_s


def change_price(
    lines: dict[Pool, PriceLine],
    event: PoolPriced,
    *,
    here: Iterable[Charge],
    everywhere: Iterable[Charge],
) -> PriceLine:
    """A market pool's price from here on. `here`: what is open in this pool; `everywhere`: in any."""
    line = lines.get(event.pool)
    if line is None:
        line = lines[event.pool] = PriceLine()
        for charge in here:  # it began at the posted price
            charge.line = line
    line.add(event)
    if len(line.points) > 2 * PRICES_KEPT:
        oldest_s = min((charge.granted_s for charge in everywhere), default=event.at_s)
        line.forget_before(min(oldest_s, line.points[-PRICES_KEPT].at_s))
    return line
