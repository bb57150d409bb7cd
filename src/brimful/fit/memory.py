"""Peak memory of a training step: what is alive at each moment, the largest moment, and the three counters.

Six moments can be the peak; which one depends on vocabulary, batch and depth:

    forward_end          every activation kept, and the loss being made
    backward_start       every activation kept, and the gradient of the logits
    output_gradient      every activation kept, and a V·d gradient in the making
    last_layer_backward  every activation kept, and one layer's gradients
    backward_end         all gradients, and a tied table's two halves being added
    optimizer_step       no activations, all gradients
"""

from __future__ import annotations

from dataclasses import dataclass

from brimful.fit.activations import (
    FP32_BYTES,
    kept_items,
    layer_backward_bytes,
    layer_bytes,
    layer_gradient_bytes,
    logits_bytes_per_number,
    number_bytes,
    quantized_inputs_bytes,
)
from brimful.fit.count import output_parameters
from brimful.fit.overhead import (
    CACHE_FRAC,
    CHECKPOINTED_CACHE_FRAC,
    COMPILED_CACHE_FRAC,
    context_bytes,
    others_item,
    rounding_frac,
    workspace_bytes,
)
from brimful.fit.stages import Stage, pipeline_stages
from brimful.fit.states import (
    adapter_bytes,
    bucket_bytes,
    cast_bytes,
    dequantized_bytes,
    dtype_bytes,
    fixed_items,
    gathered_bytes,
    gradient_bytes,
    optimizer_bytes,
    reduce_bytes,
    waiting_bytes,
    weights_bytes,
)
from brimful.language import Sentence, say
from brimful.specs.desktop import NO_OTHERS, Others
from brimful.specs.estimate import Interval, Item, Memory, Peak
from brimful.specs.gpu import Gpu
from brimful.specs.model import Model
from brimful.specs.parts import Moment
from brimful.specs.training import Training

# How far off the derived sizes may be, as shares of what comes and goes within a step; states are exact.
# Frozen models are less certain: a run seldom says which layers its adapter touches. Published runs lie
# within in 6 of 7 cases (trained in full) and 32 of 38 (frozen).
_TRAINED_FRAC, _FROZEN_FRAC = (0.05, 0.12), (0.20, 0.25)


@dataclass(frozen=True, slots=True)
class _Moment:
    """One moment of a step: what changes from moment to moment, in bytes."""

    code: Moment
    gradients: int
    logits: int
    temporary: int
    why: Sentence  # of the temporaries
    casts: int = 0
    left: int = 0  # behind by the last micro-step
    alive: bool = True  # whether activations, casts and gathered weights are held


@dataclass(frozen=True, slots=True)
class _Held:
    """What is the same at every moment of the step."""

    weights: int  # and adapter and DDP buckets
    state: int
    gathered: int  # weights: only while activations are alive
    scratch: int
    kept: int

    def bytes_at(self, moment: _Moment, *, has_state: bool) -> int:
        alive = self.gathered + self.kept + moment.casts + moment.left if moment.alive else 0
        state = self.state if has_state else 0
        return self.weights + state + self.scratch + alive + self.moving_at(moment, kept=0) + moment.gradients

    def moving_at(self, moment: _Moment, *, kept: int | None = None) -> int:
        """The part that comes and goes within the step."""
        held = self.kept if kept is None else kept
        return (held if moment.alive else 0) + moment.logits + moment.temporary


def peak_memory(model: Model, training: Training, gpu: Gpu, others: Others = NO_OTHERS) -> Memory:
    """The three counters at the larger of first and steady step, itemised where it peaks.

    Of a pipeline it is the stage that needs most.
    """
    stages = [_stage_memory(stage, training, gpu, others) for stage in pipeline_stages(model, training)]
    return max(stages, key=lambda memory: memory.device_bytes.likely)


def _stage_memory(stage: Stage, training: Training, gpu: Gpu, others: Others) -> Memory:
    model = stage.model
    kept = kept_items(model, training, stage.in_flight)
    held = _Held(
        weights=weights_bytes(model, training)
        + adapter_bytes(model, training)
        + bucket_bytes(model, training),
        state=optimizer_bytes(model, training),
        gathered=gathered_bytes(model, training),
        scratch=workspace_bytes(gpu),
        kept=sum(item.bytes for item in kept),
    )
    moments = _moments(model, training)
    steady = max(moments, key=lambda moment: held.bytes_at(moment, has_state=True))
    steady_bytes = held.bytes_at(steady, has_state=True)
    # In the first step the optimizer has no state until its own step creates it.
    first_bytes, first = max(
        ((held.bytes_at(each, has_state=each.code == "optimizer_step"), each) for each in moments),
        key=lambda pair: pair[0],
    )
    # The allocator's cache is left over from every moment of the step, not from the peak alone.
    moving = max(held.moving_at(moment) for moment in moments)
    reserve = _Reserve.of(model, training, moving, gathered_bytes(model, training))
    shares = _TRAINED_FRAC if training.tuning == "full" else _FROZEN_FRAC
    allocated = _allocated(steady_bytes, held.moving_at(steady), shares)
    reserved = reserve.over(allocated)
    first_reserved = reserve.over(_allocated(first_bytes, held.moving_at(first), shares))
    context = context_bytes(gpu, gpus=training.gpus, lazy=training.torch.lazy_loading)
    items = _items(model, training, gpu, kept, steady)
    items += [
        Item(
            "allocator_cache",
            round(reserved.likely - allocated.likely),
            say("fit.why_allocator_cache"),
        ),
        Item("cuda_context", round(context.likely), say("fit.why_cuda_context")),
        others_item(others),
    ]
    return Memory(
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=_device(reserved, context, others.bytes),
        first_step_bytes=_device(first_reserved, context, others.bytes),
        items=tuple(item for item in items if item.bytes),
        peak_at=Peak(steady.code, stage.number, training.pipeline if stage.number else 0),
    )


