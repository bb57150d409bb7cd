"""Distillation: a student trained on a teacher's logits. The teacher only runs forward, without gradients.

    bytes = student's training peak + teacher's weights + teacher's logits of one micro-batch
    step  = student's step + teacher's forward passes over the same tokens

Leaves out: a teacher on separate GPUs, precomputed logits, losses on hidden states. The teacher's own
activations, one layer at a time, are freed before the student's exist, and are smaller.
"""

from __future__ import annotations

from dataclasses import replace

from brimful.errors import BadInput
from brimful.fit.correction import Correction
from brimful.fit.count import output_parameters
from brimful.fit.fit import estimate
from brimful.fit.inference import Serving, matmul_rate, prefill_seconds, weight_bytes
from brimful.language import Number, say
from brimful.specs.estimate import Estimate, Item
from brimful.specs.gpu import Gpu
from brimful.specs.model import Model
from brimful.specs.training import Training

PADDED = 128  # tokens: tables of one tokenizer differ by less, due to rounding up
LOGIT_BYTES = 4  # the teacher's log-probabilities, in fp32 as the loss requires


def distill(
    teacher: Model, student: Model, training: Training, gpu: Gpu, *, correction: Correction | None
) -> Estimate:
    """The student's estimate including the teacher; its MFU counts only the student's own work.

    Every GPU holds the whole teacher: a split of the student (shards, tensor, …) does not split it.
    """
    if -(-teacher.vocab // PADDED) != -(-student.vocab // PADDED):
        raise BadInput(
            say(
                "fit.vocabularies_differ",
                teacher=teacher.name,
                teacher_tokens=Number(teacher.vocab),
                student=student.name,
                student_tokens=Number(student.vocab),
            )
        )
    # A rented card drives no display.
    alone = estimate(student, training, gpu, 0, correction=correction)
    added = (
        Item("teacher_weights", weight_bytes(teacher, 16), say("fit.why_teacher_weights")),
        Item(
            "teacher_logits",
            LOGIT_BYTES * training.micro_tokens * teacher.vocab,
            say("fit.why_teacher_logits", n=training.micro_tokens),
        ),
    )
    more = sum(item.bytes for item in added)
    forward = training.accumulation * forward_seconds(
        teacher, gpu, sequences=training.batch_size, sequence_tokens=training.sequence_tokens
    )
    step = alone.speed.step_s.each(lambda seconds: seconds + forward)
    beside = alone.speed.step_s.likely / step.likely
    return replace(
        alone,
        memory=replace(
            alone.memory.each(lambda counter: counter.each(lambda size: size + more)),
            items=(*alone.memory.items, *added),
        ),
        speed=replace(
            alone.speed,
            step_s=step,
            tokens_per_s=step.rate(training.step_tokens),
            mfu=alone.speed.mfu.each(lambda share: share * beside),
            hfu=alone.speed.hfu.each(lambda share: share * beside),
        ),
    )


def forward_seconds(model: Model, gpu: Gpu, *, sequences: int, sequence_tokens: int) -> float:
    """One pass over whole sequences in 16 bits: prompts are read, and every token's logits are computed."""
    read = Serving(batch_size=sequences, prompt_tokens=sequence_tokens)
    flops = 2 * sequences * (sequence_tokens - 1) * output_parameters(model)
    return prefill_seconds(model, read, gpu) + flops / matmul_rate(read, gpu)
