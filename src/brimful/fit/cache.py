"""What the caching allocator holds beyond what is allocated: blocks that are free but that nothing fits into.

The largest tensors of a step are usually logits. Their blocks are free for most of the step, and smaller
tensors are put into them: optimizer state in the first step, gradients that wait for the next micro-step,
16-bit logits in a block made for an fp32 copy. Such a block is too small for logits from then on, and PyTorch
asks the driver for another one. In traces, reserved memory therefore grows by whole blocks.
"""

from __future__ import annotations

from brimful.fit.activations import layer_bytes
from brimful.fit.formats import FP32_BYTES, number_bytes
from brimful.fit.states import dtype_bytes, gradient_bytes, optimizer_bytes, waiting_bytes
from brimful.specs.estimate import Interval
from brimful.specs.model import Model
from brimful.specs.training import Training
from brimful.units import MIB

# Shares of a recomputed layer and of all gradients that stay cached. Source: fitted to 63 traces of the open
# half of tests/accuracy/oracle.csv, whose other 63 were left out. Other splits chose up to 0.9 for the first.
RECOMPUTED_FRAC, GRADIENT_FRAC = 0.5, 0.15
# True over likely cache in those 126 traces: 5 % are below the first, 5 % above the second.
_LOW, _HIGH = 0.3, 2.0

# What the table has no traces of, as shares of what is allocated and freed within a step: low, likely, high.
# Weights gathered from shards. Source: steady language-model loops report reserved/allocated of 1.0 to 1.1.
GATHERED_CACHE_FRAC = (0.01, 0.07, 0.20)
# Compiled code asks for fewer blocks: torchtitan's 8B run reserved 5.4 GiB less compiled than eager, with the
# same tensors kept and the same loss.
COMPILED_CACHE_FRAC = (0.01, 0.04, 0.20)
# Gathered weights and eager checkpointing, counting the gathered weights as moving too. Source: published
# FSDP runs that reserved 0.34 to 0.44 of it beyond what is allocated, one small one 1.1
# (AnswerDotAI/fsdp_qlora benchmarks).
CHECKPOINTED_CACHE_FRAC = (0.05, 0.38, 0.60)
# The same for frozen models whose micro-steps differ in length: every size comes in hundreds of variants, a
# block freed by a short one is too small for a longer one, and PyTorch asks the driver for another. Source:
# traced LoRA steps of two Llama layouts with checkpointing, their sizes scaled to 600 to 1,000 drawn lengths
# and replayed through the allocator: lowest, middle and highest of ten (decision 57).
VARYING_CACHE_FRAC = (0.70, 2.40, 3.00)


def rounding_frac(block_bytes: int) -> float:
    """Share of memory lost to whole segments when blocks are small.

    The allocator rounds segments to 2 MiB and carves blocks below 10 MiB out of 20 MiB ones, so a block loses
    about one MiB on average: negligible for a large model, several per cent for a small one.
    Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp, kRoundLarge, kMinLargeAlloc, kLargeBuffer.
    """
    return min(0.08, MIB / block_bytes)


def cached_bytes(model: Model, training: Training, moving: int, gathered: int) -> Interval:
    """What the allocator holds beyond what is allocated. `moving`: allocated and freed within a step."""
    if not training.compiled and training.sharding != "zero3":
        likely = _eager_bytes(model, training)
        return Interval(round(_LOW * likely), round(likely), round(_HIGH * likely))
    shares = COMPILED_CACHE_FRAC if training.compiled else GATHERED_CACHE_FRAC
    rounding = rounding_frac(training.micro_tokens * model.width * number_bytes(training))
    if training.checkpointing == "full" and not training.compiled:
        # Recomputed in a different order than they were freed, activations leave more holes.
        shares, rounding, moving = CHECKPOINTED_CACHE_FRAC, 0.0, moving + gathered
    return Interval(*(round((share + rounding) * moving) for share in shares))


def _eager_bytes(model: Model, training: Training) -> float:
    """One more of the largest tensor, half of a recomputed layer, and a share of the gradients.

    If the optimizer's state is all that is put into a block of logits, only the rest of that block is free.
    State above half a block may need a second one: then as much as the state, up to a whole block, is free.
    """
    block, state = _largest_bytes(model, training), optimizer_bytes(model, training)
    recomputed = training.checkpointing != "none"
    if not recomputed and not waiting_bytes(model, training):
        block = max(block - state, min(block, state))
    layer = sum(layer_bytes(model, training).values()) if recomputed else 0
    return block + RECOMPUTED_FRAC * layer + GRADIENT_FRAC * gradient_bytes(model, training)


def _largest_bytes(model: Model, training: Training) -> int:
    """The largest tensor of a step: logits in fp32, a table's gradient, or the inside of an MLP."""
    numbers, experts = training.micro_tokens, model.experts
    logits = table = 0
    if model.classes is None and model.last and not training.fused_loss:
        logits = FP32_BYTES * numbers * model.vocab // training.loss_chunks
    if training.tuning == "full" and (model.first or model.last):
        table = dtype_bytes(training.weights_dtype) * model.vocab * model.width
    width = max(model.mlp_width, experts.chosen * experts.width if experts else 0)
    return max(logits, table, number_bytes(training) * numbers * width) // training.tensor


def spare_bytes(training: Training, moving: int, usual: Interval, room: int) -> Interval:
    """Cache beyond the usual if micro-steps differ in length: at most what the card has room for.

    When the driver has no memory left, PyTorch releases free segments, so a full card does not fail because
    of it. In full training, gradients and the optimizer's copies use the same space: assumed to be enough,
    not shown.
    Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp, malloc: release_cached_blocks before it gives up.
    """
    varying = training.framework.varying_lengths and not training.even_lengths
    if not varying or training.tuning == "full" or room <= 0:
        return Interval(0, 0, 0)
    ends = zip(VARYING_CACHE_FRAC, (usual.low, usual.likely, usual.high), strict=True)
    return Interval(*(min(room, max(0, round(share * moving - cached))) for share, cached in ends))
