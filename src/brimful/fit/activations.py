"""What the forward pass keeps for the backward pass, by kind, in one layer of a transformer.

Notation: N tokens in memory together, d width, q width of all query heads, k of all key heads, m MLP width,
T sequence length, H heads; h bytes per number in a matmul (2, or 4 in fp32), r bytes per number in the
residual stream (4 under autocast, like the embedding it starts from; else h).

What autograd keeps, and why. "full" marks what only a trained weight needs; a frozen linear layer does not
need its input.

    layer norm input     r·N·d          the fused kernel recomputes the output from input, mean and 1/std
    rms norm input       4·N·d          written in Python it uses an fp32 copy, and keeps it
    rms norm, scaled     h·N·d  full    the gradient of its weight needs the normalized value
    norm output          h·N·d  full    cast to h for the next matmul, whose weight gradient needs it
    q, k, v              h·N·(q+2k)     attention keeps them
    q, k rotated         h·N·(q+k)      rotary positions make new ones, while v keeps the old buffer alive
    attention output     h·N·q          kept by attention and the output matmul, one buffer
    log-sum-exp          4·N·H          flash attention's substitute for the N·H·T score matrix
    scores (math)        N·H·T·…        softmax's output, the dropout mask, and the factor of the values
    MLP before GELU      h·N·m          GELU's backward pass needs its input
    MLP after GELU       h·N·m  full    the second matmul's weight gradient needs it
    gated MLP            3·h·N·m        gate, its activation, the other side, for the gradient of the product
    gated, product       h·N·m  full    the last matmul's weight gradient needs it

Compiling: the min-cut partitioner keeps what a backward matmul must read and recomputes the pointwise steps
in between. So an rms norm keeps the residual in h instead of fp32 copies, and a gated MLP does not keep its
activation. A GPT-2 layer has neither and keeps as much as before.
Source: derived from PyTorch's derivative formulas; what `saved_tensors_hooks` and the partitioner of torch
2.13 keep for a GPT is compared in tests/fit/test_torch.py.

A mixture of experts: k copies of each token, sorted by expert; e experts of width m, no token dropped.

    router               4·N·e          softmax in fp32; its input is the norm output
    copies of tokens     h·k·N·d  full  the input of each expert's first matmul
    inside the experts   as above, with k·N tokens; the shared expert like a separate MLP
    experts' outputs     h·k·N·d        the gradient of the router's weights needs them
    places               36·k·N         which copy goes where, in 64 bits, both ways

Source: transformers 5, integrations/moe.py, grouped_mm_experts_forward.
Leaves out: sliding windows, a capacity limit beyond which tokens are dropped.
"""

from __future__ import annotations

from dataclasses import replace

from brimful.fit.adapters import (
    adapted_matrices,
    adapter_bytes,
    copies_attention,
    drops_inputs,
    reads_as_is,
)
from brimful.fit.count import expert_layers
from brimful.fit.formats import (
    FP8_BYTES,
    FP32_BYTES,
    MASK_BYTES,
    autocasts,
    input_bytes,
    number_bytes,
    residual_bytes,
)
from brimful.language import Plain, Sentence, say
from brimful.specs.estimate import Item
from brimful.specs.model import Model
from brimful.specs.parts import Part
from brimful.specs.presets import PYTHON_GELU
from brimful.specs.training import Training

PLACES_BYTES = 36  # where a token's copy goes and comes from: four 64-bit numbers, and its weight


def layer_bytes(model: Model, training: Training, *, mixed: bool | None = None) -> dict[Part, int]:
    """What one layer keeps on one GPU, by kind; see the table at the top of this file.

    `mixed` says whether its MLP is a mixture of experts; None: if any of the model's is.
    """
    n, along, across = training.micro_tokens, sequence_split(training), training.tensor
    experts = expert_layers(model) > 0 if mixed is None else mixed
    casts = autocasts(training)
    read = _read(model, training, copies=_projections(model, training) if casts else 1)
    wide = _read(
        model, training, copies=2 if casts and model.gated and not _fused_mlp(model, training) else 1
    )
    if model.parallel and model.norms == 1 and not casts:
        wide = 0  # attention reads the same norm output
    return {
        "activations_norms": n * _norms(model, training) // along,
        "activations_attention": n * read + n * _attention(model, training) // across,
        "activations_experts" if experts else "activations_mlp": n * wide
        + n * _mlp(model, training, mixed=experts) // across,
        "activations_dropout_masks": n * _masks(model, training) // along,
        "activations_adapter": n * adapter_bytes(model, training) // across,
    }


