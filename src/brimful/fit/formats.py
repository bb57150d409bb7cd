"""How many bytes a number has, by where it is: in a matmul, in the residual stream, in what is kept."""

from __future__ import annotations

from brimful.specs.training import Training

FP32_BYTES = 4
FP8_BYTES = 1
MASK_BYTES = 1  # a dropout mask has one byte per number


def number_bytes(training: Training) -> int:
    """Bytes of a number in a matrix multiply."""
    return 2 if training.half else 4


def residual_bytes(training: Training) -> int:
    """Bytes per number in the residual stream, which has the format of the table it starts from."""
    wide = training.casts == "autocast" and training.tables_dtype == "float32"
    return FP32_BYTES if wide else number_bytes(training)


def input_bytes(training: Training) -> int:
    """Bytes per number that a linear layer keeps of its input.

    torchao's fp8 layers keep 16 bits and cast again in the backward pass (float8_linear.py,
    save_for_backward(input_hp, …)); Transformer Engine's keep the fp8 cast (pytorch/module/linear.py).
    """
    return FP8_BYTES if training.fp8_inputs else number_bytes(training)


def autocasts(training: Training) -> bool:
    """Whether every matmul that reads an fp32 tensor makes its own 16-bit copy, and keeps it.

    Autocast caches only casts of weights; compiled code makes one copy.
    Source: PyTorch, aten/src/ATen/autocast_mode.cpp, cached_cast: only leaves that need a gradient.
    """
    return training.half and training.casts == "autocast" and not training.compiled
