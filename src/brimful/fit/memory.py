"""Peak memory of a training step: what is alive at each moment, the largest moment, and the three counters.

Six moments can be the peak; which one depends on vocabulary, batch and depth:

    forward_end          every activation kept, and the loss being computed
    backward_start       every activation kept, and the gradient of the logits
    output_gradient      every activation kept, and a V·d gradient being computed
    last_layer_backward  every activation kept, and one layer's gradients
    backward_end         all gradients, and a tied table's two halves being added
    optimizer_step       no activations, all gradients
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add

from brimful.fit.activations import (
    kept_items,
    layer_backward_bytes,
    layer_bytes,
    layer_gradient_bytes,
    logits_bytes_per_number,
    quantized_inputs_bytes,
)
from brimful.fit.cache import cached_bytes, spare_bytes
from brimful.fit.count import output_parameters
from brimful.fit.formats import FP32_BYTES, number_bytes
from brimful.fit.overhead import (
    context_bytes,
    others_item,
    workspace_bytes,
)
from brimful.fit.stages import Stage, pipeline_stages
from brimful.fit.states import (
    cast_bytes,
    dequantized_bytes,
    dtype_bytes,
    fixed_items,
    gathered_bytes,
    gradient_bytes,
    reduce_bytes,
    waiting_bytes,
)
from brimful.language import Sentence, say
from brimful.specs.desktop import NO_OTHERS, Others
from brimful.specs.estimate import Interval, Item, Memory, Peak
from brimful.specs.gpu import Gpu
from brimful.specs.model import Model
from brimful.specs.parts import Moment
from brimful.specs.training import Training

# How far off the derived sizes may be, as shares of what is allocated and freed within a step; states are
# exact. Frozen models are less certain: a run seldom says which layers its adapter touches. Published runs
# are within these bounds in 6 of 7 cases (full training) and 32 of 38 (frozen).
_TRAINED_FRAC, _FROZEN_FRAC = (0.05, 0.12), (0.20, 0.25)


@dataclass(frozen=True, slots=True)
class _Moment:
    """One moment of a step: what changes from moment to moment, in bytes."""

    code: Moment
    gradients: int
    logits: int
    temporary: int
    why: Sentence  # for the temporaries
    casts: int = 0
    left: int = 0  # behind by the last micro-step
    alive: bool = True  # whether activations, casts and gathered weights are held


def peak_memory(model: Model, training: Training, gpu: Gpu, others: Others = NO_OTHERS) -> Memory:
    """The three counters at the larger of first and steady step, itemised at its peak.

    For a pipeline, of the stage that needs most.
    """
    stages = [_stage_memory(stage, training, gpu, others) for stage in pipeline_stages(model, training)]
    return max(stages, key=lambda memory: memory.device_bytes.likely)


def _stage_memory(stage: Stage, training: Training, gpu: Gpu, others: Others) -> Memory:
    model = stage.model
    weights, adapter, state, buckets = fixed = fixed_items(model, training)
    why = say("fit.why_gathered_stage") if training.pipeline > 1 else say("fit.why_gathered_layers")
    gathered = Item("gathered_weights", gathered_bytes(model, training), why)
    scratch = Item("workspaces", workspace_bytes(gpu), say("fit.why_workspaces"))
    kept = kept_items(model, training, stage.in_flight)
    always, kept_bytes = (sum(item.bytes for item in items) for items in ((*fixed, scratch), kept))

    def moving_at(moment: _Moment) -> int:
        """The part that is allocated and freed within the step."""
        return (kept_bytes if moment.alive else 0) + moment.logits + moment.temporary

    def bytes_at(moment: _Moment) -> int:
        alive = gathered.bytes + moment.casts + moment.left if moment.alive else 0
        return always + alive + moving_at(moment) + moment.gradients

    def first_bytes_at(moment: _Moment) -> int:
        """In the first step the optimizer has no state until its own step creates it."""
        return bytes_at(moment) - (0 if moment.code == "optimizer_step" else state.bytes)

    moments = _moments(model, training)
    peak, first = max(moments, key=bytes_at), max(moments, key=first_bytes_at)
    most = max(map(moving_at, moments))
    # The allocator's cache is left over from every moment of the step, not only from the peak.
    reserve = cached_bytes(model, training, most, gathered.bytes)
    shares = _TRAINED_FRAC if training.tuning == "full" else _FROZEN_FRAC
    allocated = _allocated(bytes_at(peak), moving_at(peak), shares)
    reserved = allocated.with_each(reserve, add)
    first_reserved = _allocated(first_bytes_at(first), moving_at(first), shares).with_each(reserve, add)
    context = context_bytes(gpu, gpus=training.gpus, lazy=training.torch.lazy_loading)
    room = gpu.memory_bytes - others.bytes - round(reserved.likely + context.likely)
    spare = spare_bytes(training, most, reserve, room)
    casts = Item("weight_casts", peak.casts, say("fit.why_weight_casts", dtype=training.dtype))
    left = Item("activations_last_step", peak.left, say("fit.why_quantized_inputs"))
    cached = say("fit.why_allocator_cache_lengths" if spare.likely else "fit.why_allocator_cache")
    items = [
        weights,
        adapter,
        Item("gradients", peak.gradients, say("fit.why_gradients")),
        state,
        buckets,
        *((casts, gathered, scratch, *kept, left) if peak.alive else (scratch,)),
        Item("logits_loss", peak.logits, _logits_why(model, training, peak.code)),
        Item("temporaries", peak.temporary, peak.why),
        Item("allocator_cache", round(reserve.likely + spare.likely), cached),
        Item("cuda_context", round(context.likely), say("fit.why_cuda_context")),
        others_item(others),
    ]

    def device(reserved: Interval) -> Interval:
        return reserved.with_each(context, lambda inside, outside: round(inside + outside) + others.bytes)

    held = reserved.with_each(spare, add)
    return Memory(
        allocated_bytes=allocated,
        reserved_bytes=held,
        device_bytes=device(held),
        spare_bytes=spare,
        first_step_bytes=device(first_reserved),
        items=tuple(item for item in items if item.bytes),
        peak_at=Peak(peak.code, stage.number, training.pipeline if stage.number else 0),
    )


def _moments(model: Model, training: Training) -> list[_Moment]:
    """The candidates for the peak, in the order of the step."""
    per_number = logits_bytes_per_number(training, model)
    numbers = 0
    if model.classes is None and model.last:
        numbers = training.micro_tokens * model.vocab // training.tensor
    logits = {name: round(each * numbers) for name, each in per_number.items()}
    every = gradient_bytes(model, training)
    waiting = waiting_bytes(model, training)
    forward = cast_bytes(model, training, at="forward")
    going_back = cast_bytes(model, training, at="layers")
    head = output_parameters(model) // training.tensor if training.tuning == "full" else 0
    wide = dequantized_bytes(model, training)
    layer = layer_backward_bytes(model, training) + reduce_bytes(model, training)
    first_layer = sum(layer_bytes(model, training).values()) + layer_gradient_bytes(model, training)
    tied = _tied_bytes(model, training)
    again = training.checkpointing != "none"
    layer_why = say("fit.why_layer_gradients_again") if again else say("fit.why_layer_gradients")
    return [
        _Moment(
            "forward_end",
            waiting,
            logits["forward"],
            wide,
            say("fit.why_output_dequantized"),
            casts=forward,
            left=quantized_inputs_bytes(model, training),
        ),
        _Moment(
            "backward_start",
            waiting,
            logits["backward"],
            0,
            layer_why,
            casts=cast_bytes(model, training, at="loss"),
        ),
        _output_gradient(model, training, logits, head=head, waiting=waiting),
        _Moment(
            "last_layer_backward",
            max(waiting, min(every, dtype_bytes(training.weights_dtype) * head)),
            logits["after"],
            layer,
            layer_why,
            casts=going_back,
        ),
        _Moment(
            "backward_end",
            max(every, waiting),
            logits["after"],
            max(tied, first_layer),
            say("fit.why_tied_table" if tied > first_layer else "fit.why_first_layer"),
            alive=False,
        ),
        _Moment(
            "optimizer_step",
            every,
            logits["after"],
            _step_bytes(model, training),
            say("fit.why_optimizer_copies"),
            alive=False,
        ),
    ]


def _output_gradient(
    model: Model, training: Training, logits: dict[str, int], *, head: int, waiting: int
) -> _Moment:
    """The output projection's weight gradient: while it is computed, or while autocast casts it to fp32.

    By then the matmul has freed its inputs: the gradient of the logits, and the weight's 16-bit copy.
    """
    wide, casts = dequantized_bytes(model, training), cast_bytes(model, training, at="loss")
    why = say("fit.why_output_gradient") if head else say("fit.why_output_dequantized")
    h = number_bytes(training)
    made = _Moment("output_gradient", waiting, logits["output"], h * head + wide, why, casts=casts)
    if not (training.casts == "autocast" and training.half):
        return made
    both = (h + FP32_BYTES) * head
    cast = _Moment("output_gradient", waiting, logits["after"], both, why, casts=max(0, casts - 2 * head))
    return max(made, cast, key=lambda moment: moment.logits + moment.temporary + moment.casts)


def _tied_bytes(model: Model, training: Training) -> int:
    """Both gradients of a tied table and their sum; autocast's first one is added into.

    The output's gradient is a view of the matmul's result, which the engine does not write into
    (torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace); cast to fp32 it is a separate tensor. If
    earlier micro-steps have left a gradient, that is one more. Seen in PyTorch's own memory profile.
    """
    if not model.tied or training.tuning != "full" or model.classes is not None:
        return 0
    if not (model.first and model.last):
        return 0  # the halves of the sum are on two stages
    cast_back = training.casts == "autocast" and training.half
    copies = (3 if training.accumulation > 1 else 2) - int(cast_back)
    return copies * dtype_bytes(training.weights_dtype) * model.vocab * model.width // training.tensor


def _step_bytes(model: Model, training: Training) -> int:
    """foreach AdamW makes one more copy on the way; the fused kernel none, a loop almost none."""
    copies = training.optimizer_kernel == "foreach" and training.optimizer in ("adamw", "adam")
    return gradient_bytes(model, training) if copies else 0


def _logits_why(model: Model, training: Training, moment: Moment) -> Sentence:
    shape = f"({training.batch_size}, {training.sequence_tokens}, {model.vocab})"
    if training.loss_chunks > 1:
        return say("fit.why_logits_chunk", n=training.loss_chunks, shape=shape)
    if moment == "backward_start":
        fused = training.compiled and training.loss_compiled and training.casts != "none"
        if fused:
            return say("fit.why_logits_fused", shape=shape)
        return say("fit.why_logits_copies", shape=shape)
    if moment == "forward_end":
        if training.compiled:
            return say("fit.why_logits_old_new", shape=shape)
        return say("fit.why_logits_old_new_copies", shape=shape)
    return say("fit.why_logits_held", shape=shape)


def _allocated(total: int, moving: int, shares: tuple[float, float]) -> Interval:
    less, more = shares
    return Interval(round(total - less * moving), total, round(total + more * moving))