def _items(model: Model, training: Training, gpu: Gpu, kept: list[Item], moment: _Moment) -> list[Item]:
    """What is alive at one moment of the steady step, by name."""
    items = fixed_items(model, training, gradients=moment.gradients)
    items.append(Item("ddp_buckets", bucket_bytes(model, training), say("fit.why_ddp_buckets")))
    if moment.alive:
        items += [
            Item("weight_casts", moment.casts, say("fit.why_weight_casts", dtype=training.dtype)),
            Item("gathered_weights", gathered_bytes(model, training), _gathered_why(training)),
        ]
    items.append(Item("workspaces", workspace_bytes(gpu), say("fit.why_workspaces")))
    if moment.alive:
        items += kept
        items.append(Item("activations_last_step", moment.left, say("fit.why_quantized_inputs")))
    items += [
        Item("logits_loss", moment.logits, _logits_why(model, training, moment.code)),
        Item("temporaries", moment.temporary, moment.why),
    ]
    return items


def _gathered_why(training: Training) -> Sentence:
    if training.pipeline > 1:
        return say("fit.why_gathered_stage")
    return say("fit.why_gathered_layers")


def _moments(model: Model, training: Training) -> list[_Moment]:
    """The candidates for the peak, in the order of the step."""
    per_number = logits_bytes_per_number(training)
    numbers = 0
    if model.classes is None and model.last:
        numbers = training.micro_tokens * model.vocab // training.tensor
    logits = {name: round(each * numbers) for name, each in per_number.items()}
    every = gradient_bytes(model, training)
    waiting = waiting_bytes(model, training)
    forward = cast_bytes(model, training, forward=True)
    going_back = cast_bytes(model, training, forward=False)
    head = _head_gradient_bytes(model, training)
    wide = dequantized_bytes(model, training)
    layer = layer_backward_bytes(model, training) + reduce_bytes(model, training)
    first_layer = sum(layer_bytes(model, training).values()) + layer_gradient_bytes(model, training)
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
        _Moment("backward_start", waiting, logits["backward"], 0, layer_why, casts=going_back),
        _Moment(
            "output_gradient",
            waiting,
            logits["output"],
            head + wide,
            say("fit.why_output_gradient") if head else say("fit.why_output_dequantized"),
            casts=going_back,
        ),
        _Moment(
            "last_layer_backward",
            max(waiting, min(every, head)),
            logits["after"],
            layer,
            layer_why,
            casts=going_back,
        ),
        _Moment(
            "backward_end",
            max(every, waiting),
            logits["after"],
            _tied_bytes(model, training) + first_layer,
            say("fit.why_first_layer"),
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
    if not (model.first and model.last):
        return 0  # the halves of the sum lie on two stages
    copies = 3 if training.accumulation > 1 else 2
    return copies * dtype_bytes(training.weights_dtype) * model.vocab * model.width // training.tensor


def _step_bytes(model: Model, training: Training) -> int:
    """foreach AdamW makes one more copy on the way; the fused kernel none, a loop next to none."""
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


@dataclass(frozen=True, slots=True)
class _Reserve:
    """What the allocator holds beyond what is allocated."""

    low: int
    likely: int
    high: int

    @classmethod
    def of(cls, model: Model, training: Training, moving: int, gathered: int) -> _Reserve:
        shares = COMPILED_CACHE_FRAC if training.compiled else CACHE_FRAC
        rounding = rounding_frac(training.micro_tokens * model.width * number_bytes(training))
        if training.checkpointing == "full" and not training.compiled:
            # Made again in a different order than they were freed, activations leave more holes.
            shares, rounding, moving = CHECKPOINTED_CACHE_FRAC, 0.0, moving + gathered
        return cls(*(round((share + rounding) * moving) for share in shares))

    def over(self, allocated: Interval) -> Interval:
        return Interval(allocated.low + self.low, allocated.likely + self.likely, allocated.high + self.high)


def _device(reserved: Interval, context: Interval, other_bytes: int) -> Interval:
    return Interval(
        round(reserved.low + context.low) + other_bytes,
        round(reserved.likely) + round(context.likely) + other_bytes,
        round(reserved.high + context.high) + other_bytes,
    )
