"""The chance that a traced program runs out of memory on its card."""

from __future__ import annotations

from collections.abc import Sequence

from brimful.allocator import Request, Settings, run
from brimful.specs.estimate import Interval, chance_of_running_out
from brimful.specs.gpu import Gpu

# What a program needs on a card, over what its trace says: low, likely, high. Source: measured over traced
# reserved peaks of the runs in bench/groups/cards.py. The ends are the 5th and 95th percentiles of a random
# half of them; of the other half, 30 of 32 are within.
OFF = (0.93, 1.0, 1.15)
_HALVINGS = 8  # of the range in which the least memory is searched
_SURE = 0.001  # a chance closer to 0 or 1 is not told from it


def chance(
    requests: Sequence[Request],
    settings: Settings,
    gpu: Gpu,
    context: Interval,
    *,
    allocated_bytes: int,
    reserved_bytes: int,
) -> float:
    """Of needing more than the card has: `least_bytes` and the context, as an interval, beside its memory."""

    def needing(inside: int) -> float:
        device = Interval(*(off * inside for off in OFF)).with_each(context, float.__add__)
        found = chance_of_running_out(device, gpu.memory_bytes)
        return found if _SURE < found < 1 - _SURE else float(round(found))

    fewest, most = needing(allocated_bytes), needing(reserved_bytes)
    if fewest == most:
        return most
    return needing(least_bytes(requests, settings, low=allocated_bytes, high=reserved_bytes))


def least_bytes(requests: Sequence[Request], settings: Settings, *, low: int, high: int) -> int:
    """The least memory with which all requests succeed, between the allocated and the reserved peak.

    A full card returns its cache before it fails, so a program needs less than it reserves on a larger one.
    """
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        if run(requests, settings, middle).out_of_memory is None:
            high = middle
        else:
            low = middle
    return high
