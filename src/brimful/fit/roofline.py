"""Step time: matmuls at a rate cards reach, the rest at memory speed, never faster than kernel launches.

Each part of a micro-step on one GPU is timed by what limits it, and the parts add up:

    matmuls      FLOPs / (achievable rate · d/(d+c)): start and end of a tile loop weigh more when d is small
    attention    causal half of the counted FLOPs, backward 2.5 times forward, at a share of the rate
    the rest     bytes moved / bandwidth
    launches     kernels · time to launch one; the GPU waits if this is larger than all of the above
    link         weights and gradients between GPUs, partly hidden behind the work

A frozen weight needs no gradient, so LoRA saves a third of the matmuls. The constants are fitted to published
measurements (docs/explanation/accuracy.md says how well); the formulas are not.
"""

from __future__ import annotations

from dataclasses import dataclass

from brimful.fit.count import (
    expert_layers,
    expert_parameters,
    layer_matrices,
    layers_matmul_parameters,
    output_parameters,
    parameters,
    recompute_flops,
    step_flops,
)
from brimful.fit.stages import bubble_steps
from brimful.fit.states import dtype_bytes, trained_parameters
from brimful.specs.estimate import Bound, Interval, Speed
from brimful.specs.gpu import Gpu
from brimful.specs.model import Model
from brimful.specs.training import Training

