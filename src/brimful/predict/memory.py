"""Peak memory of a training step: what is alive at each moment, the largest moment, and the three counters.

Five moments can be the peak; which one depends on vocabulary, batch and depth:

    end of the forward pass          every activation kept, and the loss being made
    start of the backward pass       every activation kept, and the gradient of the logits
    gradient of the output matrix    every activation kept, and a V·d gradient in the making
    backward pass of the last layer  every activation kept, and one layer's gradients
    optimizer step                   no activations, all gradients
"""

from __future__ import annotations

from dataclasses import dataclass

from brimful.predict.activations import (
    FP32_BYTES,
    kept_items,
    layer_backward_bytes,
    logits_bytes_per_number,
    number_bytes,
)
from brimful.predict.count import matmul_parameters, parameters
from brimful.predict.overhead import CACHE_FRAC, context_bytes, workspace_bytes
from brimful.specs.estimate import Interval, Item, Memory
from brimful.specs.gpu import Gpu
from brimful.specs.model import Model
from brimful.specs.training import Training

# How far off the derived sizes may be: kernels choose layouts and keep small tensors left out here.
# States are exact and carry no error.
_LOW_FRAC, _HIGH_FRAC = 0.05, 0.08

OPTIMIZER_STEP = "optimizer step"


@dataclass(frozen=True, slots=True)
class _Moment:
    name: str
    items: tuple[Item, ...]
    moving_bytes: int  # the part that comes and goes within the step

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)


def peak_memory(model: Model, training: Training, gpu: Gpu, *, other_bytes: int) -> Memory:
    """The three counters at the larger of first and steady step, itemised where it peaks."""
    moments = _moments(model, training, gpu, first=False)
    first = _largest(_moments(model, training, gpu, first=True))
    peak = _largest([*moments, first])
    # The allocator's cache is left over from every moment of the step, not from the peak alone.
    moving_bytes = max(moment.moving_bytes for moment in moments)
    allocated = _allocated(peak)
    reserved = _reserved(allocated, moving_bytes)
    context = context_bytes(gpu)
    items = (
        *peak.items,
        Item(
            "allocator cache",
            round(reserved.likely - allocated.likely),
            "freed blocks PyTorch keeps, and rounding",
        ),
        Item("CUDA context", round(context.likely), "driver and kernels, outside PyTorch"),
        Item("other programs", other_bytes, "desktop and other processes, as you said"),
    )
    kept = tuple(item for item in items if item.bytes)
    return Memory(
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=_device(reserved, context, other_bytes),
        first_step_bytes=_device(_reserved(_allocated(first), moving_bytes), context, other_bytes),
        items=kept,
        peak_at=f"{peak.name}, {'first' if peak is first else 'every'} step",
    )


def _largest(moments: list[_Moment]) -> _Moment:
    return max(moments, key=lambda moment: moment.bytes)


def _moments(model: Model, training: Training, gpu: Gpu, *, first: bool) -> list[_Moment]:
    """The five candidates. In the first step AdamW has no state until its optimizer step creates it."""
    h, n, v = number_bytes(training), training.micro_tokens, model.vocab
    kept = kept_items(model, training)
    casts = _casts(model, training)
    per_number = logits_bytes_per_number(training)
    table = v * model.width
    # Gradients of earlier micro-steps wait to be added to; without accumulation there are none yet.
    waiting = parameters(model) if training.accumulation > 1 else 0

    def during(
        name: str, *, gradients: int, logits: int, temporary: int, why: str, alive: bool = True
    ) -> _Moment:
        moving = [
            *(kept if alive else []),
            Item("logits and loss", logits, _logits_why(model, training, name)),
        ]
        moving.append(Item("temporaries", temporary, why))
        has_state = not first or name == OPTIMIZER_STEP
        fixed = [*_states(model, gradients=gradients, has_state=has_state), *(casts if alive else [])]
        fixed.append(Item("workspaces", workspace_bytes(gpu), "cuBLAS scratch"))
        return _Moment(name, (*fixed, *(i for i in moving if i.bytes)), sum(i.bytes for i in moving))

    def logits(moment: str) -> int:
        return per_number[moment] * v * (-(-n // training.loss_chunks))

    table_gradient = (h + FP32_BYTES if h == 2 else FP32_BYTES) * table
    layer = layer_backward_bytes(model, training)
    # foreach AdamW makes one more fp32 copy on the way; the fused kernel none
    step = 0 if (training.optimizer_kernel == "fused") else FP32_BYTES * parameters(model)
    return [
        during("end of the forward pass", gradients=waiting, logits=logits("forward"), temporary=0, why=""),
        during(
            "start of the backward pass", gradients=waiting, logits=logits("backward"), temporary=0, why=""
        ),
        during(
            "gradient of the output matrix",
            gradients=waiting,
            logits=logits("output"),
            temporary=table_gradient,
            why="gradient of the vocabulary table before it is added",
        ),
        during(
            "backward pass of the last layer",
            gradients=max(waiting, table),
            logits=logits("after"),
            temporary=layer,
            why="one layer's gradients"
            + (" and its activations made again" if (training.checkpointing == "full") else ""),
        ),
        during(
            OPTIMIZER_STEP,
            gradients=parameters(model),
            logits=logits("after"),
            temporary=step,
            why="foreach AdamW's copies",
            alive=False,
        ),
    ]


def _states(model: Model, *, gradients: int, has_state: bool) -> list[Item]:
    count = parameters(model)
    items = [Item("weights", FP32_BYTES * count, f"{count / 1e6:.1f} M parameters in fp32")]
    if gradients:
        items.append(Item("gradients", FP32_BYTES * gradients, "fp32, kept between micro-steps"))
    if has_state:
        items.append(Item("optimizer state", 2 * FP32_BYTES * count, "AdamW: two fp32 numbers a parameter"))
    return items


def _casts(model: Model, training: Training) -> list[Item]:
    """Autocast's 16-bit copies of every matmul weight, alive from forward until their backward."""
    if training.dtype == "float32":
        return []
    return [Item("weight casts", 2 * matmul_parameters(model), f"autocast's {training.dtype} copies")]


def _logits_why(model: Model, training: Training, moment: str) -> str:
    rows = f"({training.batch_size}, {training.sequence_tokens}, {model.vocab})"
    if training.loss_chunks > 1:
        return f"1/{training.loss_chunks} of {rows} at a time"
    if moment == "start of the backward pass":
        return f"{rows}: " + ("logits, gradient, zeros" if training.compiled else "logits, 3 fp32 copies")
    if moment == "end of the forward pass":
        return f"{rows}: old and new" + ("" if training.compiled else ", 2 fp32 copies")
    return f"{rows}: still held by train.py"


def _allocated(moment: _Moment) -> Interval:
    total, moving = moment.bytes, moment.moving_bytes
    return Interval(round(total - _LOW_FRAC * moving), total, round(total + _HIGH_FRAC * moving))


def _reserved(allocated: Interval, moving_bytes: int) -> Interval:
    low, likely, high = (round(frac * moving_bytes) for frac in CACHE_FRAC)
    return Interval(allocated.low + low, allocated.likely + likely, allocated.high + high)


def _device(reserved: Interval, context: Interval, other_bytes: int) -> Interval:
    return Interval(
        round(reserved.low + context.low) + other_bytes,
        round(reserved.likely) + round(context.likely) + other_bytes,
        round(reserved.high + context.high) + other_bytes,
    )
