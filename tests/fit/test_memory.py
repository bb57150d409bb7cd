from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.fit.activations import layer_bytes
from brimful.fit.count import parameters
from brimful.fit.memory import peak_memory
from brimful.specs.desktop import Others
from brimful.specs.estimate import Memory, Peak
from brimful.specs.framework import find_framework
from brimful.specs.gpu import find_gpu
from brimful.specs.model import Model
from brimful.specs.parts import Moment, Part
from brimful.specs.training import Training
from brimful.units import GIB, MIB
from tests.fit.builders import a_model, a_training

STATES: tuple[Part, ...] = ("weights", "gradients", "optimizer_state")


def memory_of(model: Model, training: Training, gpu: str = "rtx-4070", other_bytes: int = 0) -> Memory:
    return peak_memory(model, training, find_gpu(gpu), Others(bytes=other_bytes, basis="given"))


def item_bytes(memory: Memory, name: Part) -> int:
    return sum(item.bytes for item in memory.items if item.code == name)


models = st.builds(
    lambda heads, head_width, layers, vocab, bias, dropout: a_model(
        heads=heads, width=heads * head_width, layers=layers, vocab=vocab, bias=bias, dropout=dropout
    ),
    heads=st.integers(1, 32),
    head_width=st.sampled_from([32, 64, 128]),
    layers=st.integers(1, 96),
    vocab=st.integers(1, 300_000),
    bias=st.booleans(),
    dropout=st.sampled_from([0.0, 0.1]),
)
trainings = st.builds(
    a_training,
    batch_size=st.integers(1, 256),
    sequence_tokens=st.integers(1, 8192),
    accumulation=st.integers(1, 64),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    compiled=st.booleans(),
    attention=st.sampled_from(["flash", "math"]),
    checkpointing=st.sampled_from(["none", "full"]),
    optimizer_kernel=st.sampled_from(["fused", "foreach"]),
    loss_chunks=st.sampled_from([1, 8]),
)


@given(models, trainings, st.integers(0, 4 * GIB))
@settings(max_examples=100, deadline=None)
def test_the_items_sum_to_what_the_card_shows(model: Model, training: Training, other_bytes: int) -> None:
    memory = memory_of(model, training, other_bytes=other_bytes)

    assert sum(item.bytes for item in memory.items) == memory.device_bytes.likely
    assert all(item.bytes > 0 and item.why for item in memory.items)


@given(models, trainings)
@settings(max_examples=100, deadline=None)
def test_allocated_is_within_reserved_is_within_device(model: Model, training: Training) -> None:
    memory = memory_of(model, training)

    for low, high in (("low", "low"), ("likely", "likely"), ("high", "high")):
        assert getattr(memory.allocated_bytes, low) <= getattr(memory.reserved_bytes, high)
        assert getattr(memory.reserved_bytes, low) < getattr(memory.device_bytes, high)
    assert memory.first_step_bytes.likely <= memory.device_bytes.likely


@given(models, trainings)
@settings(max_examples=100, deadline=None)
def test_memory_grows_with_batch_length_layers_and_width(model: Model, training: Training) -> None:
    here = memory_of(model, training).allocated_bytes.likely
    more_tokens = [
        replace(training, batch_size=training.batch_size + 1),
        replace(training, sequence_tokens=training.sequence_tokens + 64),
    ]
    more_model = [
        replace(model, layers=model.layers + 1),
        replace(model, width=2 * model.width, mlp_width=8 * model.width),
        replace(model, vocab=model.vocab + 64),
    ]

    # A handful of tokens leaves the peak at the optimizer step, which knows nothing of tokens.
    assert all(memory_of(model, more).allocated_bytes.likely >= here for more in more_tokens)
    assert all(memory_of(more, training).allocated_bytes.likely > here for more in more_model)


def test_one_layer_keeps_36_bytes_for_each_number_of_its_hidden_state() -> None:
    kept = layer_bytes(a_model(width=768, heads=12), a_training(batch_size=1))

    small_change = 4 * 1024 * 12 + 2 * 2 * 4 * 1024  # log-sum-exp; mean and deviation of two norms
    assert sum(kept.values()) == 36 * 1024 * 768 + small_change


def test_weights_gradients_and_adam_take_16_bytes_a_parameter() -> None:
    memory = memory_of(a_model(), a_training())
    states = sum(item_bytes(memory, name) for name in STATES)

    assert states == 16 * parameters(a_model())


def test_fp16_saves_nothing_over_bf16() -> None:
    assert (
        memory_of(a_model(), a_training(dtype="float16")).device_bytes
        == memory_of(a_model(), a_training()).device_bytes
    )


