"""What one GPU holds whether or not a batch is in flight: weights, gradients, optimizer state, copies.

Formula: with P trained parameters of w bytes, weights w·P, gradients w·P, AdamW 2·s·P; ZeRO stage 1 spreads
the optimizer state over the shards, stage 2 the gradients too, stage 3 (FSDP) the weights as well, and then
needs two layers gathered at a time.
Source: Rajbhandari et al., ZeRO, arXiv:1910.02054, figure 1; PyTorch FSDP2's implicit prefetch.
Leaves out: alignment and padding of flat buffers.
"""

from __future__ import annotations

from typing import Literal

from brimful.fit.count import (
    expert_layers,
    expert_parameters,
    layer_matmul_parameters,
    layer_matrices,
    layers_matmul_parameters,
    matmul_parameters,
    output_parameters,
    parameters,
    table_parameters,
)
from brimful.language import Number, Sentence, say
from brimful.specs.estimate import Item
from brimful.specs.model import Model
from brimful.specs.training import OPTIMIZERS, Dtype, Training

_DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

# Bytes of a frozen weight in blocks of 64 with one fp32 scale each; int8 with a scale per row.
_FROZEN_BYTES = {4: 0.5 + 4 / 64, 8: 1.0}
# The scales in 8 bits, in blocks of 256 with one fp32 scale each. Source: QLoRA, arXiv:2305.14314, section 3.
_DOUBLE_QUANTIZED_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
# Two bytes of state, plus an fp32 scale per block of 256 of each 8-bit Adam number.
_ADAM8BIT_BYTES = 2 * (1 + 4 / 256)


def dtype_bytes(dtype: Dtype) -> int:
    return _DTYPE_BYTES[dtype]


def trained_parameters(model: Model, training: Training) -> int:
    """All of them, or only those of the adapter: r·(in + out) for each layer LoRA adapts."""
    if training.tuning == "full":
        return parameters(model)
    d, q, k, m = model.width, model.query_width, model.kv_width, model.mlp_width
    # queries, values, keys, output, then the MLP's: the usual order of adding them
    attention = [d + q, d + k, d + k, q + d]
    matrices = min(max(0, training.targets - len(attention)), 3 if model.gated else 2)
    mixed = expert_layers(model)
    mlp = (model.layers - mixed) * (d + m)
    if model.experts is not None:
        # every expert is a separate matrix and has its own adapter
        mlp += mixed * (model.experts.count * (d + model.experts.width))
        mlp += mixed * (d + model.experts.shared_width if model.experts.shared_width else 0)
    head = d + model.vocab if training.targets > 7 else 0
    return training.rank * (model.layers * sum(attention[: training.targets]) + matrices * mlp + head)


def _split(training: Training, *, from_stage: int) -> int:
    """The number of GPUs that split something, by its ZeRO stage and by tensor parallelism.

    A pipeline does not matter here: `model` is the part of it that one stage holds.
    """
    stage = {"none": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}[training.sharding]
    spread = training.shards if stage >= from_stage else 1
    return spread * training.tensor


def _held(model: Model, training: Training, count: int, *, from_stage: int) -> float:
    """Of `count` numbers, one for each parameter, those that one GPU holds.

    Experts are also spread by expert parallelism, over the same GPUs that share states: by the larger of the
    two. Source: Singh et al., DeepSpeed-TED, arXiv:2303.06318, section 3.
    """
    split = _split(training, from_stage=from_stage)
    routed = expert_layers(model) * expert_parameters(model) if training.expert > 1 else 0
    routed = min(routed, count)
    return (count - routed) / split + routed / max(split, training.tensor * training.expert)


def _narrower(model: Model, training: Training, each: int) -> int:
    """What tables in a narrower format save, if every other number has `each` bytes."""
    if training.tables_dtype == training.weights_dtype:
        return 0
    return (each - dtype_bytes(training.tables_dtype)) * table_parameters(model)


def frozen_bytes(training: Training) -> float:
    """Bytes of a quantized weight, with its share of the scales."""
    if training.frozen_bits == 4 and (training.double_quantized or training.framework.double_quantizes):
        return _DOUBLE_QUANTIZED_BYTES
    return _FROZEN_BYTES[training.frozen_bits]


def weights_bytes(model: Model, training: Training) -> int:
    count, each = parameters(model), dtype_bytes(training.weights_dtype)
    split = _split(training, from_stage=3)
    if training.offload_states and training.sharding == "zero3":
        return 0
    if training.frozen_bits:
        frozen = layers_matmul_parameters(model)
        if training.framework.quantizes_output and not model.tied:
            frozen += output_parameters(model)
        whole = frozen_bytes(training) * frozen + each * (count - frozen)
        return round(whole / split)
    return round(
        each * _held(model, training, count, from_stage=3) - _narrower(model, training, each) / split
    )


