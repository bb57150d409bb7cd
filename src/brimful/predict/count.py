"""Parameters and FLOPs: the one count that predictor, meter and audit share.

MFU counts 6N + 12·L·d·T per token: every matrix multiply once forward and twice backward, attention in full
(not halved for causality), nothing for recomputation. N leaves out tables that are only looked up; a tied
output projection is a multiply and counts once.
Source: Chowdhery et al., PaLM, arXiv:2204.02311, appendix B; DESIGN.md "FLOPs".
"""

from __future__ import annotations

from brimful.specs.model import Model
from brimful.specs.training import Training


def layer_matmul_parameters(model: Model) -> int:
    """Weights one layer multiplies by: queries, keys and values, output, and the two sides of the MLP."""
    qkv = model.width * (model.width + 2 * model.kv_heads * model.head_width)
    return qkv + model.width * model.width + 2 * model.width * model.mlp_width


def matmul_parameters(model: Model) -> int:
    """N of the 6N: what each token is multiplied by, the output projection included."""
    return model.layers * layer_matmul_parameters(model) + model.vocab * model.width


def parameters(model: Model) -> int:
    """Every trained number, as `sum(p.numel() for p in model.parameters())` counts them.

    Formula: layers · (matmuls + norms + biases) + final norm + token table + position table, and the
    output projection once more where it is not tied.
    """
    norm = model.width * (2 if model.bias else 1)
    qkv_bias = model.width + 2 * model.kv_heads * model.head_width
    biases = qkv_bias + model.width + model.mlp_width + model.width if model.bias else 0
    layer = layer_matmul_parameters(model) + 2 * norm + biases
    tables = (model.vocab * (1 if model.tied else 2) + model.positions) * model.width
    return model.layers * layer + norm + tables


def forward_flops_per_token(model: Model, *, sequence_tokens: int) -> int:
    """2 per weight multiplied, and 4·T·d per layer for scores and their sum with the values."""
    return 2 * matmul_parameters(model) + 4 * model.layers * model.width * sequence_tokens


def model_flops_per_token(model: Model, *, sequence_tokens: int) -> int:
    """6N + 12·L·d·T: the backward pass costs twice the forward pass."""
    return 3 * forward_flops_per_token(model, sequence_tokens=sequence_tokens)


def step_flops(model: Model, training: Training) -> int:
    """FLOPs of one optimizer step that MFU counts."""
    return model_flops_per_token(model, sequence_tokens=training.sequence_tokens) * training.step_tokens


def recompute_flops(model: Model, training: Training) -> int:
    """FLOPs of one optimizer step that HFU adds: what is multiplied a second time to save memory."""
    flops = 0
    if training.checkpointing == "full":
        layers = 2 * model.layers * layer_matmul_parameters(model)
        flops += layers + 4 * model.layers * model.width * training.sequence_tokens
    if training.loss_chunks > 1:
        flops += 2 * model.vocab * model.width
    return flops * training.step_tokens