def sequence_split(training: Training) -> int:
    """The number of GPUs that split the residual stream and the norms: all tensor-parallel ones, or 1.

    Source: Korthikanti et al., Reducing Activation Recomputation, arXiv:2205.05198, section 4.2.2.
    """
    return training.tensor if training.sequence_parallel else 1


def _read(model: Model, training: Training, copies: int = 1) -> int:
    """Bytes per token of a norm's output, which the next matmul reads.

    Under tensor parallelism each GPU reads and keeps all of it, gathered if the norms are split.
    Source: PyTorch, torch/distributed/tensor/parallel/style.py, ColwiseParallel: a replicated input.
    """
    return copies * input_bytes(training) * model.width if _keeps_inputs(training) else 0


def fused_qkv(model: Model, training: Training) -> bool:
    """Whether one matrix computes queries, keys and values."""
    code = training.framework
    return code.fused_qkv or model.family in code.fused_families


def _projections(model: Model, training: Training) -> int:
    """Attention matrices that read the norm's output: BERT and vision models always have three."""
    return 1 if model.causal and fused_qkv(model, training) else 3


def _fused_mlp(model: Model, training: Training) -> bool:
    """Phi-3 has one matrix for both sides of its gated MLP (transformers, models/phi3: gate_up_proj)."""
    return model.family == "phi3" and training.framework.name == "transformers"


def _norms(model: Model, training: Training) -> int:
    """Bytes per token for the norms' own inputs. Parallel attention and MLP share theirs."""
    d, r = model.width, residual_bytes(training)
    inputs = 1 if model.parallel else model.norms
    if model.norm == "layer":
        scaled = 2 * number_bytes(training) * d if model.layer_scale else 0  # what the two factors multiply
        return inputs * (r * d + 2 * FP32_BYTES) + scaled
    if training.compiled:
        return inputs * (r * d + FP32_BYTES)
    return inputs * (FP32_BYTES * d + FP32_BYTES) + model.norms * _scaled(model, training) * d


def _scaled(model: Model, training: Training, *, heads: bool = False) -> int:
    """Bytes per number that an rms norm written in Python keeps for its weight's gradient.

    In the format of its input, unless it multiplies before the cast: autocast's residual stream is fp32, its
    queries and keys (`heads`) are not.
    """
    if training.tuning != "full":
        return 0
    wide = training.framework.norm_value_fp32 or model.norm_fp32
    read = number_bytes(training) if heads else residual_bytes(training)
    return FP32_BYTES if wide else read


def _head_norms(model: Model, training: Training) -> int:
    """Bytes per token for the rms norms over each head of queries and keys: like those across the width.

    Compiled code keeps their input, in h, in addition to what attention keeps.
    """
    if not model.qk_norm:
        return 0
    numbers, heads = model.query_width + model.kv_width, model.heads + model.kv_heads
    if training.compiled:
        return number_bytes(training) * numbers + FP32_BYTES * heads
    return (FP32_BYTES + _scaled(model, training, heads=True)) * numbers + FP32_BYTES * heads


def _attention(model: Model, training: Training) -> int:
    h = number_bytes(training)
    q, k = model.query_width, model.kv_width
    total = h * (q + 2 * _held_keys(model, training))
    if model.rotary and not training.compiled and _holds_fused(model, training):
        # Rotated q and k are new tensors, and v keeps alive the fused buffer they came from.
        total += h * (q + k)
    total += _head_norms(model, training)
    if written_out(model, training):
        # the result is kept only for the output matrix
        read = _keeps_inputs(training) or (training.targets >= 4 and reads_as_is(training))
        kept = 0 if training.tuning == "lora" and not read else h * q
        return total + kept + _scores(model, training)
    total += h * q  # the result
    if copies_attention(model, training) and _keeps_inputs(training):
        total += h * q
    return total + FP32_BYTES * model.heads


