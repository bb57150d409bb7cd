"""Peak memory of a training step: what is alive at each moment, the largest moment, and the three counters.

Six moments can be the peak; which one depends on vocabulary, batch and depth:

    end of the forward pass          every activation kept, and the loss being made
    start of the backward pass       every activation kept, and the gradient of the logits
    gradient of the output matrix    every activation kept, and a V·d gradient in the making
    backward pass of the last layer  every activation kept, and one layer's gradients
    end of the backward pass         all gradients, and a tied table's two halves being added
    optimizer step                   no activations, all gradients
"""

from __future__ import annotations

from dataclasses import dataclass

from brimful.predict.activations import (
    FP32_BYTES,
    kept_items,
    layer_backward_bytes,
    layer_bytes,
    logits_bytes_per_number,
    number_bytes,
)
from brimful.predict.count import output_parameters
from brimful.predict.overhead import (
    CACHE_FRAC,
    CHECKPOINTED_CACHE_FRAC,
    COMPILED_CACHE_FRAC,
    context_bytes,
    rounding_frac,
    workspace_bytes,
)
from brimful.predict.states import (
    cast_bytes,
    dtype_bytes,
    fixed_items,
    gathered_bytes,
    gradient_bytes,
    loading_bytes,
    reduce_bytes,
)
from brimful.specs.estimate import Interval, Item, Memory
from brimful.specs.gpu import Gpu
from brimful.specs.model import Model
from brimful.specs.training import Training

# How far off the derived sizes may be: kernels choose layouts and keep small tensors left out here.
# States are exact and carry no error.
_LOW_FRAC, _HIGH_FRAC = 0.05, 0.08

OPTIMIZER_STEP = "optimizer step"
END = "end of the backward pass"


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
    loading = _Moment(
        "loading",
        (Item("weights, whole", loading_bytes(model, training), "each GPU loads the model before sharding"),),
        0,
    )
    peak = _largest([*moments, first, loading])
    # The allocator's cache is left over from every moment of the step, not from the peak alone.
    moving_bytes = max(moment.moving_bytes for moment in moments)
    allocated = _allocated(peak)
    block = training.micro_tokens * model.width * number_bytes(training)
    rounding = rounding_frac(block) if training.compiled else 0.0
    reserved = _reserved(allocated, moving_bytes, training, rounding)
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
        first_step_bytes=_device(
            _reserved(_allocated(first), moving_bytes, training, rounding), context, other_bytes
        ),
        items=kept,
        peak_at=f"{peak.name}, {'first' if peak is first else 'every'} step",
    )


def _largest(moments: list[_Moment]) -> _Moment:
    return max(moments, key=lambda moment: moment.bytes)


def _moments(model: Model, training: Training, gpu: Gpu, *, first: bool) -> list[_Moment]:
    """The candidates. In the first step the optimizer has no state until its own step creates it."""
    kept = kept_items(model, training)
    casts = Item("weight casts", cast_bytes(model, training), f"autocast's {training.dtype} copies")
    gathered = Item("gathered weights", gathered_bytes(model, training), "two layers and the tables, whole")
    scratch = Item("workspaces", workspace_bytes(gpu), "cuBLAS scratch")
    per_number = logits_bytes_per_number(training)
    numbers = 0 if model.classes is not None else training.micro_tokens * model.vocab // training.tensor
    every = gradient_bytes(model, training)
    # Gradients of earlier micro-steps wait to be added to; without accumulation there are none yet.
    waiting = every if training.accumulation > 1 or training.keeps_gradients else 0
    head = _head_gradient_bytes(model, training)

    def during(name: str, *, gradients: int, logits: str, temporary: int, why: str) -> _Moment:
        alive = name not in (OPTIMIZER_STEP, END)
        moving = [
            *(kept if alive else []),
            Item("logits and loss", round(per_number[logits] * numbers), _logits_why(model, training, name)),
            Item("temporaries", temporary, why),
        ]
        fixed = fixed_items(
            model, training, gradients=gradients, has_state=not first or name == OPTIMIZER_STEP
        )
        fixed += [casts, gathered, scratch] if alive else [scratch]
        items = tuple(item for item in (*fixed, *moving) if item.bytes)
        return _Moment(name, items, sum(item.bytes for item in moving))

    again = " and its activations made again" if training.checkpointing != "none" else ""
    layer = layer_backward_bytes(model, training) + reduce_bytes(model, training)
    return [
        during("end of the forward pass", gradients=waiting, logits="forward", temporary=0, why=""),
        during("start of the backward pass", gradients=waiting, logits="backward", temporary=0, why=""),
        during(
            "gradient of the output matrix",
            gradients=waiting,
            logits="output",
            temporary=head,
            why="gradient of the vocabulary table before it is added",
        ),
        during(
            "backward pass of the last layer",
            gradients=max(waiting, min(every, head)),
            logits="after",
            temporary=layer,
            why=f"one layer's gradients{again}",
        ),
        during(
            END,
            gradients=every,
            logits="after",
            temporary=_tied_bytes(model, training) + sum(layer_bytes(model, training).values()),
            why="first layer, and the tied table's gradients",
        ),
        during(
            OPTIMIZER_STEP,
            gradients=every,
            logits="after",
            temporary=_step_bytes(model, training),
            why="copies the optimizer makes on the way",
        ),
    ]


def _head_gradient_bytes(model: Model, training: Training) -> int:
    """The output projection's weight gradient, in h and cast to the weight's format."""
    if training.tuning != "full":
        return 0
    h = number_bytes(training)
    each = h + FP32_BYTES if training.casts == "autocast" and training.half else h
    return each * output_parameters(model) // training.tensor


def _tied_bytes(model: Model, training: Training) -> int:
    """Both gradients of a tied table, which wait for each other and are added out of place.

    Where earlier micro-steps have left a gradient, their sum is one more. Found by reading live bytes at
    every op of a small GPT: without it the peak of a small batch came out up to 13 % low.
    """
    if not model.tied or training.tuning != "full" or model.classes is not None:
        return 0
    copies = 3 if training.accumulation > 1 else 2
    return copies * dtype_bytes(training.weights_dtype) * model.vocab * model.width // training.tensor


def _step_bytes(model: Model, training: Training) -> int:
    """foreach AdamW makes one more copy on the way; the fused kernel none, a loop next to none."""
    copies = training.optimizer_kernel == "foreach" and training.optimizer in ("adamw", "adam")
    return gradient_bytes(model, training) if copies else 0


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


def _reserved(allocated: Interval, moving_bytes: int, training: Training, rounding: float) -> Interval:
    shares = COMPILED_CACHE_FRAC if training.compiled else CACHE_FRAC
    low, likely, high = (round((frac + rounding) * moving_bytes) for frac in shares)
    if training.checkpointing == "full" and not training.compiled:
        # Made again in a different order than they were freed, activations leave more holes.
        likely = max(likely, round(CHECKPOINTED_CACHE_FRAC[1] * allocated.likely))
        high = max(high, round(CHECKPOINTED_CACHE_FRAC[2] * allocated.high))
    return Interval(allocated.low + low, allocated.likely + likely, allocated.high + high)


def _device(reserved: Interval, context: Interval, other_bytes: int) -> Interval:
    return Interval(
        round(reserved.low + context.low) + other_bytes,
        round(reserved.likely) + round(context.likely) + other_bytes,
        round(reserved.high + context.high) + other_bytes,
    )