# Share of the dense peak that a large bf16 matmul reaches if the card itself was not measured. Source:
# measured on other cards: A100 0.87, H100 0.80, B200 0.78 (NVIDIA, large), L20 0.92 (small chip), MI300X
# 0.51, MI355X 0.63 (AMD).
LARGE_FRAC, SMALL_FRAC, AMD_FRAC = 0.82, 0.90, 0.57
SMALL_CHIP_FLOPS_PER_S = 170e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The constants fitted together to published tokens per second."""

    matmul_frac: float = 0.999  # of the achievable rate, in a training step rather than a benchmark
    small_width: float = 66.5  # c of d/(d+c)
    attention_frac: float = 0.68  # of the achievable rate, for flash attention on long sequences
    short_tokens: float = 113.0  # c of T/(T+c) for attention
    eager_bytes: float = 238.0  # moved besides the matmuls, per token, layer and number of the width
    compiled_bytes: float = 180.0
    python_norm_bytes: float = 592.0  # in addition, for rms norms and rotary positions written in Python
    fused_norm_frac: float = 0.742  # of these, if norms and rotary positions have their own kernels
    autocast_bytes: float = 67.7  # in addition, for casting every input of an eager matmul
    lora_bytes: float = 49.2  # in addition, per layer that LoRA adapts
    geforce_clock: float = 1.12  # GeForce cards run above the boost clock their peak is given for
    amd_frac: float = 0.582  # of the achievable rate, on AMD cards
    cached_bandwidth: float = (
        2.11  # the large cache of newer GeForce cards serves what others fetch from memory
    )
    launch_s: float = 19.7e-6
    node_link_frac: float = 0.109  # of NVLink's published rate, both directions together
    pcie_bytes_per_s: float = 5.37e9  # per GPU and direction, without peer-to-peer
    network_bytes_per_s: float = 50e9  # per GPU, between nodes
    hidden_frac: float = 0.676  # of the link time that work can hide
    collective_s: float = 378e-6  # one blocking collective of tensor parallelism, at any size


RATES = Rates()

# FlashAttention-2 reaches 35 % of an H100 and about 60 % of an A100.
# Source: Shah et al., FlashAttention-3, arXiv:2407.08608, abstract and figure 5.
HOPPER_ATTENTION_FRAC = 0.6
# What the first FlashAttention's Triton kernel reaches of the second's rate, which is 1.3 to 2.5 times as
# fast. Source: Dao, FlashAttention-2, arXiv:2307.08691, section 4.1; the geometric mean of the two.
TRITON_ATTENTION_FRAC = 0.55
NEWTON_SCHULZ_STEPS = 5  # Muon's default
FP8_FRAC = 0.75  # of the fp8 rate, reached by fp8 linear layers
BANDWIDTH_FRAC = 0.80  # of the published bandwidth, reached by kernels that only move data
LOGIT_BYTES = {True: 12, False: 40}  # moved per logit: the loss and its gradient
# Moved per number of the MLP's width: GELU and its gradient; a gated MLP compiled, and op by op.
GELU_BYTES, GATED_BYTES, GATED_EAGER_BYTES = 10, 16, 26
# Moved per materialised score: matmul, scale, mask, softmax, dropout, matmul, and their backward pass.
# Counted op by op, not fitted: 29 bytes forward and 35 backward in 16 bits, with softmax in fp32.
SCORE_BYTES = {"compiled": 30, "float16": 64, "bfloat16": 64, "float32": 82}
# Moved per number of a token's copy for one expert: gathered by expert, weighted, put back in order and added
# up, forward and backward. Counted op by op in 16 bits, not fitted.
COPY_BYTES = {True: 24, False: 60}
# Moved per trained parameter and step, in one pass over gradient, state and weight or in many.
OPTIMIZER_BYTES = {"fused": 28, "foreach": 60, "loop": 90}
MICRO_BYTES = 18  # the same per micro-step: casts, and adding to the gradient
NODE_GPUS = 8
HOP_S = (14e-6 + 7 * 3.4e-6) / 8  # of a ring through nodes of eight
BUCKET_BYTES = 25 * 2**20
# Between host and card, per direction, by PCIe generation: about 80 % of the bus.
HOST_BYTES_PER_S = {3: 12e9, 4: 24e9, 5: 48e9}
CPU_BYTES_PER_S = 100e9  # moved by an update on the host, memory-bound

# How much faster or slower than likely a step may be: nine in ten published runs on NVIDIA cards are within
# this. Of the eight on AMD cards some are far below what their matmuls reach, others far above the rest.
FASTER, SLOWER = 0.65, 1.7
FASTER_AMD, SLOWER_AMD = 0.45, 1.9
# No published run of a mixture went into the constants, and how uneven the experts' load is cannot be known
# in advance: the upper end is chosen, not measured.
SLOWER_EXPERTS = 1.8


@dataclass(frozen=True, slots=True)
class _Parts:
    compute_s: float
    bandwidth_s: float
    launch_s: float
    link_s: float
    hidden_frac: float

    @property
    def work_s(self) -> float:
        return max(self.compute_s + self.bandwidth_s, self.launch_s)

    @property
    def total_s(self) -> float:
        hidden = min(self.hidden_frac * self.link_s, self.work_s)
        return self.work_s + self.link_s - hidden

    @property
    def bound_by(self) -> Bound:
        if self.link_s > self.work_s:
            return "link"
        if self.launch_s > self.compute_s + self.bandwidth_s:
            return "launch"
        return "compute" if self.compute_s >= self.bandwidth_s else "bandwidth"


def peak_format(training: Training, gpu: Gpu) -> str:
    """The number format whose peak the run is measured against: its own, or fp32 if the card lacks it."""
    wanted = {"bfloat16": "bf16", "float16": "fp16", "float32": "tf32" if training.tf32 else "fp32"}
    number = "fp8" if training.fp8 and "fp8" in gpu.dense_flops_per_s else wanted[training.dtype]
    return number if number in gpu.dense_flops_per_s else "fp32"


def achievable_flops_per_s(gpu: Gpu, number: str) -> float:
    """The rate a large matmul reaches in this format; the card's measured rate if there is one."""
    peak = gpu.dense_flops_per_s[number]
    tensor_cores = number != "fp32"  # without them a multiply is far from the limits that bf16 reaches
    if tensor_cores and gpu.achievable_flops_per_s is not None:
        # GeForce cards exceed their data-sheet clock for a while: up to 116 % were measured
        return peak * min(
            1.0, gpu.achievable_flops_per_s / gpu.dense_flops_per_s["bf16" if gpu.bf16 else "fp16"]
        )
    if gpu.vendor == "AMD":
        return peak * AMD_FRAC
    # The larger of both: a chip just above the limit is not slower than one just below.
    return max(LARGE_FRAC * peak, SMALL_FRAC * min(peak, SMALL_CHIP_FLOPS_PER_S))


def matmul_flops_per_s(gpu: Gpu, number: str, rates: Rates = RATES) -> float:
    """What large matmuls of a training step reach in this format."""
    frac = rates.amd_frac if gpu.vendor == "AMD" else 1.0
    if gpu.geforce and (gpu.achievable_flops_per_s is None or number == "fp32"):
        frac = rates.geforce_clock
    fp8 = FP8_FRAC if number == "fp8" else 1.0  # casting to it costs part of the gain
    return achievable_flops_per_s(gpu, number) * frac * rates.matmul_frac * fp8