def _holds_fused(model: Model, training: Training) -> bool:
    """Whether values are a view of the buffer that queries and keys came from.

    Not if they are expanded for every head, nor in Falcon, which copies all three out of it. With grouped
    keys this is known only for Phi-3 (transformers, models/phi3/modeling_phi3.py, Phi3Attention.forward).
    """
    if model.kv_width == model.query_width:
        return fused_qkv(model, training) and model.family != "falcon"
    return model.family == "phi3" and _held_keys(model, training) == model.kv_width


def _held_keys(model: Model, training: Training) -> int:
    """Numbers per token of keys (and as many of values) that attention keeps."""
    repeated = training.framework.repeats_keys or written_out(model, training)
    return model.query_width if repeated and not training.compiled else model.kv_width


def _keeps_inputs(training: Training) -> bool:
    """Whether a linear layer needs its input again: for its weight's gradient, or for a 4-bit library."""
    return training.tuning == "full" or (training.frozen_bits > 0 and training.framework.quantized_inputs > 0)


def written_out(model: Model, training: Training) -> bool:
    """Whether the full score matrix is in memory."""
    code = training.framework
    if training.attention == "math" or model.writes_scores:
        return True
    if training.compiled:
        return False
    # Flash attention does not support fp32, and the memory-efficient kernel does not support grouped keys.
    grouped = code.groups_in_kernel and model.kv_heads < model.heads and not training.half
    return (model.capped and code.caps_scores) or grouped


def _scores(model: Model, training: Training) -> int:
    """Bytes per token for the score matrix of plain attention.

    Softmax runs in fp32 under autocast and keeps its output; dropout adds a mask and a new tensor; the matmul
    with the values keeps its input, cast to h. Before PyTorch 1.11 softmax also kept its input, needlessly
    (pytorch/pytorch issue 64000). A soft cap runs in h, keeps its tanh, and requests the softmax in fp32.
    """
    h, dropped = number_bytes(training), model.attention_dropout > 0
    wide = training.casts == "autocast" or model.capped or model.softmax_fp32
    softmax = FP32_BYTES if wide else h
    read = h if dropped or softmax != h else 0
    each = softmax + read + (MASK_BYTES if dropped else 0) + (h if model.capped else 0)
    if training.torch.softmax_keeps_input:
        each += softmax
    return each * model.heads * training.sequence_tokens


def quantized_inputs_bytes(model: Model, training: Training) -> int:
    """Inputs of 4-bit layers that the last micro-step left behind, on one GPU.

    A library that stores them on the graph's nodes, outside what autograd frees, keeps them as long as the
    graph; a loop that still holds the last step's logits holds that graph. Layers with the same input share
    one buffer: q, k and v; the output matrix; the MLP's first; its last; the vocabulary's.
    The peak comes with the longest micro-step; the length of the one before depends on the data: between zero
    and the same length. Half of it is never far off; the interval covers both ends.
    """
    copies = training.framework.quantized_inputs - 1
    if not training.frozen_bits or copies < 1 or training.checkpointing != "none":
        return 0
    reads = 1 if model.parallel and model.norms == 1 else 2
    layer = reads * model.width + model.query_width + model.mlp_width
    each = model.layers * layer + model.width
    whole = copies * number_bytes(training) * training.micro_tokens * each // training.tensor
    return whole if training.even_lengths else whole // 2


def _mlp(model: Model, training: Training, *, mixed: bool = False) -> int:
    """Bytes per token for the MLP, or for the mixture of experts that replaces it."""
    d, h, experts = model.width, number_bytes(training), model.experts
    if not mixed or experts is None:
        return _inner_mlp(model, training, model.mlp_width)
    routed = _inner_mlp(model, training, experts.width) + h * d + PLACES_BYTES + _read(model, training)
    router = FP32_BYTES * experts.count
    shared = _inner_mlp(model, training, experts.shared_width) if experts.shared_width else 0
    if experts.shared_gate:
        shared += h * d  # the gate's input
    return router + experts.chosen * routed + shared


