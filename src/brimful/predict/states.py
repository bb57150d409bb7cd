"""What one GPU holds whether or not a batch is in flight: weights, gradients, optimizer state, copies.

Formula: with P trained parameters of w bytes, weights w·P, gradients w·P, AdamW 2·s·P; ZeRO stage 1 spreads
the optimizer state over the shards, stage 2 the gradients too, stage 3 (FSDP) the weights as well, and then
needs two layers gathered at a time.
Source: Rajbhandari et al., ZeRO, arXiv:1910.02054, figure 1; PyTorch FSDP2's implicit prefetch.
Leaves out: alignment and padding of flat buffers.
"""

from __future__ import annotations

from brimful.predict.count import (
    layer_matmul_parameters,
    matmul_parameters,
    output_parameters,
    parameters,
)
from brimful.specs.estimate import Item
from brimful.specs.model import Model
from brimful.specs.training import OPTIMIZERS, Dtype, Training

_DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

# Bytes of a frozen weight in blocks of 64 with one fp32 scale each; int8 with a scale for every row.
_FROZEN_BYTES = {4: 0.5 + 4 / 64, 8: 1.0}
# Two bytes of state, and an fp32 scale for every block of 256, of each 8-bit Adam number.
_ADAM8BIT_BYTES = 2 * (1 + 4 / 256)


def dtype_bytes(dtype: Dtype) -> int:
    return _DTYPE_BYTES[dtype]


def trained_parameters(model: Model, training: Training) -> int:
    """All of them, or only those of the adapter: r·(in + out) for each layer LoRA adapts."""
    if training.tuning == "full":
        return parameters(model)
    d, q, k, m = model.width, model.query_width, model.kv_width, model.mlp_width
    # queries, values, keys, output, then the MLP's: the order in which people add them
    sides = [d + q, d + k, d + k, q + d, *([d + m] * (3 if model.gated else 2))]
    return model.layers * training.rank * sum(sides[: training.targets])


def _split(training: Training, *, from_stage: int) -> int:
    """Over how many GPUs something is spread by its ZeRO stage, and by tensor and pipeline parallelism."""
    stage = {"none": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}[training.sharding]
    spread = training.shards if stage >= from_stage else 1
    return spread * training.tensor * training.pipeline


def weights_bytes(model: Model, training: Training) -> int:
    count, each = parameters(model), dtype_bytes(training.weights_dtype)
    split = _split(training, from_stage=3)
    if training.offload_states and training.sharding == "zero3":
        return 0
    if training.frozen_bits:
        frozen = model.layers * layer_matmul_parameters(model)
        whole = _FROZEN_BYTES[training.frozen_bits] * frozen + each * (count - frozen)
        return round(whole / split)
    return each * count // split


def adapter_bytes(model: Model, training: Training) -> int:
    if training.tuning == "full":
        return 0
    each = dtype_bytes(training.adapter_dtype or training.weights_dtype)
    return each * trained_parameters(model, training)


def gradient_bytes(model: Model, training: Training) -> int:
    """All gradients at rest, each in its weight's format."""
    dtype = training.weights_dtype if training.tuning == "full" else training.adapter_dtype
    each = dtype_bytes(dtype or training.weights_dtype)
    if training.in_backward or (training.offload_states and training.sharding == "zero3"):
        return 0
    return each * trained_parameters(model, training) // _split(training, from_stage=2)


def optimizer_bytes(model: Model, training: Training) -> int:
    """AdamW's two numbers a trained parameter, or what this optimizer keeps instead."""
    count = trained_parameters(model, training)
    dtype = training.state_dtype or (training.adapter_dtype if training.tuning != "full" else None)
    each = dtype_bytes(dtype or training.weights_dtype)
    if training.offload_states:
        return 0
    per_number = OPTIMIZERS[training.optimizer] * each
    if training.optimizer == "adam8bit":
        per_number = _ADAM8BIT_BYTES
    if training.master_weights:
        per_number += 4
    return round(per_number * count / _split(training, from_stage=1))


def cast_bytes(model: Model, training: Training) -> int:
    """Autocast's 16-bit copies of every matmul weight, alive from forward until their backward pass."""
    if not training.half or training.casts != "autocast" or training.frozen_bits:
        return 0
    layers = matmul_parameters(model)
    if training.checkpointing == "full":
        layers = 2 * layer_matmul_parameters(model) + output_parameters(model)
    return 2 * layers // (training.tensor * training.pipeline)


def gathered_bytes(model: Model, training: Training) -> int:
    """Weights put together from their shards: the layer in use, the next one, and both vocabulary tables."""
    if training.sharding != "zero3" or training.shards == 1:
        return 0
    each: float = dtype_bytes(training.dtype)
    layer = layer_matmul_parameters(model) * (
        _FROZEN_BYTES[training.frozen_bits] if training.frozen_bits else each
    )
    tables = model.vocab * model.width * (1 if model.tied else 2) * each
    return round((2 * layer + tables) / training.tensor)


def bucket_bytes(model: Model, training: Training) -> int:
    """DDP's buckets: a copy of every gradient, made when the model is wrapped and kept."""
    return gradient_bytes(model, training) if training.sharding == "ddp" else 0


def reduce_bytes(model: Model, training: Training) -> int:
    """Gradients on their way between GPUs under ZeRO: two layers' at a time."""
    if training.tuning == "full" and training.sharding in ("zero2", "zero3"):
        return 2 * layer_matmul_parameters(model) * dtype_bytes(training.dtype) // training.tensor
    return 0


def loading_bytes(model: Model, training: Training) -> int:
    """What a GPU holds while a model that it loaded whole is cut into shards.

    Formula: W · (1 + 1.5/n) for n shards. Source: two published runs, n = 2 and 4, agree within 1 %
    (LitGPT resource tables, LoRA with FSDP): the peak does not depend on the batch.
    """
    if not training.loads_whole or training.sharding != "zero3":
        return 0
    whole = dtype_bytes(training.weights_dtype) * parameters(model)
    return round(whole * (1 + 1.5 / training.shards))


def fixed_items(model: Model, training: Training, *, gradients: int) -> list[Item]:
    """Weights, `gradients` bytes of gradients, and the optimizer's state."""
    count = parameters(model)
    form = f"{training.frozen_bits}-bit" if training.frozen_bits else training.weights_dtype
    spread = f" over {training.shards} GPUs" if training.sharding == "zero3" else ""
    state = f"{training.optimizer}'s numbers for each trained parameter"
    return [
        Item("weights", weights_bytes(model, training), f"{count / 1e6:,.1f} M parameters in {form}{spread}"),
        Item("adapter", adapter_bytes(model, training), f"{training.tuning}, the only part that is trained"),
        Item("gradients", gradients, "one for each trained parameter"),
        Item("optimizer state", optimizer_bytes(model, training), state),
    ]