def adapter_bytes(model: Model, training: Training) -> int:
    if training.tuning == "full":
        return 0
    each = dtype_bytes(training.adapter_dtype or training.weights_dtype)
    return each * trained_parameters(model, training)


def gradient_bytes(model: Model, training: Training) -> int:
    """All gradients at rest, each in its weight's format, or in fp32 if they are accumulated in it."""
    dtype = training.weights_dtype if training.tuning == "full" else training.adapter_dtype
    each = 4 if training.fp32_gradients else dtype_bytes(dtype or training.weights_dtype)
    if training.in_backward or (training.offload_states and training.sharding == "zero3"):
        return 0
    count = trained_parameters(model, training)
    if training.tuning == "full":
        saved = 0 if training.fp32_gradients else _narrower(model, training, each)
        saved //= _split(training, from_stage=2)
        return round(each * _held(model, training, count, from_stage=2)) - saved
    return each * count // _split(training, from_stage=2)


def optimizer_bytes(model: Model, training: Training) -> int:
    """AdamW's two numbers per trained parameter, or what this optimizer keeps instead."""
    count = trained_parameters(model, training)
    dtype = training.state_dtype or (training.adapter_dtype if training.tuning != "full" else None)
    each = dtype_bytes(dtype or training.weights_dtype)
    if training.offload_states:
        return 0
    per_number = each * state_numbers(model, training) / count
    if training.optimizer == "adam8bit":
        per_number = _ADAM8BIT_BYTES
    if training.optimizer == "adafactor":
        per_number *= dtype_bytes("float32") / each  # whatever the weights' format
    if training.master_weights:
        per_number += 4
    if training.tuning == "full":
        own = training.state_dtype is None and training.optimizer not in ("adam8bit", "adafactor")
        kept = OPTIMIZERS["adamw" if training.optimizer == "muon" else training.optimizer]
        saved = kept * _narrower(model, training, each) / _split(training, from_stage=1) if own else 0
        return round(per_number * _held(model, training, count, from_stage=1) - saved)
    return round(per_number * count / _split(training, from_stage=1))


def state_numbers(model: Model, training: Training) -> float:
    """Numbers an optimizer keeps for everything that is trained.

    Adam and AdamW two for each; Lion, and SGD with momentum, one. Muon one for each number of the layers'
    matrices, and AdamW's two for tables, output, norms and biases, which it leaves to AdamW. Adafactor,
    without a first moment, keeps a row and a column for each matrix, and one for each number of a vector.
    Source: Chen et al., Lion, arXiv:2302.06675, program 1; Jordan et al., Muon
    (kellerjordan.github.io/posts/muon) and torch.optim.Muon, which takes only matrices; Shazeer and Stern,
    Adafactor, arXiv:1804.04235, section 3.
    """
    count = trained_parameters(model, training)
    if training.tuning == "full" and training.optimizer == "muon":
        hidden = layers_matmul_parameters(model)
        return hidden + OPTIMIZERS["adamw"] * (count - hidden)
    if training.tuning == "full" and training.optimizer == "adafactor":
        kinds = [*layer_matrices(model), *_table_matrices(model)]
        inside = sum(many * rows * columns for many, rows, columns in kinds)
        return sum(many * (rows + columns) for many, rows, columns in kinds) + count - inside
    return OPTIMIZERS[training.optimizer] * count


def _table_matrices(model: Model) -> list[tuple[int, int, int]]:
    """Tables of words and positions, and an untied output."""
    tables = (int(model.first) + int(model.last and not (model.tied and model.first))) if model.vocab else 0
    if model.classes is not None:
        tables = int(model.first) if model.vocab else 0
    kinds = [(tables, model.vocab, model.width), (int(model.first), model.positions, model.width)]
    return [kind for kind in kinds if kind[0] * kind[1]]


def cast_bytes(model: Model, training: Training, *, at: Literal["forward", "loss", "layers"]) -> int:
    """Autocast's 16-bit copies of every matmul weight, alive from forward until their backward pass.

    Checkpointed layers free theirs, but not before the forward pass ends: autocast's cache holds each copy of
    a trained weight until its context exits. While the loss runs backward only the output's is left; then the
    recomputed layer has its own.
    Source: PyTorch, aten/src/ATen/autocast_mode.cpp, cached_cast (only what needs a gradient), clear_cache.
    """
    if not training.half or training.casts != "autocast" or training.frozen_bits:
        return 0
    layers: float = matmul_parameters(model, active=False)
    layers -= expert_layers(model) * expert_parameters(model) * (1 - 1 / training.expert)
    if training.checkpointing == "full" and (at != "forward" or training.tuning != "full"):
        layers = output_parameters(model) + (2 * _gathered_layer(model, training) if at == "layers" else 0)
    return round(2 * layers / training.tensor)