def _inner_mlp(model: Model, training: Training, width: int) -> int:
    """Bytes per token between the two ends of an MLP of inner width `width`."""
    h = number_bytes(training)
    last = input_bytes(training) * width if _keeps_inputs(training) else 0
    if model.gated:
        return last + (2 if training.compiled else 3) * h * width
    if model.gelu_tensors == 0:
        return last or h * width
    if training.compiled or training.framework.fused_gelu:
        return last + h * width
    if model.gelu_tensors == PYTHON_GELU and autocasts(training):
        # torch.pow is on autocast's fp32 list: its input, the tanh and what follows are fp32, 0.5·x is not
        return last + (3 * FP32_BYTES + h) * width
    return last + model.gelu_tensors * h * width


def _masks(model: Model, training: Training) -> int:
    """Dropout after attention and MLP. Compiled code regenerates the mask from its seed."""
    if model.dropout == 0 or training.compiled:
        return 0
    return 2 * MASK_BYTES * model.width


def ends_bytes(model: Model, training: Training) -> int:
    """Outside the layers: the last norm with its output, and the token ids of this batch and the next.

    For images instead of ids: their pixels, in fp32 and cast for the first matmul under autocast.
    """
    h, r, n = number_bytes(training), residual_bytes(training), training.micro_tokens
    # a frozen output matrix keeps nothing, unless it has an adapter
    frozen = training.tuning == "lora" and training.targets < 8 and not _keeps_inputs(training)
    each, read = r * model.width + 2 * FP32_BYTES, 0 if frozen else h * model.width
    if model.norm == "rms" and not training.compiled:
        each = (FP32_BYTES + _scaled(model, training)) * model.width + FP32_BYTES
    norm = n * each // sequence_split(training) + n * read
    norm = norm if model.last else 0
    if model.images is None:
        return norm + (n * 4 * 8 if model.first or model.last else 0)
    if not model.first:
        return norm
    pixels = training.batch_size * model.images.channels * model.images.size**2
    return norm + pixels * (FP32_BYTES + h if training.half and training.casts == "autocast" else h)


def kept_items(model: Model, training: Training, in_flight: float = 1.0) -> list[Item]:
    """Activations alive at the end of the forward pass; a pipeline stage holds several micro-batches'."""
    layers = model.layers
    if training.tuning == "adapter" and training.targets < 7:
        layers = max(1, layers - training.framework.adapter_first_layer)
    held = layers * in_flight
    why = say("fit.why_ends_tokens") if model.images is None else say("fit.why_ends_pixels")
    ends = Item("activations_ends", ends_bytes(model, training), why)
    if training.checkpointing == "full":
        inputs = residual_bytes(training) * training.micro_tokens * model.width // sequence_split(training)
        kept = 0 if training.offload_activations else round(held * inputs)
        return [Item("activations_layer_inputs", kept, say("fit.why_layer_inputs")), ends]
    if training.checkpointing == "selective":
        kept = round(held * _selective(model, training))
        return [Item("activations_kept", kept, say("fit.why_selective")), ends]
    mixed = held * expert_layers(model) / model.layers
    sums: dict[Part, int] = {}
    for count, experts in ((held - mixed, False), (mixed, True)):
        for kind, each in layer_bytes(model, training, mixed=experts).items():
            sums[kind] = sums.get(kind, 0) + round(count * each)
    for kind, each in _before_adapters(model, training).items():
        sums[kind] = sums.get(kind, 0) - round(in_flight * each)
    whys = _reasons(model, training)
    return [*(Item(kind, sums[kind], whys[kind]) for kind in whys if sums.get(kind)), ends]


