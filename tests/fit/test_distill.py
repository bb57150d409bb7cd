"""A distillation: the student's training and the teacher's forward pass, added up."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.configs.read import read
from brimful.errors import BadInput
from brimful.fit.count import forward_flops_per_token, parameters
from brimful.fit.distill import distill, forward_seconds
from brimful.fit.fit import estimate
from brimful.specs.gpu import find_gpu
from brimful.specs.presets import find_preset
from tests.builders import refuses

NANOGPT = str(Path(__file__).resolve().parents[2] / "examples" / "nanogpt" / "train_fineweb.py")
T4 = find_gpu("t4")


def test_it_is_the_students_training_and_the_teacher_beside_it() -> None:
    student = read(NANOGPT, overrides=["dtype='float16'", "batch_size=4", "gradient_accumulation_steps=8"])
    teacher = find_preset("gpt2-xl").model
    alone = estimate(student.model, student.training, T4, correction=None)
    both = distill(teacher, student.model, student.training, T4, correction=None)
    added = both.memory.device_bytes.likely - alone.memory.device_bytes.likely
    logits = 4 * student.training.micro_tokens * teacher.vocab
    assert added == pytest.approx(2 * parameters(teacher) + logits, rel=0.01)
    items = sum(item.bytes for item in both.memory.items)
    assert items == pytest.approx(both.memory.device_bytes.likely, rel=0.01)
    assert both.memory.allocated_bytes.low > alone.memory.allocated_bytes.high
    tokens = student.training.step_tokens
    step_s = both.speed.step_s.likely
    assert both.speed.tokens_per_s.likely == pytest.approx(tokens / step_s)
    # The teacher's forward pass of ten times the parameters against the student's three.
    own_frac = alone.speed.step_s.likely / step_s
    assert 0.6 < 1 - own_frac < 0.9
    assert both.speed.mfu.likely == pytest.approx(alone.speed.mfu.likely * own_frac)


def test_the_teachers_pass_is_never_faster_than_its_flops_at_peak() -> None:
    teacher = find_preset("gpt2-xl").model
    seconds = forward_seconds(teacher, T4, sequences=4, sequence_tokens=1024)
    flops = 4 * 1024 * forward_flops_per_token(teacher, sequence_tokens=512)
    assert seconds > flops / T4.dense_flops_per_s["fp16"]


def test_two_tokenizers_are_refused() -> None:
    student = read(NANOGPT)
    with refuses(BadInput, "fit.vocabularies_differ"):
        distill(find_preset("llama-3.1-8b").model, student.model, student.training, T4, correction=None)
