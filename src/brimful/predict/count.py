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
    """Weights one layer multiplies by: queries, keys and values, output, and the sides of the MLP."""
    attention = model.width * (2 * model.query_width + 2 * model.kv_width)
    return attention + (3 if model.gated else 2) * model.width * model.mlp_width


def output_parameters(model: Model) -> int:
    """The projection from hidden state to vocabulary; next to nothing where a classifier stands instead."""
    return 0 if model.classes is not None else model.vocab * model.width


def matmul_parameters(model: Model) -> int:
    """N of the 6N: what each token is multiplied by, the output projection included."""
    return model.layers * layer_matmul_parameters(model) + output_parameters(model)


def parameters(model: Model) -> int:
    """Every number of the model, as `sum(p.numel() for p in model.parameters())` counts them.

    Formula: layers · (matmuls + norms + biases) + final norm + tables, and the output projection once more
    where it is not tied.
    """
    norm = _norm_parameters(model)
    biases = 0
    if model.bias if model.qkv_bias is None else model.qkv_bias:
        biases += model.query_width + 2 * model.kv_width
    if model.bias:
        biases += model.width + (2 if model.gated else 1) * model.mlp_width + model.width
    heads = 2 * model.head_width if model.qk_norm else 0
    layer = layer_matmul_parameters(model) + model.norms * norm + biases + heads
    tables = (model.vocab + model.positions + model.segments) * model.width
    # an encoder normalizes its embedding, a decoder what leaves its last layer
    return model.layers * layer + norm + tables + _head_parameters(model)


def _norm_parameters(model: Model) -> int:
    bias = model.bias if model.norm_bias is None else model.norm_bias
    return model.width * (2 if bias and model.norm == "layer" else 1)


def _head_parameters(model: Model) -> int:
    """What stands behind the last layer and is not the tied table."""
    if model.classes is not None:
        pooler = model.width * model.width + model.width
        return pooler + model.width * model.classes + model.classes
    if model.encoder:  # BERT's masked-language head: a dense layer, a norm, and a bias on the tied table
        return model.width * model.width + model.width + 2 * model.width + model.vocab
    output = 0 if model.tied else model.vocab * model.width
    return output + (model.vocab if model.head_bias else 0)


def forward_flops_per_token(model: Model, *, sequence_tokens: int) -> int:
    """2 per weight multiplied, and 4·T·d per layer for scores and their sum with the values."""
    return 2 * matmul_parameters(model) + 4 * model.layers * model.query_width * sequence_tokens


def model_flops_per_token(model: Model, *, sequence_tokens: int) -> int:
    """6N + 12·L·d·T: the backward pass costs twice the forward pass."""
    return 3 * forward_flops_per_token(model, sequence_tokens=sequence_tokens)


def step_flops(model: Model, training: Training) -> int:
    """FLOPs of one optimizer step over all GPUs that MFU counts.

    A frozen weight needs no gradient of its own, so an adapter's run counts 4N where full training counts 6N:
    work that nobody has to do is not useful work.
    """
    flops = model_flops_per_token(model, sequence_tokens=training.sequence_tokens)
    if training.tuning != "full":
        flops -= 2 * matmul_parameters(model)
    return flops * training.step_tokens


def recompute_flops(model: Model, training: Training) -> int:
    """FLOPs of one optimizer step that HFU adds: what is multiplied a second time to save memory.

    Selective checkpointing keeps attention and every other multiply, and makes about half again.
    """
    flops = 0
    if training.checkpointing != "none":
        layers = 2 * model.layers * layer_matmul_parameters(model)
        if training.checkpointing == "selective":
            flops += layers // 2
        else:
            flops += layers + 4 * model.layers * model.query_width * training.sequence_tokens
    if training.loss_chunks > 1 or training.fused_loss:
        flops += 2 * output_parameters(model)
    return flops * training.step_tokens