def attention_flops_per_s(
    gpu: Gpu, number: str, sequence_tokens: int | None = None, rates: Rates = RATES
) -> float:
    """What flash attention reaches; for sequences of any length if none is given."""
    number = number if number != "fp8" else "bf16"
    rate = matmul_flops_per_s(gpu, number, rates) / rates.matmul_frac * rates.attention_frac
    if sequence_tokens is not None:
        rate *= sequence_tokens / (sequence_tokens + rates.short_tokens)
    return rate * (HOPPER_ATTENTION_FRAC if _has_group_multiplies(gpu) else 1.0)


def moved_bytes_per_s(gpu: Gpu, rates: Rates = RATES) -> float:
    """What kernels that only move data reach."""
    cached = rates.cached_bandwidth if gpu.geforce and gpu.architecture in ("Ada", "Blackwell") else 1.0
    return BANDWIDTH_FRAC * gpu.bandwidth_bytes_per_s * cached


def _has_group_multiplies(gpu: Gpu) -> bool:
    """Hopper and data-center Blackwell reach their peak only with instructions that FlashAttention-2 lacks.

    GeForce and workstation Blackwell (sm_120) multiply like Ada.
    Source: CUTLASS, media/docs/cpp/blackwell_functionality.md: tcgen05 on sm_100, mma.sync on sm_120.
    """
    if gpu.vendor != "NVIDIA" or gpu.architecture in ("Volta", "Turing", "Ampere", "Ada"):
        return False
    return gpu.architecture == "Hopper" or gpu.link_bytes_per_s is not None


def predict_speed(model: Model, training: Training, gpu: Gpu, rates: Rates = RATES) -> Speed:
    """Step time, tokens per second over all GPUs, and MFU against this card's own peak."""
    number = peak_format(training, gpu)
    peak = gpu.dense_flops_per_s[number]
    micro = _micro_step(model, training, gpu, number, rates)
    trained = trained_parameters(model, training) / (training.shards * training.tensor * training.pipeline)
    moved = OPTIMIZER_BYTES[training.optimizer_kernel] * trained
    optimizer_s = moved / (BANDWIDTH_FRAC * gpu.bandwidth_bytes_per_s)
    if training.optimizer == "muon" and training.tuning == "full":
        # GPUs that hold the same matrices divide the work, as in the reference implementation
        split = max(training.shards, training.data_parallel) * training.tensor * training.pipeline
        multiply = achievable_flops_per_s(gpu, "bf16" if gpu.bf16 else number) * rates.matmul_frac
        optimizer_s += newton_schulz_flops(model) / split / multiply
    micro_steps = training.accumulation + bubble_steps(training)
    likely_s = micro_steps * micro.total_s + optimizer_s + _offload_seconds(model, training, gpu)
    faster, slower = (FASTER_AMD, SLOWER_AMD) if gpu.vendor == "AMD" else (FASTER, SLOWER)
    if expert_layers(model):
        slower *= SLOWER_EXPERTS
    flops = step_flops(model, training) / training.gpus
    # No run is faster than the card's peak, whatever the interval would allow.
    least_s = min(likely_s, max(likely_s * faster, flops / peak))
    step = Interval(least_s, likely_s, likely_s * slower)
    hardware = flops + recompute_flops(model, training) / training.gpus
    return Speed(
        step_s=step,
        tokens_per_s=step.rate(training.step_tokens),
        mfu=step.rate(flops / peak, most=1.0),
        hfu=step.rate(hardware / peak, most=1.0),
        peak_flops_per_s=peak,
        peak_format=number,
        bound_by=micro.bound_by,
    )


def newton_schulz_flops(model: Model) -> int:
    """Muon's matmul FLOPs in a step: five iterations on each matrix of the layers, r rows of c columns.

    Formula: 5·(4·r²·c + 2·r³), r the shorter: X·Xᵀ, its square, and that times X. MFU does not count it.
    Source: torch.optim.Muon, ns_steps=5; KellerJordan/Muon, which spreads matrices over GPUs.
    """
    flops = 0
    for many, rows, columns in layer_matrices(model):
        short, long = sorted((rows, columns))
        flops += many * NEWTON_SCHULZ_STEPS * (4 * short**2 * long + 2 * short**3)
    return flops


