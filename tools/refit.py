"""How the constants of `roofline.Rates` were fitted, and how well they do on runs they have not seen.

Fitting: a seeded random search over all constants at once, starting from counted or published values
(`COUNTED`). It minimises the mean |log(predicted / measured)| of tokens per second, half by runs and half by
sources, so that a source with many runs does not dominate. Errors beyond a factor of two count no more than
that.

Cross-validation: runs of one family (source, model and card) resemble each other, so families are kept
together. Each fifth of them is predicted by constants fitted to the other four, from the same start.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean

from brimful.accuracy.runs import Row, Run, Skipped, understand
from brimful.fit.roofline import Rates, predict_speed

# The possible range of each constant.
LIMITS: dict[str, tuple[float, float]] = {
    "matmul_frac": (0.6, 1.0),
    "small_width": (20, 600),
    "attention_frac": (0.2, 0.9),
    "short_tokens": (50, 3000),
    "eager_bytes": (80, 500),
    "compiled_bytes": (40, 250),
    "python_norm_bytes": (20, 800),
    "fused_norm_frac": (0.1, 1.0),
    "autocast_bytes": (5, 300),
    "lora_bytes": (2, 150),
    "geforce_clock": (1.0, 1.12),
    "amd_frac": (0.5, 1.0),
    "cached_bandwidth": (1.0, 2.5),
    "launch_s": (4e-6, 2e-5),
    "node_link_frac": (0.1, 0.45),
    "pcie_bytes_per_s": (1e9, 1e10),
    "network_bytes_per_s": (8e9, 5e10),
    "hidden_frac": (0.5, 1.0),
    "collective_s": (5e-5, 5e-4),
}
# Where the search starts.
COUNTED = Rates(
    matmul_frac=0.95,  # a benchmark's best shape is rarely the model's
    small_width=60,
    attention_frac=0.65,  # FlashAttention-2 forward 73 %, backward 63 % of an A100's 312 at best: 0.75 of 271
    short_tokens=700,
    # Counted op by op, forward and twice that backward: two norms, two residual sums, copies of heads (130);
    # for a norm in Python 30 bytes each, for rotary positions 30 (270); fused (70), cast inputs (30).
    eager_bytes=130,
    compiled_bytes=70,
    python_norm_bytes=270,
    fused_norm_frac=0.35,
    autocast_bytes=30,
    lora_bytes=22,
    geforce_clock=1.06,  # RTX 3060 to 5090: 1.00 to 1.16 of the peak measured where 0.9 is usual
    amd_frac=0.75,
    cached_bandwidth=1.6,
    launch_s=9e-6,
    node_link_frac=0.25,  # an all-reduce in NCCL's tests: 230 of 600 GB/s on an A100, less for small buckets
    pcie_bytes_per_s=5e9,
    network_bytes_per_s=2.5e10,  # one 200 Gbit/s adapter per GPU
    hidden_frac=0.8,
    collective_s=2e-4,
)
FAR_OFF = math.log(2)
SEED, EVALUATIONS, FOLDS = 1, 1200, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A run whose speed was published."""

    id: str
    family: str
    run: Run
    tokens_per_s_per_gpu: float

    @property
    def source(self) -> str:
        return self.id.split("-")[0]


def timed_runs(rows: Iterable[Row], quality: Mapping[str, Mapping[str, str]]) -> list[Timed]:
    """The rows that the quality table marks as a throughput test."""
    found = []
    for row in rows:
        marks = quality.get(row["id"], {})
        if marks.get("throughput_test") != "yes" or not row.get("tokens_per_s_per_gpu"):
            continue
        try:
            run = understand(row)
        except Skipped:
            continue
        rate = float(row["tokens_per_s_per_gpu"])
        found.append(Timed(id=row["id"], family=marks["family"], run=run, tokens_per_s_per_gpu=rate))
    return found


def ratio(each: Timed, rates: Rates) -> float:
    """Predicted / measured tokens per second."""
    run = each.run
    speed = predict_speed(run.model, run.training, run.gpu, rates)
    return speed.tokens_per_s.likely / run.training.gpus / each.tokens_per_s_per_gpu


def loss(runs: Sequence[Timed], rates: Rates) -> float:
    """What the search minimises: 0.1 is about 10 % off, by runs and by sources."""
    by_source: dict[str, list[float]] = {}
    for each in runs:
        off = min(abs(math.log(ratio(each, rates))), FAR_OFF)
        by_source.setdefault(each.source, []).append(off)
    by_runs = fmean(off for values in by_source.values() for off in values)
    return (by_runs + fmean(map(fmean, by_source.values()))) / 2


def search(runs: Sequence[Timed], rng: random.Random, *, evaluations: int = EVALUATIONS) -> Rates:
    """Change one to three constants at a time and keep improvements; large steps first, small ones later."""
    best, least = COUNTED, loss(runs, COUNTED)
    for i in range(evaluations):
        step = 0.6 * (0.05 / 0.6) ** (i / evaluations)
        changes = {}
        for name in rng.sample(list(LIMITS), rng.choice([1, 1, 2, 3])):
            low, high = LIMITS[name]
            changes[name] = max(low, min(high, getattr(best, name) * math.exp(rng.gauss(0, step))))
        tried = replace(best, **changes)
        found = loss(runs, tried)
        if found < least:
            best, least = tried, found
    return best


def at_limit(rates: Rates) -> list[str]:
    """Constants that the data would push beyond what is sensible: they absorb what the formula leaves out."""
    return [
        name for name, value in asdict(rates).items() if value in LIMITS[name] or _near(value, LIMITS[name])
    ]


def _near(value: float, limits: tuple[float, float]) -> bool:
    return any(abs(value / limit - 1) < 0.005 for limit in limits)


def folds(groups: Iterable[str], count: int = FOLDS) -> dict[str, int]:
    """Group -> fold. Groups stay together; the largest goes to the emptiest fold."""
    sizes: dict[str, int] = {}
    for group in groups:
        sizes[group] = sizes.get(group, 0) + 1
    filled = [0] * count
    placed = {}
    for group, size in sorted(sizes.items(), key=lambda pair: (-pair[1], pair[0])):
        fold = filled.index(min(filled))
        placed[group] = fold
        filled[fold] += size
    return placed


def cross_validated(
    runs: Sequence[Timed],
    group: Callable[[Timed], str],
    fit: Callable[[Sequence[Timed]], Rates],
    *,
    count: int = FOLDS,
) -> dict[str, float]:
    """Run -> predicted / measured, with constants that `fit` found without any run of its group."""
    placed = folds(map(group, runs), count)
    found: dict[str, float] = {}
    for fold in range(count):
        seen = [each for each in runs if placed[group(each)] != fold]
        left_out = [each for each in runs if placed[group(each)] == fold]
        if seen and left_out:
            rates = fit(seen)
            found |= {each.id: ratio(each, rates) for each in left_out}
    return found