def test_compiling_saves_the_fp32_copies_of_the_logits() -> None:
    compiled, eager = (memory_of(a_model(), a_training(compiled=c)) for c in (True, False))
    logits = 12 * 1024 * 50304

    assert item_bytes(compiled, "logits_loss") == 6 * logits
    assert item_bytes(eager, "logits_loss") == 12 * logits
    assert item_bytes(eager, "activations_mlp") == item_bytes(compiled, "activations_mlp")


def test_a_smaller_batch_saves_its_share_of_activations_and_logits_only() -> None:
    sixteen, twelve = (memory_of(a_model(width=576), a_training(batch_size=b)) for b in (16, 12))

    assert item_bytes(twelve, "logits_loss") == 0.75 * item_bytes(sixteen, "logits_loss")
    assert item_bytes(twelve, "weights") == item_bytes(sixteen, "weights")
    assert twelve.device_bytes.likely > 0.75 * sixteen.device_bytes.likely


def test_the_first_step_has_no_optimizer_state_yet() -> None:
    memory = memory_of(a_model(), a_training())

    assert memory.device_bytes.likely - memory.first_step_bytes.likely == 8 * parameters(a_model())


@pytest.mark.parametrize(
    ("model", "training", "moment"),
    [
        (a_model(), a_training(), "backward_start"),
        (a_model(vocab=64), a_training(), "last_layer_backward"),
        (
            a_model(layers=1, tied=False),
            a_training(batch_size=1, sequence_tokens=256),
            "output_gradient",
        ),
        (
            a_model(vocab=64),
            a_training(batch_size=1, sequence_tokens=16, accumulation=1),
            "backward_end",
        ),
        (
            a_model(vocab=64),
            a_training(batch_size=1, sequence_tokens=16, optimizer_kernel="foreach"),
            "optimizer_step",
        ),
    ],
)
def test_the_peak_moves_with_the_shape_of_the_run(model: Model, training: Training, moment: Moment) -> None:
    assert memory_of(model, training).peak_at == Peak(moment)


def test_other_programs_are_on_the_card_but_not_in_pytorchs_counters() -> None:
    alone, shared = (
        memory_of(a_model(), a_training()),
        memory_of(a_model(), a_training(), other_bytes=2100 * MIB),
    )

    assert shared.allocated_bytes == alone.allocated_bytes
    assert shared.reserved_bytes == alone.reserved_bytes
    assert shared.device_bytes.likely - alone.device_bytes.likely == 2100 * MIB


def test_the_published_process_on_an_rtx_4070_lies_within_the_interval() -> None:
    # nanoGPT 6 layers, 384 wide, 16 x 512 tokens, compiled: nvidia-smi showed 4464 MiB for the process.
    memory = memory_of(
        a_model(layers=6, heads=6, width=384, positions=512), a_training(batch_size=16, sequence_tokens=512)
    )

    assert memory.device_bytes.low < 4464 * MIB < memory.device_bytes.high


# ---- micro-steps of different lengths


SWIFT_LORA = a_training(
    batch_size=1, sequence_tokens=2048, accumulation=16, compiled=False, casts="none", checkpointing="full",
    tuning="lora", framework=find_framework("ms-swift"),
)  # fmt: skip
QWEN_7B = a_model(
    layers=32, heads=32, width=4096, mlp_width=11008, vocab=151_936, positions=0, tied=False, gated=True,
    norm="rms", rotary=True,
)  # fmt: skip


def test_lengths_that_vary_leave_a_cache_that_even_ones_do_not() -> None:
    even = memory_of(QWEN_7B, replace(SWIFT_LORA, even_lengths=True), "a100-80gb")
    varying = memory_of(QWEN_7B, SWIFT_LORA, "a100-80gb")
    moving = even.allocated_bytes.likely - item_bytes(even, "weights")

    assert varying.allocated_bytes == even.allocated_bytes
    assert 1.5 * moving < varying.reserved_bytes.likely - even.allocated_bytes.likely < 3 * moving
    assert sum(item.bytes for item in varying.items) == varying.device_bytes.likely


def test_that_cache_never_decides_whether_a_run_fits() -> None:
    for gpu in ("rtx-4090", "a100-40gb", "a100-80gb"):
        even = memory_of(QWEN_7B, replace(SWIFT_LORA, even_lengths=True), gpu)
        varying = memory_of(QWEN_7B, SWIFT_LORA, gpu)

        assert varying.needed_bytes == even.device_bytes
        assert varying.device_bytes.likely <= max(even.device_bytes.likely, find_gpu(gpu).memory_bytes)


def test_trained_in_full_the_optimizer_uses_that_space() -> None:
    full = replace(SWIFT_LORA, tuning="full")

    assert memory_of(QWEN_7B, full, "b200").spare_bytes.high == 0