def _micro_step(model: Model, training: Training, gpu: Gpu, number: str, rates: Rates) -> _Parts:
    rate = matmul_flops_per_s(gpu, number, rates)
    split = training.tensor * training.pipeline
    shape = model.width / (model.width + rates.small_width)
    layers, output = _matmul_flops(model, training)
    # fp8 leaves out the output projection: torchtitan's and torchao's recipes filter it, since logits suffer
    # most
    output_rate = matmul_flops_per_s(gpu, "bf16", rates) if number == "fp8" else rate
    matmul_s = (layers / rate + output / output_rate) / split / shape
    attention_rate = rate  # two plain matmuls if the scores are materialised
    if training.attention != "math":
        attention_rate = attention_flops_per_s(gpu, number, training.sequence_tokens, rates)
        attention_rate *= TRITON_ATTENTION_FRAC if training.framework.triton_attention else 1.0
    attention_s = _attention_flops(model, training) / split / attention_rate
    bandwidth = moved_bytes_per_s(gpu, rates)
    return _Parts(
        compute_s=matmul_s + attention_s,
        bandwidth_s=_moved_bytes(model, training, rates) / split / bandwidth
        + _idle_experts_s(model, training, rate, bandwidth),
        launch_s=_launch_seconds(model, training, rates),
        link_s=_link_seconds(model, training, gpu, rates),
        hidden_frac=rates.hidden_frac if gpu.link_bytes_per_s else 0.0,
    )


def _passes(training: Training) -> float:
    """How often a layer's matmuls run: forward, input and weight gradient, and again if checkpointed."""
    again = {"none": 0.0, "selective": 0.5, "full": 1.0}[training.checkpointing]
    return (3 if training.tuning == "full" else 2) + again


def _matmul_flops(model: Model, training: Training) -> tuple[float, float]:
    """For the layers, and for the output projection."""
    layers = layers_matmul_parameters(model, active=True) * _passes(training)
    again = 1 if training.loss_chunks > 1 or training.fused_loss else 0
    output = output_parameters(model) * ((3 if training.tuning == "full" else 2) + again)
    return 2 * layers * training.micro_tokens, 2 * output * training.micro_tokens


def _idle_experts_s(model: Model, training: Training, rate: float, bandwidth: float) -> float:
    """The time to read every expert's weights, beyond multiplying by those chosen."""
    mixed = expert_layers(model)
    if not mixed or model.experts is None:
        return 0.0
    split = training.tensor * training.pipeline
    weights = mixed * expert_parameters(model) / split
    read_s = dtype_bytes(training.dtype) * weights / training.expert / bandwidth
    share = model.experts.chosen / model.experts.count
    multiply_s = 2 * weights * share * training.micro_tokens / rate
    return _passes(training) * max(0.0, read_s - multiply_s)


def _attention_flops(model: Model, training: Training) -> float:
    """Flash attention skips the masked half and recomputes the scores going backward: 1 pass, then 2.5."""
    written = training.attention == "math"
    passes = 1 + (2 if written else 2.5) + (1 if training.checkpointing == "full" else 0)
    causal = 1.0 if written or not model.causal else 0.5
    forward = 4 * model.layers * model.query_width * training.sequence_tokens
    return forward * passes * causal * training.micro_tokens


