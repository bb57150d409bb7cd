"""Step time: multiplies at a rate cards reach, the rest at the speed of memory, never faster than launches.

A first honest estimate with a wide interval. Each part of a micro-step is timed by what limits it:

    matmuls      FLOPs / (achievable rate · d/(d+32)): start and end of a tile loop weigh more when d is small
    attention    half of the counted FLOPs (causal), backward 2.5 times forward, at 55 % of the rate
    the rest     bytes moved / (90 % of the bandwidth)
    launches     kernels · time to launch one; the GPU waits where this is the largest
"""

from __future__ import annotations

from dataclasses import dataclass

from brimful.predict.count import matmul_parameters, parameters, recompute_flops, step_flops
from brimful.specs.estimate import Interval, Speed
from brimful.specs.gpu import Gpu
from brimful.specs.model import Model
from brimful.specs.training import Training

# Share of the dense peak a large bf16 matmul reaches where nobody measured the card itself.
# Source: measured on other cards: A100 0.87, H100 0.80, B200 0.78 (NVIDIA, large), L20 0.92 (small chip),
# MI300X 0.51, MI355X 0.63 (AMD). GeForce cards clock about a tenth above the boost their peak is given for.
_LARGE, _SMALL, _AMD, _GEFORCE_CLOCK = 0.82, 0.92, 0.57, 1.10
_SMALL_CHIP_FLOPS_PER_S = 170e12

_BANDWIDTH_FRAC = 0.90
_ATTENTION_FRAC = 0.55
_ATTENTION_BACKWARD = (1 + 2.5) / 3  # flash attention makes the scores again going back

# Bytes moved beside the matmuls, for each number of a hidden state (d of them a token) in one layer, forward
# and backward. Compiled: add + norm 16 twice, GELU 16, its backward 24, norm backward 22 twice. Eager makes
# each cast, addition and copy a kernel of its own.
_LAYER_BYTES = {True: 116, False: 180}
# The same for each logit: reads and writes of the loss and its gradient.
_LOGIT_BYTES = {True: 12, False: 40}
# For each parameter: casts and adding to the gradient in a micro-step; clipping and AdamW in a step.
_MICRO_BYTES, _STEP_BYTES = 18, 40

# Kernels a layer launches forward and backward, and seconds to launch one.
_KERNELS = {True: 24, False: 60}
_LAUNCH_S = {True: 3e-6, False: 6e-6}

# How much faster or slower than likely the truth may be. Too few measurements yet to say better.
_SLOWER, _FASTER = 1.40, 0.80
_SLOWER_AMD = 1.9  # published AMD runs lie far below what their matmuls reach


@dataclass(frozen=True, slots=True)
class _Parts:
    compute_s: float
    bandwidth_s: float
    launch_s: float

    @property
    def total_s(self) -> float:
        return max(self.compute_s + self.bandwidth_s, self.launch_s)

    @property
    def bound_by(self) -> str:
        if self.launch_s > self.compute_s + self.bandwidth_s:
            return "launch"
        return "compute" if self.compute_s >= self.bandwidth_s else "bandwidth"


def peak_format(training: Training, gpu: Gpu) -> str:
    """The number format whose peak the run is measured against: its own, or fp32 where the card lacks it."""
    wanted = {"bfloat16": "bf16", "float16": "fp16", "float32": "tf32"}[training.dtype]
    return wanted if wanted in gpu.dense_flops_per_s else "fp32"


def achievable_flops_per_s(gpu: Gpu, number: str) -> float:
    """The rate a large matmul reaches in this format; measured for the card where anyone did."""
    peak = gpu.dense_flops_per_s[number]
    if gpu.achievable_flops_per_s is not None and "bf16" in gpu.dense_flops_per_s:
        return peak * gpu.achievable_flops_per_s / gpu.dense_flops_per_s["bf16"]
    if gpu.vendor == "AMD":
        return peak * _AMD
    frac = _SMALL if peak < _SMALL_CHIP_FLOPS_PER_S else _LARGE
    return peak * frac * (_GEFORCE_CLOCK if "GeForce" in gpu.title else 1.0)


def predict_speed(model: Model, training: Training, gpu: Gpu) -> Speed:
    """Step time, tokens per second and MFU against this card's own peak."""
    number = peak_format(training, gpu)
    peak = gpu.dense_flops_per_s[number]
    micro = _micro_step(model, training, gpu, number)
    optimizer_s = _STEP_BYTES * parameters(model) / (_BANDWIDTH_FRAC * gpu.bandwidth_bytes_per_s)
    likely_s = training.accumulation * micro.total_s + optimizer_s
    slower = _SLOWER_AMD if gpu.vendor == "AMD" else _SLOWER
    step = Interval(likely_s * _FASTER, likely_s, likely_s * slower)
    flops = step_flops(model, training)
    hardware = flops + recompute_flops(model, training)
    return Speed(
        step_s=step,
        tokens_per_s=_rate(training.step_tokens, step),
        mfu=_share(flops / peak, step),
        hfu=_share(hardware / peak, step),
        peak_flops_per_s=peak,
        peak_format=number,
        bound_by=micro.bound_by,
    )


def _micro_step(model: Model, training: Training, gpu: Gpu, number: str) -> _Parts:
    tokens, rate = training.micro_tokens, achievable_flops_per_s(gpu, number)
    attention = 12 * model.layers * model.width * training.sequence_tokens * tokens
    again = recompute_flops(model, training) / training.accumulation
    matmul_s = (6 * matmul_parameters(model) * tokens + again) / (rate * model.width / (model.width + 32))
    attention_s = (
        attention
        * (0.5 if (training.attention == "flash") else 1.0)
        * _ATTENTION_BACKWARD
        / (rate * _ATTENTION_FRAC)
    )
    moved = (
        tokens
        * model.layers
        * model.width
        * _LAYER_BYTES[training.compiled]
        * (1.3 if (training.checkpointing == "full") else 1)
    )
    moved += tokens * model.vocab * _LOGIT_BYTES[training.compiled] + _MICRO_BYTES * parameters(model)
    if training.attention != "flash":
        # the score matrix is written and read about ten times, forward and backward, in 2 to 4 bytes
        moved += 30 * tokens * model.layers * model.heads * training.sequence_tokens
    kernels = model.layers * _KERNELS[training.compiled] + 40 * training.loss_chunks
    return _Parts(
        compute_s=matmul_s + attention_s,
        bandwidth_s=moved / (_BANDWIDTH_FRAC * gpu.bandwidth_bytes_per_s),
        launch_s=kernels * _LAUNCH_S[training.compiled],
    )


def _rate(amount: float, step: Interval) -> Interval:
    return Interval(amount / step.high, amount / step.likely, amount / step.low)


def _share(peak_s: float, step: Interval) -> Interval:
    """Part of the peak reached; never above 1, whatever the interval allows."""
    return Interval(*(min(1.0, peak_s / seconds) for seconds in (step.high, step.likely, step.low)))
