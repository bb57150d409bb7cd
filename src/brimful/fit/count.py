"""Parameters and FLOPs: the one count that predictor, meter and audit share.

MFU counts 6N + 12·L·d·T per token: every matmul once forward and twice backward, attention in full (not
halved for causality), nothing for recomputation. N leaves out tables that are only looked up; a tied output
projection is a matmul and counts once. For a mixture of experts, N includes only those a token is sent to.
Source: Chowdhery et al., PaLM, arXiv:2204.02311, appendix B; DESIGN.md "FLOPs".
"""

from __future__ import annotations

from brimful.specs.model import Model
from brimful.specs.training import Training

A100_FLOPS_PER_S = 312e12  # nanoGPT divides by it for its MFU, whatever it runs on


def mlp_matmul_parameters(model: Model, width: int) -> int:
    """Weights of an MLP, or of one expert, of inner width `width`."""
    return (3 if model.gated else 2) * model.width * width


def expert_parameters(model: Model) -> int:
    """All routed experts of one layer: what expert parallelism spreads. 0 without experts."""
    return model.experts.count * mlp_matmul_parameters(model, model.experts.width) if model.experts else 0


def expert_layers(model: Model) -> int:
    """Layers whose MLP is a mixture."""
    return model.layers - model.experts.dense_layers if model.experts else 0


def layer_matmul_parameters(model: Model) -> int:
    """Weights of the largest kind of layer: queries, keys and values, output, MLP or every expert."""
    dense = _attention_parameters(model) + mlp_matmul_parameters(model, model.mlp_width)
    if not expert_layers(model):
        return dense
    return _attention_parameters(model) + _mixture_parameters(model, active=False)


def layers_matmul_parameters(model: Model, *, active: bool = False) -> int:
    """Weights of all layers together; active: of the experts only those chosen for one token."""
    mixed = expert_layers(model)
    dense = (model.layers - mixed) * mlp_matmul_parameters(model, model.mlp_width)
    experts = mixed * _mixture_parameters(model, active=active) if mixed else 0
    return model.layers * _attention_parameters(model) + dense + experts


def _attention_parameters(model: Model) -> int:
    return model.width * (2 * model.query_width + 2 * model.kv_width)


def _mixture_parameters(model: Model, *, active: bool) -> int:
    """Router, experts, and the shared ones with their gate.

    Source: Jiang et al., Mixtral, arXiv:2401.04088, section 2.1; shared experts: Dai et al., DeepSeekMoE,
    arXiv:2401.06066, section 3.2.
    """
    experts = model.experts
    assert experts is not None
    routed = (experts.chosen if active else experts.count) * mlp_matmul_parameters(model, experts.width)
    shared = mlp_matmul_parameters(model, experts.shared_width)
    router = model.width * (experts.count + (1 if experts.shared_gate else 0))
    return router + routed + shared


def layer_matrices(model: Model) -> list[tuple[int, int, int]]:
    """The matrices of all layers, which Muon updates and Adafactor factors: how many, rows, columns."""
    d, q, k, layers = model.width, model.query_width, model.kv_width, model.layers
    sides = 2 if model.gated else 1
    mixed = expert_layers(model)
    found = [(2 * layers, q, d), (2 * layers, k, d), ((layers - mixed) * (sides + 1), model.mlp_width, d)]
    if model.experts is not None:
        found.append((mixed * model.experts.count * (sides + 1), model.experts.width, d))
        found.append((mixed * (sides + 1), model.experts.shared_width, d))
        found.append((mixed, model.experts.count + (1 if model.experts.shared_gate else 0), d))
    return [kind for kind in found if kind[0] * kind[1]]


def output_parameters(model: Model) -> int:
    """The projection from hidden state to vocabulary; tiny if the model has a classifier instead."""
    return 0 if model.classes is not None or not model.last else model.vocab * model.width


