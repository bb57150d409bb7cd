"""What the forward pass keeps for the backward pass, by kind, in a nanoGPT-type decoder.

Notation: N tokens in memory together, d width, m MLP width, k = kv_heads · head_width, T sequence, H heads,
h bytes of a number under autocast (2, or 4 in fp32).

What autograd keeps in one layer, and why:

    norm input           4·N·d  twice   the residual stream is fp32, like the embedding it starts from
    norm mean, 1/std     8·N    twice   fp32, one pair for each token
    norm output          h·N·d  twice   cast to h for the next matmul, whose weight gradient needs it
    q, k, v              h·N·(d+2k)     one buffer out of one matmul; attention keeps views of it
    attention output     h·N·d          kept by attention and by the output matmul, one buffer
    log-sum-exp          4·N·H          flash attention's stand-in for the N·H·T score matrix
    MLP before GELU      h·N·m          GELU's backward pass needs its input
    MLP after GELU       h·N·m          the second matmul's weight gradient needs it

With m = 4d and h = 2 that is 36·N·d bytes, and small change. The outputs of the two halves are not kept:
adding needs nothing back. Compiling changes nothing here: the partitioner keeps the normalized value
instead of the norm's input, of equal size, and will not recompute what a backward matmul must read anyway.
Source: derived from PyTorch's derivative formulas; the list of tensors that `saved_tensors_hooks` and the
min-cut partitioner of torch 2.13 keep for such a model is the same.
Leaves out: sliding windows, gated MLPs, rotary positions.
"""

from __future__ import annotations

from brimful.specs.estimate import Item
from brimful.specs.model import Model
from brimful.specs.training import Training

FP32_BYTES = 4


def number_bytes(training: Training) -> int:
    """Bytes of a number in a matrix multiply. bf16 and fp16 are both 2: neither saves over the other."""
    return 4 if training.dtype == "float32" else 2


def layer_bytes(model: Model, training: Training) -> dict[str, int]:
    """What one layer keeps, by kind; the table in this file's docstring."""
    n, d, h = training.micro_tokens, model.width, number_bytes(training)
    kv_width = model.kv_heads * model.head_width
    attention = h * n * d + h * n * (d + 2 * kv_width) + h * n * d
    if training.attention == "flash":
        attention += FP32_BYTES * n * model.heads
    else:
        # softmax runs in fp32 under autocast and keeps its output; the next matmul keeps it cast to h
        scores = n * model.heads * training.sequence_tokens
        attention += (FP32_BYTES + (h if h == 2 else 0)) * scores
    return {
        "norms": 2 * (FP32_BYTES * n * d + 2 * FP32_BYTES * n),
        "attention": attention,
        "MLP": h * n * d + 2 * h * n * model.mlp_width,
        # compiled code draws the mask again from its seed; eager keeps a byte for each number
        "dropout masks": 2 * n * d if model.dropout > 0 and not training.compiled else 0,
    }


def kept_items(model: Model, training: Training) -> list[Item]:
    """Activations alive at the end of the forward pass."""
    n, d, h = training.micro_tokens, model.width, number_bytes(training)
    ends = (FP32_BYTES + h) * n * d + 2 * FP32_BYTES * n
    # this micro-batch's tokens and targets, and the next ones that train.py loads ahead, as int64
    ends += 4 * 8 * n
    if training.checkpointing == "full":
        return [
            Item(
                "activations: layer inputs",
                FP32_BYTES * n * d * model.layers,
                "checkpointing keeps each layer's fp32 input only",
            ),
            Item("activations: ends", ends, "final norm, token ids"),
        ]
    layer = layer_bytes(model, training)
    whys = {
        "norms": "two fp32 norm inputs a layer",
        "attention": "norm output, q k v and result"
        + ("" if (training.attention == "flash") else ", and the score matrix"),
        "MLP": f"its input, and {model.mlp_width} wide before and after GELU",
        "dropout masks": "one byte for each number dropped or kept",
    }
    items = [
        Item(f"activations: {kind}", model.layers * layer[kind], whys[kind]) for kind in layer if layer[kind]
    ]
    return [*items, Item("activations: ends", ends, "final norm, token ids")]


def layer_backward_bytes(model: Model, training: Training) -> int:
    """Temporaries while the last layer's MLP runs backward, and its activations again if checkpointed.

    Formula: fp32 gradient of the residual and its cast, (4+h)·N·d; gradients after and before GELU, 2·h·N·m;
    the weight gradient in h and cast to fp32, (h+4)·d·m.
    """
    n, d, h = training.micro_tokens, model.width, number_bytes(training)
    gradients = (FP32_BYTES + h) * n * d + 2 * h * n * model.mlp_width
    weight = (h + FP32_BYTES if h == 2 else FP32_BYTES) * d * model.mlp_width
    again = sum(layer_bytes(model, training).values()) if (training.checkpointing == "full") else 0
    return gradients + weight + again


def logits_bytes_per_number(training: Training) -> dict[str, int]:
    """Bytes for each of the N·V logits at three moments, as nanoGPT's loop holds them.

    `logits, loss = model(X, Y)` keeps the last micro-step's logits alive through the next forward pass.

    Eager forward:   old logits h, new logits h, fp32 copy 4 (autocast's cross entropy), log-softmax 4
    Eager backward:  logits h, log-softmax 4, gradient of the loss 4, gradient of the log-softmax 4
    Compiled:        the fp32 steps are fused away. Forward: old and new logits, 2h. Backward: logits h,
                     their gradient h, and h of zeros: the graph returns the logits, and autograd fills in
                     a gradient for them although nobody uses it
    Output matmul:   logits h, their gradient h
    In chunks:       no logits outlive their chunk
    """
    h = number_bytes(training)
    copy = FP32_BYTES if h == 2 else 0
    if training.loss_chunks > 1:
        peak = 2 * h if training.compiled else h + 3 * FP32_BYTES
        return {"forward": peak, "backward": peak, "output": 2 * h, "after": 0}
    if training.compiled:
        return {"forward": 2 * h, "backward": 3 * h, "output": 2 * h, "after": h}
    return {"forward": 2 * h + copy + FP32_BYTES, "backward": h + 3 * FP32_BYTES, "output": 2 * h, "after": h}