def _moved_bytes(model: Model, training: Training, rates: Rates) -> float:
    tokens = training.micro_tokens
    each = rates.compiled_bytes if training.compiled else rates.eager_bytes
    if not training.compiled:
        share = rates.fused_norm_frac if training.framework.fused_norms else 1.0
        each += rates.python_norm_bytes * share if model.norm == "rms" else 0
        each += rates.autocast_bytes if training.casts == "autocast" and training.half else 0
    if training.tuning == "lora":
        each += rates.lora_bytes * training.targets
    mlp = GELU_BYTES if not model.gated else GATED_BYTES if training.compiled else GATED_EAGER_BYTES
    inside = mlp * model.mlp_width * (model.layers - expert_layers(model))
    if model.experts is not None:
        copied = COPY_BYTES[training.compiled] * model.experts.chosen * model.width
        wide = model.experts.chosen * model.experts.width + model.experts.shared_width
        inside += expert_layers(model) * (mlp * wide + copied)
    precision = 1.0 if training.half else 1.6
    moved = tokens * (model.layers * each * model.width + inside) * precision * _passes(training) / 3
    if model.classes is None:
        moved += tokens * model.vocab * LOGIT_BYTES[training.compiled]
    if training.attention == "math":
        scores = tokens * model.layers * model.heads * training.sequence_tokens
        moved += SCORE_BYTES["compiled" if training.compiled else training.dtype] * scores
    if training.casts == "autocast" and training.half:
        moved += MICRO_BYTES * parameters(model)
    if training.fp32_gradients:
        # a 16-bit gradient read, and added to the fp32 one; for this stage, like the rest
        moved += 10 * trained_parameters(model, training)
    if training.frozen_bits:
        # every pass reads the quantized weights, writes them in 16 bits, and reads those
        layers = layers_matmul_parameters(model)
        moved += (training.frozen_bits / 8 + 4) * layers * _passes(training)
    return moved


def _launch_seconds(model: Model, training: Training, rates: Rates) -> float:
    """A stage's kernels, and the collectives between tensor-parallel GPUs, which wait for each other.

    A layer gathers twice and scatters twice, each way (Korthikanti et al., arXiv:2205.05198, section 4.2.2).
    However little is sent, each takes the host and the slowest GPU some time: micro-steps of one sequence
    took 4.4 ms per layer, for models of 1 to 8 billion parameters and 2 to 8 GPUs alike (nanotron's
    benchmarks).
    """
    again = 1 if training.checkpointing == "full" else 0
    waits = 4 * (2 + again) * model.layers * rates.collective_s if training.tensor > 1 else 0.0
    return (_kernels(model, training) * rates.launch_s + waits) / training.pipeline


def _kernels(model: Model, training: Training) -> float:
    """Kernels launched in a micro-step. Python norms, rotary positions and adapters are many small ones."""
    python = 0.0 if training.framework.fused_norms else 1.0
    forward = (
        8.0
        if training.compiled
        else 20.0 + python * ((20.0 if model.norm == "rms" else 0) + (10.0 if model.rotary else 0))
    )
    if training.casts == "autocast" and training.half and not training.compiled:
        # a matmul's input, weight and bias are each cast by a separate kernel
        matmuls = 4 + (3 if model.gated else 2)
        forward += matmuls * (3 if model.bias else 2)
    if training.attention == "math" and not training.compiled:
        forward += 5.0  # two matmuls, scale, mask and softmax instead of one kernel, and a copy
    if training.tuning == "lora":
        forward += 12.0 * training.targets
    if training.frozen_bits:
        forward += 40.0
    return model.layers * forward * (3 + (1 if training.checkpointing == "full" else 0))


def _offload_seconds(model: Model, training: Training, gpu: Gpu) -> float:
    """States kept in host memory: gradients down and weights up, and the update on the CPU, every step.

    Sharded weights also come up twice in every micro-step. Nothing is assumed to be hidden.
    """
    if not training.offload_states:
        return 0.0
    host = HOST_BYTES_PER_S.get(gpu.pcie_generation or 4, HOST_BYTES_PER_S[4])
    split = training.shards * training.tensor * training.pipeline
    trained = trained_parameters(model, training) / split
    step = 2 * dtype_bytes(training.weights_dtype) * trained / host
    step += OPTIMIZER_BYTES["fused"] * trained / CPU_BYTES_PER_S
    if training.sharding == "zero3":
        step += 2 * training.accumulation * _weight_bytes(model, training) / training.shards / host
    return step


def _weight_bytes(model: Model, training: Training) -> float:
    """All weights as transferred, on one tensor and pipeline rank."""
    count, layers = parameters(model), layers_matmul_parameters(model)
    each: float = dtype_bytes(training.dtype)
    frozen = training.frozen_bits / 8 if training.frozen_bits else each
    return (each * (count - layers) + frozen * layers) / (training.tensor * training.pipeline)