def gathered_bytes(model: Model, training: Training) -> int:
    """Weights gathered from their shards: the layer in use, the next one, and both vocabulary tables.

    In a pipeline all of the stage's stay gathered, since every micro-batch would have to gather them again.
    Source: torchtitan, apply_fsdp: reshard_after_forward is not pp_enabled.
    """
    if training.sharding != "zero3" or training.shards == 1:
        return 0
    each: float = dtype_bytes(training.dtype)
    if training.pipeline > 1:
        return round(each * _whole_stage(model, training))
    layer = _gathered_layer(model, training) * (frozen_bytes(training) if training.frozen_bits else each)
    held = int(model.first) + int(model.last) if not model.tied else 1
    tables = model.vocab * model.width * (held if model.first or model.last else 0) * each
    return round((2 * layer + tables) / training.tensor)


def _whole_stage(model: Model, training: Training) -> float:
    """Parameters of a pipeline stage on one GPU, unsharded: of the experts only those on it."""
    routed = expert_layers(model) * expert_parameters(model)
    return (parameters(model) - routed + routed / training.expert) / training.tensor


def reduce_bytes(model: Model, training: Training) -> int:
    """Gradients in transit between GPUs under ZeRO: two layers' at a time."""
    if training.tuning == "full" and training.sharding in ("zero2", "zero3"):
        return round(2 * _gathered_layer(model, training) * dtype_bytes(training.dtype) / training.tensor)
    return 0


def _gathered_layer(model: Model, training: Training) -> float:
    """Weights of one gathered layer on a GPU: of the experts only those on it."""
    routed = expert_parameters(model) if expert_layers(model) else 0
    return layer_matmul_parameters(model) - routed + routed / training.expert


def waiting_bytes(model: Model, training: Training) -> int:
    """Gradients of earlier micro-steps, waiting to be added to; none without accumulation.

    Sharded, they wait in shards, unless the framework postpones the reduction until the last micro-step
    (FSDP's `no_sync`). Then each GPU holds them whole, including a flat parameter's frozen parts, since the
    gradient of a view covers all of what it is a view of. So do a pipeline's stages, in the format they are
    reduced in (torch/distributed/pipelining/stage.py: set_requires_gradient_sync(False);
    fsdp/_fully_shard/_fsdp_param.py: to_accumulated_grad_if_needed).
    Source: PyTorch, torch/distributed/fsdp: FullyShardedDataParallel.no_sync, FlatParamHandle's views.
    """
    if training.torch.keeps_gradients:
        return gradient_bytes(model, training)
    if training.accumulation == 1:
        return 0
    if training.sharding == "zero3" and training.pipeline > 1 and training.tuning == "full":
        each = dtype_bytes("float32" if training.casts == "gather" else training.weights_dtype)
        return round(each * _whole_stage(model, training))
    if training.sharding == "zero3" and training.framework.whole_gradients:
        return dtype_bytes(training.weights_dtype) * parameters(model) // training.tensor
    return gradient_bytes(model, training)


def dequantized_bytes(model: Model, training: Training) -> int:
    """16-bit copies of the output projection while its 4-bit form is used in a matmul."""
    if not training.frozen_bits or not training.framework.quantizes_output:
        return 0
    return training.framework.dequantized_copies * 2 * output_parameters(model)


def fixed_items(model: Model, training: Training) -> list[Item]:
    """What is the same at every moment of the step: weights, adapter, optimizer state, DDP's buckets."""
    state = say("fit.why_optimizer_state", name=training.optimizer)
    # a copy of every gradient, made when the model is wrapped, and kept
    buckets = gradient_bytes(model, training) if training.sharding == "ddp" else 0
    return [
        Item("weights", weights_bytes(model, training), _weights_why(model, training)),
        Item("adapter", adapter_bytes(model, training), say("fit.why_adapter", name=training.tuning)),
        Item("optimizer_state", optimizer_bytes(model, training), state),
        Item("ddp_buckets", buckets, say("fit.why_ddp_buckets")),
    ]


def _weights_why(model: Model, training: Training) -> Sentence:
    millions, bits, dtype = Number(parameters(model) / 1e6, 1), training.frozen_bits, training.weights_dtype
    if training.sharding != "zero3":
        if bits:
            return say("fit.why_parameters_bits", millions=millions, n=bits)
        return say("fit.why_parameters", millions=millions, dtype=dtype)
    if bits:
        return say("fit.why_parameters_bits_spread", millions=millions, n=bits, gpus=training.shards)
    return say("fit.why_parameters_spread", millions=millions, dtype=dtype, n=training.shards)
