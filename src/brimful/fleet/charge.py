"""What a lease owes: the one place where GPU time becomes money.

Owed money is counted exactly, in 1/3,600,000 micro-dollars: a thousandth of a GPU for a second. It is rounded
down once, over the whole lease; rounding every tick would charge more for being preempted often.
The cost of moving checkpoints is billed to the lease that moved them, once it is over.
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
    """A number of GPUs from a start to an end, at a price that may change meanwhile."""

    size: int  # GPUs held, over all nodes
    gpu_milli: int = WHOLE_GPU  # of each GPU, held and billed
    microusd_per_gpu_hour: int  # when it was granted; a market pool's price changes later (`line`)
    granted_s: int
    started_s: int | None = None
    ended_s: int | None = None
    line: PriceLine | None = None  # the prices of its market pool; None once it is over, and in other pools
    final_owed: int | None = None  # what its GPUs cost, for a charge with a line that has ended
    microusd_per_gib: int = 0  # for each GiB of checkpoints moved
    moved_bytes: int = 0  # known once it is over

    def billed_s(self, now_s: int) -> int:
        """Seconds billed up to now. A lease that never ran costs nothing."""
        if self.started_s is None:
            return 0
        seconds = (now_s if self.ended_s is None else self.ended_s) - self.started_s
        return seconds if seconds > 0 else 0

    def runs_at(self, at_s: int) -> bool:
        return self.started_s is not None and self.started_s <= at_s

    def gpu_milli_s(self, now_s: int) -> int:
        """GPU time billed, in thousandths of a GPU-second: a share of a GPU counts as that share."""
        return self.size * self.gpu_milli * self.billed_s(now_s)

    @property
    def egress_owed(self) -> int:
        """The cost of moving its checkpoints, in parts of a micro-dollar."""
        return self.moved_bytes * self.microusd_per_gib * PARTS >> 30

    @property
    def egress_microusd(self) -> int:
        return self.egress_owed // PARTS

    def owed(self, now_s: int) -> int:
        """What it owes up to now, exactly: in parts of a micro-dollar."""
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
        """Billed up to now."""
        gpus = self.gpus_owed(now_s)
        return (gpus + self.egress_owed if self.moved_bytes else gpus) // PARTS

    def close(self, at_s: int, *, moved_bytes: int = 0) -> None:
        """Nothing is added from here on, even if the price changes."""
        self.ended_s, self.moved_bytes = at_s, moved_bytes
        if self.line is not None:
            self.final_owed, self.line = self.gpus_owed(at_s), None

    def price_now(self) -> int:
        """Micro-dollars per GPU-hour that it pays now, or paid last."""
        if self.line is None or self.line.last.at_s < self.granted_s:  # a pool that used to be a market pool
            return self.microusd_per_gpu_hour
        return self.line.last.microusd_per_gpu_hour

    def price_paid(self) -> int:
        """The same; for a closed charge whose price changed, the average it paid."""
        gpu_milli_s = self.gpu_milli_s(self.ended_s or 0)
        if self.final_owed is None or not gpu_milli_s:
            return self.price_now()
        return round(self.final_owed / gpu_milli_s)

    @property
    def hourly_microusd(self) -> int:
        """What an hour of it costs at its current price."""
        return self.price_now() * self.size * self.gpu_milli // WHOLE_GPU

    def reaches_s(self, microusd: int) -> int | None:
        """When it will owe this much, at the current price; None: never, or it has not begun."""
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
    """A market pool's price from here on. `here`: open charges in this pool; `everywhere`: in any pool."""
    line = lines.get(event.pool)
    if line is None:
        line = lines[event.pool] = PriceLine()
        for charge in here:  # they began at the posted price
            charge.line = line
    line.add(event)
    if len(line.points) > 2 * PRICES_KEPT:
        oldest_s = min((charge.granted_s for charge in everywhere), default=event.at_s)
        line.forget_before(min(oldest_s, line.points[-PRICES_KEPT].at_s))
    return line