def _before_adapters(model: Model, training: Training) -> dict[Part, int]:
    """What the first layer does not keep under LoRA: nothing before the first adapter needs a gradient.

    That is its first norm's input, the dropout masks of its first adapters, an unadapted MLP parallel to
    attention, and, if the scores are materialised, the queries and the input of a norm of keys: the gradient
    of keys needs them, and keys without an adapter have no gradient.
    Source: traces of PEFT 0.21 and LitGPT 0.5.13 (tests/accuracy/oracle.csv).
    """
    if training.tuning != "lora" or training.compiled or not model.first or model.images is not None:
        return {}
    h, matrices = number_bytes(training), adapted_matrices(model, training)
    found: dict[Part, int] = {"activations_norms": _norms(model, training) // model.norms}
    if model.parallel:
        found["activations_norms"] = _norms(model, training)
        if matrices <= 4 and not _keeps_inputs(training) and not expert_layers(model):
            found["activations_mlp"] = _mlp(model, training)
    if drops_inputs(training):
        reads = 1 if training.framework.lora_shares_inputs else min(matrices, 3)
        found["activations_adapter"] = reads * MASK_BYTES * model.width
    if matrices < 3 and written_out(model, training) and not fused_qkv(model, training):
        keys = (FP32_BYTES * (model.kv_width + model.kv_heads)) if model.qk_norm else 0
        found["activations_attention"] = h * model.query_width + keys
    return {kind: training.micro_tokens * each // training.tensor for kind, each in found.items()}


def _reasons(model: Model, training: Training) -> dict[Part, Sentence]:
    """What each kind of activation is, in the order of the layer."""
    wide, scores = residual_bytes(training) > number_bytes(training), written_out(model, training)
    whys: dict[Part, Sentence] = {
        "activations_norms": say("fit.why_norms_fp32") if wide else say("fit.why_norms"),
        "activations_attention": say("fit.why_attention_scores") if scores else say("fit.why_attention"),
        "activations_mlp": say("fit.why_mlp", width=Plain(model.mlp_width)),
    }
    if (experts := model.experts) is not None:
        whys["activations_experts"] = say("fit.why_experts", n=experts.chosen, all=experts.count)
    whys["activations_dropout_masks"] = say("fit.why_dropout_masks")
    whys["activations_adapter"] = say("fit.why_adapted_inputs")
    return whys


def _selective(model: Model, training: Training) -> int:
    """Selective checkpointing per op: keeps the layer input, attention's result and every other matmul.

    Source: torchtitan's policy saves the first, third, fifth and seventh of a layer's matmuls (queries,
    values, gate, MLP output) and recomputes the others.
    """
    h = number_bytes(training)
    numbers = model.query_width + model.kv_width + _kept_mlp_numbers(model)
    each = h * (numbers + model.query_width) + FP32_BYTES * model.heads
    own = h * model.width // sequence_split(training)
    return training.micro_tokens * (own + each // training.tensor)


def _kept_mlp_numbers(model: Model) -> int:
    """Numbers of the MLP that selective checkpointing keeps: inside, and at its end.

    For a mixture: inside each chosen expert, and its output.
    """
    experts = model.experts
    if experts is None or not expert_layers(model):
        return model.mlp_width + model.width
    return experts.chosen * (experts.width + model.width) + experts.shared_width


def layer_gradient_bytes(model: Model, training: Training) -> int:
    """Gradients of activations alive together while one layer's MLP, or its attention, runs backward.

    Formula: gradient of the residual and its cast, (r+h)·N·d; gradients on both sides of the activation,
    2·h·N·m, and of the copies on both sides of experts, 2·h·k·N·d. Materialised scores have theirs twice.
    Tensor parallelism: the incoming gradient is gathered whole, and the outgoing one is a whole partial sum
    before it is scattered, 2·h·N·d. Context parallelism: keys and values of all ranks are gathered,
    2·h·c·N·k, and have their gradients there.
    Source of the last: PyTorch, torch/distributed/tensor/experimental, context parallelism's all-gather.
    """
    n, d, h = training.micro_tokens, model.width, number_bytes(training)
    across = training.tensor
    experts = model.experts if expert_layers(model) else None
    copies, inside = (experts.chosen, experts.width) if experts else (1, model.mlp_width)
    residual = residual_bytes(training) * n * d // sequence_split(training)
    whole = (2 if across > 1 else 1) * h * n * d
    split = 2 * h * copies * n * inside
    if experts is not None:
        split += 2 * h * copies * n * d
    if training.context > 1:
        keys = _held_keys(model, training)
        split = max(split, h * n * (2 * model.query_width + 2 * keys) + 4 * h * training.context * n * keys)
    gradients = residual + whole + split // across
    if written_out(model, training):
        # the scores' gradient on both sides of softmax, while attention itself runs backward
        each = FP32_BYTES if training.casts == "autocast" else h
        gradients = max(gradients, 2 * each * n * model.heads * training.sequence_tokens // across)
    return gradients


def layer_backward_bytes(model: Model, training: Training) -> int:
    """Temporaries while the last layer runs backward, plus its recomputed activations if checkpointed.

    Formula: the gradients above, and the MLP's weight gradient in h and cast to the gradient's format, d·m;
    for experts, that of every first matrix, since they share one gradient.
    """
    d, h = model.width, number_bytes(training)
    weight = 0
    if training.tuning == "full":
        each = h + FP32_BYTES if training.casts == "autocast" and training.half else h
        weight = each * d * model.mlp_width
        if model.experts is not None and expert_layers(model):
            stacked = (2 if model.gated else 1) * model.experts.count * model.experts.width
            weight = each * d * stacked // training.expert
    again = sum(layer_bytes(model, training).values()) if training.checkpointing != "none" else 0
    casts = 0
    if training.fp8:  # fp8 casts of input, incoming gradient and weight for a matmul
        inside = (training.micro_tokens + d) * model.mlp_width // training.tensor
        casts = FP8_BYTES * (inside + training.micro_tokens * d)
    return layer_gradient_bytes(model, training) + weight // training.tensor + again + casts


def logits_bytes_per_number(training: Training, model: Model | None = None) -> dict[str, float]:
    """Bytes per logit (N·V of them) at four moments.

    `logits, loss = model(X, Y)` keeps the last micro-step's logits alive through the next forward pass.

    Eager autocast:  cross_entropy requests its log-softmax in the logits' format, and only its second half
                     is on autocast's fp32 list. Forward: old and new logits 2h, log-softmax h, fp32 copy of
                     it 4. Backward: logits h, log-softmax h, its copy 4, gradient of the loss 4
    Eager forward:   old logits h, new logits h, fp32 copy 4 (half precision), log-softmax 4
    Eager backward:  log-softmax 4, gradient of the loss 4, gradient of the log-softmax 4, and the logits:
                     in h if the loss made the fp32 copy and has dropped it, in fp32 if the model did;
                     fp32 training needs no copy: 16 bytes in all, as traced for GPT-2, and for GPT-Neo and
                     GPT-2 as transformers 5 writes them
    Compiled with the model: the fp32 steps are fused away. Forward: old and new logits, 2h. Backward: logits
                     h, their gradient h, and h of zeros: the graph returns the logits, and autograd fills in
                     an unused gradient for them; neither old logits nor zeros if the model returns only the
                     loss
    Compiled, pure 16-bit: the model's graph ends with fp32 logits; logits 4, log-softmax 4, gradient 4
    Output matmul:   logits h, their gradient h
    Split vocabulary: `_split_logits`, below
    In chunks:       every chunk's logits wait in h for the backward pass, eager also what the loss keeps of
                     them; compiled code makes the gradient of a chunk in h as it frees that chunk's logits
    """
    h = number_bytes(training)
    if model is not None and model.family in training.framework.plain_loss_families:
        plain = replace(training.framework, fp32_loss=False, casts_logits=False, plain_loss_families=())
        training = replace(training, framework=plain)
    if training.fused_loss:
        return {"forward": 0, "backward": 0, "output": 0, "after": 0}
    if training.loss_chunks > 1:
        each = h + (h / training.loss_chunks if training.compiled else _softmax_kept(training))
        if training.tuning == "adapter" and training.targets >= 7 and training.framework.scales_output:
            each += h  # the input of a trained scale after the output projection
        held = h if training.framework.slices_loss else 0  # the loop keeps the list until the next one
        going_back = each + (0 if training.compiled else _chunk_gradients(training))
        return {"forward": each, "backward": going_back, "output": each, "after": held}
    if training.tensor > 1:
        return _split_logits(training)
    if training.compiled and training.loss_compiled and training.casts != "none":
        held = 0 if training.framework.returns_loss else h
        return {"forward": h + held, "backward": 2 * h + held, "output": 2 * h, "after": held}
    if training.compiled and training.loss_compiled:
        return {"forward": 2 * FP32_BYTES, "backward": 3 * FP32_BYTES, "output": 2 * h, "after": 0}
    found = _eager_logits(training)
    if model is not None and model.capped:  # the tanh of a soft cap keeps its output
        found |= {moment: found[moment] + h for moment in ("forward", "backward")}
    return found


def _split_logits(training: Training) -> dict[str, float]:
    """A vocabulary split over tensor-parallel GPUs: the loss is written in Python, in fp32, never compiled.

    Forward: old logits h, new ones 4, shifted by their maximum 4, exponentials 4. Backward: logits (unless
    the loop drops them), log-softmax 4, a table for the gradient 4, exponentials 4, and their sum 4.
    Source: PyTorch, torch/distributed/tensor/parallel/loss.py, _log_softmax and
    _nll_loss_and_log_softmax_backward.
    """
    h, code = number_bytes(training), training.framework
    logits = 0 if code.drops_logits else FP32_BYTES if code.fp32_logits else h
    return {
        "forward": h + 3 * FP32_BYTES,
        "backward": logits + 4 * FP32_BYTES,
        "output": 2 * h,
        "after": h,
    }


def _softmax_kept(training: Training) -> int:
    """Bytes per logit that an eager loss keeps: its log-softmax, and autocast's fp32 copy of that."""
    h, code = number_bytes(training), training.framework
    if training.half and training.casts == "autocast" and not code.casts_logits:
        return h + FP32_BYTES
    in_fp32 = training.casts == "autocast" or code.fp32_loss
    return FP32_BYTES if training.half and in_fp32 else h


def _chunk_gradients(training: Training) -> float:
    """Bytes per logit of an eager chunked loss in its backward pass, beyond what every chunk keeps.

    Autograd runs the newest node first, so all chunks of the loss run before any of the output matrix: each
    chunk's gradient replaces its log-softmax, while both sides of that and the log-softmax itself are alive
    for one chunk. Under autocast one side is fp32 and is freed before the other exists.
    """
    cast_back = training.half and training.casts == "autocast" and not training.framework.casts_logits
    return (FP32_BYTES if cast_back else 2 * _softmax_kept(training)) / training.loss_chunks


def _eager_logits(training: Training) -> dict[str, float]:
    """The three variants of an eager loss: in the logits' format, half of it in fp32, or all of it."""
    h, code = number_bytes(training), training.framework
    autocast = training.casts == "autocast"
    ends = {"output": 2 * h, "after": h}
    if code.slices_loss and not autocast and not code.fp32_loss:
        # the gradient of a slice replaces what was kept of it
        return {"forward": 3 * h, "backward": 3 * h, **ends}
    if training.half and not autocast and not code.fp32_loss:
        return {"forward": 3 * h, "backward": 4 * h, **ends}
    if training.half and autocast and not code.casts_logits:
        return {"forward": 3 * h + FP32_BYTES, "backward": 2 * h + 2 * FP32_BYTES, **ends}
    logits = FP32_BYTES if code.fp32_logits and not autocast else h
    if code.drops_logits:
        logits = 0
    copy = FP32_BYTES if training.half else 0
    return {"forward": 2 * h + copy + FP32_BYTES, "backward": logits + 3 * FP32_BYTES, **ends}