def _link_seconds(model: Model, training: Training, gpu: Gpu, rates: Rates) -> float:
    """What each GPU sends and receives in a micro-step, each kind over the slowest link on its way.

    GPUs that share a layer are close together: tensor parallelism innermost, then context, then data, and
    pipeline stages furthest apart.
    """
    if training.gpus == 1:
        return 0.0
    near = rates.pcie_bytes_per_s
    if gpu.link_bytes_per_s and not gpu.geforce:
        near = gpu.link_bytes_per_s * rates.node_link_frac
    far = min(near, rates.network_bytes_per_s)

    def link(reach: int) -> float:
        return near if reach <= NODE_GPUS else far

    inner = training.tensor * training.context
    return (
        _tensor_bytes(model, training) / link(training.tensor)
        + _context_bytes(model, training) / link(inner)
        + _expert_bytes(model, training) / link(training.tensor * training.expert)
        + _data_bytes(model, training) / link(training.gpus)
        + _ring_seconds(model, training)
        + _pipeline_bytes(model, training) / link(training.gpus)
    )


def _ring_seconds(model: Model, training: Training) -> float:
    """Latency of gathers and scatters of shards over many nodes, at every hop of the ring, per micro-step.

    Formula: buckets · 2 · (shards - 1) · a hop, once a step. Within a node it is negligible.
    Source: NCCL 2.2x, src/graph/tuning.cc: latencies of the Simple protocol, 14 us between nodes, 3.4 us by
    NVLink; DistributedDataParallel, bucket_cap_mb=25.
    Leaves out: FSDP (zero2 and zero3), which fetches a layer while the one before is computed, and
    all-reduces of plain data parallelism, which use trees.
    """
    if training.sharding != "zero1" or training.gpus <= NODE_GPUS:
        return 0.0
    trained = trained_parameters(model, training) / (training.tensor * training.pipeline)
    buckets = trained * dtype_bytes(training.dtype) / BUCKET_BYTES
    return buckets * 2 * (training.shards - 1) * HOP_S / training.accumulation


def _data_bytes(model: Model, training: Training) -> float:
    """Weights and gradients between GPUs that hold the same layers."""
    whole = _weight_bytes(model, training)
    trained = trained_parameters(model, training) / (training.tensor * training.pipeline)
    gradients = trained * (4 if training.fp32_gradients else dtype_bytes(training.dtype))
    if training.sharding == "zero3" and training.pipeline > 1:
        return (whole + gradients) / training.accumulation  # they stay gathered for all micro-batches
    if training.sharding == "zero3":
        return 2 * whole + gradients  # gathered forward and backward, gradients scattered
    if training.sharding == "zero2":
        return whole + gradients  # gathered once, as FSDP's SHARD_GRAD_OP does
    if training.data_parallel > 1:
        # a ring passes every gradient twice, in its own format
        each = 4 if training.fp32_gradients else dtype_bytes(training.weights_dtype)
        return 2 * trained * each / training.accumulation
    return 0.0


def _tensor_bytes(model: Model, training: Training) -> float:
    """Hidden states of a layer, gathered twice and scattered twice each way; all but a GPU's own part.

    Source: Korthikanti et al., arXiv:2205.05198, section 4.2.2 (an all-reduce without sequence parallelism
    moves as much).
    """
    layers, others = model.layers / training.pipeline, 1 - 1 / training.tensor
    return 8 * training.micro_tokens * model.width * layers * dtype_bytes(training.dtype) * others


def _context_bytes(model: Model, training: Training) -> float:
    """Keys and values of the other ranks, forward and again backward, and their gradients on the way back.

    Source: Liu et al., Ring Attention, arXiv:2310.01889, section 3.
    """
    layers, others = model.layers / training.pipeline, training.context - 1
    keys = 2 * training.micro_tokens * model.kv_width * dtype_bytes(training.dtype) / training.tensor
    return 3 * keys * others * layers


def _expert_bytes(model: Model, training: Training) -> float:
    """Copies of tokens to their experts and back, forward and backward."""
    if model.experts is None:
        return 0.0
    layers, others = expert_layers(model) / training.pipeline, 1 - 1 / training.expert
    copies = model.experts.chosen * training.micro_tokens * model.width / training.tensor
    return 4 * copies * dtype_bytes(training.dtype) * others * layers


def _pipeline_bytes(model: Model, training: Training) -> float:
    """Hidden states to the next stage and gradients to the one before, for every piece a GPU has."""
    if training.pipeline == 1:
        return 0.0
    hidden = training.micro_tokens * model.width * dtype_bytes(training.dtype) / training.tensor
    return 2 * hidden * training.virtual_stages