def table_parameters(model: Model) -> int:
    """Word tables that are only looked up: not one that is also the output projection.

    Value tables: Zhou et al., Value Residual Learning, arXiv:2410.17897; karpathy/nanochat, nanochat/gpt.py.
    """
    words = 0 if model.tied else model.width
    return model.vocab * (words + model.value_tables * model.kv_width) if model.first else 0


def patch_parameters(model: Model) -> int:
    """The matrix that turns a patch into a token: its pixels times the width."""
    images = model.images
    return images.channels * images.patch**2 * model.width if images and model.first else 0


def matmul_parameters(model: Model, *, active: bool = True) -> int:
    """N of the 6N: what each token is multiplied by, including the output projection.

    With `active` false: every matrix that some token is multiplied by, which autocast makes copies of.
    """
    layers = layers_matmul_parameters(model, active=active)
    return layers + output_parameters(model) + patch_parameters(model)


def active_parameters(model: Model) -> int:
    """Parameters without the experts that a token is not sent to; all of them in a dense model."""
    return parameters(model) - layers_matmul_parameters(model) + layers_matmul_parameters(model, active=True)


def parameters(model: Model) -> int:
    """Every number of the model, as `sum(p.numel() for p in model.parameters())` counts them.

    Formula: layers · (matmuls + norms + biases) + final norm + tables, plus the output projection if it is
    not tied. A vision transformer has patches and a position for each token instead of words.
    """
    norm = _norm_parameters(model)
    biases = 0
    if model.bias if model.qkv_bias is None else model.qkv_bias:
        biases += model.query_width + 2 * model.kv_width
    if model.bias:
        biases += model.width + (2 if model.gated else 1) * model.mlp_width + model.width
    heads = 2 * model.head_width if model.qk_norm else 0
    scales = 2 * model.width if model.layer_scale else 0
    layer = model.norms * norm + biases + heads + scales
    total = layers_matmul_parameters(model) + model.layers * layer
    if model.first:
        total += (model.vocab + model.positions + model.segments) * model.width + _patch_parameters(model)
        total += norm if model.embedding_norm else 0
        total += model.value_tables * model.vocab * model.kv_width
    if model.last:
        # an encoder normalizes its embedding, a decoder the output of its last layer
        total += norm + _head_parameters(model)
        # the last stage of a pipeline has its own copy of a tied table
        total += model.vocab * model.width if model.tied and not model.first else 0
    return total


def _patch_parameters(model: Model) -> int:
    """Patches become tokens; the tokens before them and the mask token are learned."""
    images = model.images
    if images is None:
        return 0
    learned = images.extra_tokens + (1 if images.mask_token else 0)
    return patch_parameters(model) + (learned + (1 if images.patch_bias else 0)) * model.width


def _norm_parameters(model: Model) -> int:
    if not model.norm_weights:
        return 0
    bias = model.bias if model.norm_bias is None else model.norm_bias
    return model.width * (2 if bias and model.norm == "layer" else 1)


def _head_parameters(model: Model) -> int:
    """What follows the last layer and is not the tied table."""
    if model.images is not None:
        classes = model.classes or 0
        return (model.class_inputs * model.width + 1) * classes
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

    A frozen weight needs no gradient, so an adapter's run counts 4N where full training counts 6N: work that
    is not needed is not useful work.
    """
    flops = model_flops_per_token(model, sequence_tokens=training.sequence_tokens)
    if training.tuning != "full":
        flops -= 2 * matmul_parameters(model)
    return flops * training.step_tokens


def recompute_flops(model: Model, training: Training) -> int:
    """FLOPs of one optimizer step that HFU adds: what is recomputed to save memory.

    Selective checkpointing keeps attention and every other matmul, and recomputes about half.
    """
    flops = 0
    if training.checkpointing != "none":
        layers = 2 * layers_matmul_parameters(model, active=True)
        if training.checkpointing == "selective":
            flops += layers // 2
        else:
            flops += layers + 4 * model.layers * model.query_width * training.sequence_tokens
    if training.loss_chunks > 1 or training.fused_loss:
        flops += 2 * output_parameters(model)
    return flops * training.step_tokens
