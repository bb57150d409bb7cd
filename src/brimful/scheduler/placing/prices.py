"""What part of a GPU is worth when many tasks want parts of several sizes: cutting-stock prices.

Packing tasks of given sizes into the fewest GPUs is the cutting-stock problem. Its dual prices say what share
of a GPU one more task of each size costs: a task of 0.81 costs a whole GPU if hardly anything fits beside it.

Source: Gilmore and Gomory, A linear programming approach to the cutting-stock problem, 1961.
Leaves out: CPUs, types and order of arrival.
"""

from __future__ import annotations

from math import gcd

import numpy as np
import numpy.typing as npt

from brimful.fleet.job import WHOLE_GPU

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
ROUNDS = 200  # 37 suffice for openb; unfinished prices are scaled until no GPU is worth more than one
CLOSE = 1e-9


def shadow_prices(sizes: Ints, demand: Floats) -> Floats:
    """The price of a task of each size, in GPUs: the simplex method, with a knapsack for each pattern."""
    if not len(sizes):
        return np.empty(0)
    unit = gcd(WHOLE_GPU, *sizes.tolist())
    small, room = sizes // unit, WHOLE_GPU // unit
    # One column per pattern: tasks of each size on a GPU.
    patterns = np.diag((room // small).astype(np.float64))
    used = demand / patterns.diagonal()
    price: Floats = np.ones(len(sizes))
    for _ in range(ROUNDS):
        price = np.maximum(np.linalg.solve(patterns.T, np.ones(len(sizes))), 0.0)
        pattern, worth = _best_pattern(small, price, room)
        if worth <= 1.0 + CLOSE:
            break
        enters = np.linalg.solve(patterns, pattern)
        able = enters > CLOSE
        ratio = np.where(able, used / np.where(able, enters, 1.0), np.inf)
        leaves = int(ratio.argmin())
        step = float(ratio[leaves])
        used = used - step * enters
        used[leaves] = step
        patterns[:, leaves] = pattern
    _, worth = _best_pattern(small, price, room)
    return price / max(worth, 1.0)


def most_worth(sizes: Ints, price: Floats, room: int) -> Floats:
    """The worth of a rest of 0, 1, … `room`: the best set of tasks that fits, by price."""
    best = np.zeros(room + 1)
    for rest in range(1, room + 1):
        fits = sizes <= rest
        held = float((best[rest - sizes[fits]] + price[fits]).max(initial=0.0))
        best[rest] = max(best[rest - 1], held)
    best[room] = max(best[room], 1.0)  # a whole GPU always finds a use
    return best


def _best_pattern(sizes: Ints, price: Floats, room: int) -> tuple[Floats, float]:
    best = np.zeros(room + 1)
    last = np.full(room + 1, -1)
    for rest in range(1, room + 1):
        best[rest] = best[rest - 1]
        held = np.where(sizes <= rest, best[np.maximum(rest - sizes, 0)] + price, 0.0)
        task = int(held.argmax())
        if held[task] > best[rest] + CLOSE:
            best[rest], last[rest] = held[task], task
    pattern, rest = np.zeros(len(sizes)), room
    while rest:
        if last[rest] < 0:
            rest -= 1
        else:
            pattern[last[rest]] += 1
            rest -= int(sizes[last[rest]])
    return pattern, float(best[room])
