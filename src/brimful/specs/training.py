"""`Training`: how a model is trained, as far as bytes and seconds on one GPU depend on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from brimful.specs.framework import PLAIN, Framework
from brimful.specs.torch import CURRENT, Torch

Dtype = Literal["float32", "bfloat16", "float16"]
# Where 16-bit numbers come from: autocast casts weights op by op and the residual stream stays fp32; a
# sharded run may cast weights as it gathers them; or the weights themselves are 16-bit.
Casts = Literal["autocast", "gather", "none"]
Attention = Literal["flash", "efficient", "math"]
Checkpointing = Literal["none", "selective", "full"]
Tuning = Literal["full", "lora", "adapter"]  # adapter: any small add-on that keeps the weights frozen
Sharding = Literal["none", "ddp", "zero1", "zero2", "zero3"]
OptimizerKernel = Literal["fused", "foreach", "loop"]

DTYPES: tuple[Dtype, ...] = get_args(Dtype)
# Optimizer -> state numbers per trained parameter; Muon's and Adafactor's depend on the shape, see
# fit/states.py.
OPTIMIZERS: dict[str, float] = {
    "adamw": 2,
    "adam": 2,
    "adam8bit": 2,
    "sgd": 0,
    "momentum": 1,
    "lion": 1,
    "muon": 1,
    "adafactor": 0.01,  # a row and a column for each matrix
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One optimizer step is `accumulation` micro-steps of `batch_size` sequences on each GPU.

    The defaults are nanoGPT's: fp32 weights under autocast, fused AdamW, flash attention, one GPU.
    """

    batch_size: int
    sequence_tokens: int
    accumulation: int
    dtype: Dtype  # of the matmuls
    compiled: bool
    casts: Casts = "autocast"  # how `dtype` is reached if it is a 16-bit one
    attention: Attention = "flash"
    checkpointing: Checkpointing = "none"
    loss_chunks: int = 1  # logits and loss are computed in this many slices of the batch, one at a time
    loss_compiled: bool = True  # if the model is compiled, its loss is too
    fused_loss: bool = False  # one kernel from hidden state to loss: the logits are never all in memory
    optimizer: str = "adamw"
    optimizer_kernel: OptimizerKernel = "fused"
    state_dtype: Dtype | None = None  # None: like the weights
    master_weights: bool = False  # an additional fp32 copy of 16-bit weights
    fp32_gradients: bool = False  # 16-bit gradients are accumulated and reduced in fp32
    in_backward: bool = False  # each weight is updated as soon as its gradient exists, which is then dropped
    tf32: bool = True  # fp32 matmuls may use it
    fp8: bool = False  # linear layers multiply in fp8; weights and their gradients keep their format
    fp8_inputs: bool = (
        False  # and keep their inputs in fp8, as Transformer Engine does; torchao keeps 16 bits
    )
    tuning: Tuning = "full"
    rank: int = 8  # of LoRA
    targets: int = 2  # linear layers LoRA adapts: 2 queries and values, 4 attention, 7 all, 8 the head too
    adapter_dtype: Dtype | None = None  # None: like the weights
    frozen_bits: int = 0  # 4 or 8: the frozen weights are quantized
    double_quantized: bool = False  # the scales of 4-bit weights are quantized too
    even_lengths: bool = False  # every micro-step is as long as the longest: packed, or padded to one length
    gpus: int = 1
    sharding: Sharding = "none"
    shards: int = 1  # GPUs that share one copy of the states
    tensor: int = 1
    sequence_parallel: bool = True  # tensor: norms and residual stream are split too, along the sequence
    pipeline: int = 1
    virtual_stages: int = 1  # pipeline: pieces of the model per GPU, run one after the other (interleaved)
    context: int = 1
    expert: int = 1  # GPUs that the experts are spread over, among the data-parallel ones
    offload_states: bool = False  # weights and optimizer state are kept in host memory
    offload_activations: bool = False
    framework: Framework = PLAIN  # the code that runs it
    torch: Torch = CURRENT  # the PyTorch release

    def __post_init__(self) -> None:
        assert min(self.batch_size, self.sequence_tokens, self.accumulation, self.loss_chunks) > 0
        assert min(self.gpus, self.shards, self.tensor, self.pipeline, self.context) > 0
        # A split over more GPUs than there are would make anything fit.
        assert self.tensor * self.pipeline * self.context <= self.gpus
        assert self.shards * self.tensor * self.pipeline <= self.gpus
        assert self.fp8 or not self.fp8_inputs
        assert self.expert > 0
        assert self.virtual_stages > 0
        assert self.data_parallel * self.context % self.expert == 0
        assert self.dtype in DTYPES
        assert self.optimizer in OPTIMIZERS
        assert self.frozen_bits in (0, 4, 8)

    @property
    def half(self) -> bool:
        """Whether matmuls run in 16 bits. bf16 and fp16 are both 2 bytes: neither saves over the other."""
        return self.dtype != "float32"

    @property
    def weights_dtype(self) -> Dtype:
        return self.dtype if self.casts == "none" else "float32"

    @property
    def tables_dtype(self) -> Dtype:
        """Of lookup-only tables."""
        narrow = self.framework.narrow_tables and self.dtype == "bfloat16" and self.tuning == "full"
        return self.dtype if narrow else self.weights_dtype

    @property
    def micro_tokens(self) -> int:
        """Tokens whose activations one GPU holds together."""
        return -(-self.batch_size * self.sequence_tokens // self.context)

    @property
    def data_parallel(self) -> int:
        """GPUs that each read their own sequences."""
        return max(1, self.gpus // (self.tensor * self.pipeline * self.context))

    @property
    def step_tokens(self) -> int:
        """Tokens of one optimizer step over all GPUs."""
        return self.effective_batch * self.sequence_tokens

    @property
    def effective_batch(self) -> int:
        """Sequences per optimizer step: this defines the training run, so no fix may change it."""
        return self.batch_size * self.accumulation * self.data_parallel

    def in_batches_of(self, size: int) -> Training:
        """The same optimizer step in micro-batches of this many sequences, which must divide it."""
        return replace(self, batch_size=size, accumulation=self.batch_size * self.accumulation // size)
