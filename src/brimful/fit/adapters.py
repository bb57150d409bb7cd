"""What the small trained part of a frozen model keeps for the backward pass."""

from __future__ import annotations

from brimful.fit.formats import FP32_BYTES, MASK_BYTES, autocasts, number_bytes
from brimful.specs.model import Model
from brimful.specs.training import Training


def adapter_bytes(model: Model, training: Training) -> int:
    """Bytes per token in one layer."""
    if training.tuning == "full":
        return 0
    if training.tuning == "adapter":
        # one tensor of the layer's width, as is, unless every linear layer is scaled
        each = number_bytes(training)
        return _scaled_outputs(model, training) if training.targets >= 7 else each * model.width
    return _lora(model, training)


def drops_inputs(training: Training) -> bool:
    """Whether LoRA reads its input through a dropout: PEFT with fp32 adapters has none by default."""
    asked = training.framework.lora_dropout
    return (training.adapter_dtype or training.weights_dtype) != "float32" if asked is None else asked


def reads_as_is(training: Training) -> bool:
    """Whether LoRA reads the same tensor as the frozen matrix, without dropout or cast.

    Source: peft 0.21, tuners/lora/layer.py, Linear.forward: _cast_input_dtype, then lora_dropout.
    """
    cast = autocasts(training) or (training.half and training.adapter_dtype == "float32")
    return not drops_inputs(training) and not cast


def copies_attention(model: Model, training: Training) -> bool:
    """Whether attention's result is copied for the output matrix.

    Flash attention's result has the layout of its queries; the memory-efficient kernel's is always by token.
    """
    code = training.framework
    copies = code.copies_attention or model.family in code.copying_families
    return copies and training.half and not training.compiled


def adapted_matrices(model: Model, training: Training) -> int:
    """Per layer: four of attention, and the MLP's three, or two without a gate."""
    return min(training.targets, 7 if model.gated else 6)


def _lora(model: Model, training: Training) -> int:
    """LoRA keeps each adapted layer's input, in its own format and after its own dropout.

    If it reads the tensor as is, layers with the same input share it, and what attention and a ReLU keep
    anyway costs nothing. LoRA's own output is kept if it is copied into the places of q and v in a wider
    buffer. Source of what is shared: traces of PEFT 0.21 and LitGPT 0.5.13 (tests/accuracy/oracle.csv).
    """
    code, matrices, as_is = training.framework, adapted_matrices(model, training), reads_as_is(training)
    shares = code.lora_shares_inputs or as_is
    fp32 = training.adapter_dtype == "float32" and not autocasts(training)
    h = FP32_BYTES if fp32 else number_bytes(training)
    dropped = drops_inputs(training)
    inputs: float = (1 if shares else min(matrices, 3)) * model.width
    if matrices >= 4 and (not as_is or copies_attention(model, training)):
        inputs += model.query_width
    reads = 2 if model.gated and (dropped or not shares) else 1
    if as_is and model.parallel and model.norms == 1:
        reads = 0  # attention reads the same norm output
    last = 0 if as_is and not model.gated and model.gelu_tensors == 0 else model.mlp_width
    inputs += max(0, matrices - 4) / (3 if model.gated else 2) * (reads * model.width + last)
    padded = h * (model.query_width + model.kv_width) if code.lora_pads and matrices == 2 else 0
    mask = MASK_BYTES if dropped else 0
    return round(inputs * (h + mask)) + matrices * training.rank * h + padded


def _scaled_outputs(model: Model, training: Training) -> int:
    """A trained scale after every linear layer needs that layer's output (Adapter v2, IA3).

    The norms are trained as well and keep their normalized value.
    """
    h = number_bytes(training)
    mlp = (2 if model.gated else 1) * model.mlp_width + model.width
    norms = model.norms * model.width if model.norm == "rms" else 0
    if training.framework.norm_value_fp32:
        norms = norms * FP32_BYTES // h
    return h * (model.query_width + 2 * model.kv_width + model.width + mlp + norms + model.width)
