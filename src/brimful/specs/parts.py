"""Codes of the parts of memory and the moments of a step: one set, for predictions and for traces."""

from __future__ import annotations

from typing import Literal, get_args

from brimful.language import Sentence

Part = Literal[
    "weights", "gradients", "optimizer_state", "adapter", "buffers", "data",
    "weight_casts", "ddp_buckets", "gathered_weights", "teacher_weights", "teacher_logits", "kv_cache",
    "activations", "activations_norms", "activations_attention", "activations_mlp", "activations_experts",
    "activations_dropout_masks", "activations_adapter", "activations_kept", "activations_layer_inputs",
    "activations_last_step", "activations_ends",
    "logits_loss", "temporaries", "optimizer_temporaries", "compiled_temporaries",
    "workspaces", "kernel_buffers", "rounding", "allocator_cache",
    "cuda_context", "other_programs", "calibration",
]  # fmt: skip
PARTS: tuple[Part, ...] = get_args(Part)
Moment = Literal[
    "forward_end",
    "backward_start",
    "output_gradient",
    "last_layer_backward",
    "backward_end",
    "optimizer_step",
]


def part(code: Part) -> Sentence:
    """The name of a part of the memory."""
    return Sentence(f"specs.part_{code}", {})


def moment(code: Moment) -> Sentence:
    return Sentence(f"specs.moment_{code}", {})
