"""`Training`: how a model is trained on one GPU, as far as bytes and seconds depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["float32", "bfloat16", "float16"]

DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One optimizer step is `accumulation` micro-steps of `batch_size` sequences on this GPU.

    Weights, gradients and AdamW state are fp32; a 16-bit `dtype` means autocast, as nanoGPT trains.
    """

    batch_size: int
    sequence_tokens: int
    accumulation: int
    dtype: Dtype
    compiled: bool
    flash: bool = True  # attention never writes its score matrix to memory
    fused_optimizer: bool = True
    checkpointed: bool = False  # each layer keeps its input only and is run again in the backward pass
    loss_chunks: int = 1  # logits and loss made for this many slices of the batch, one at a time

    def __post_init__(self) -> None:
        assert min(self.batch_size, self.sequence_tokens, self.accumulation, self.loss_chunks) > 0
        assert self.dtype in DTYPES

    @property
    def micro_tokens(self) -> int:
        """Tokens whose activations are in memory together."""
        return self.batch_size * self.sequence_tokens

    @property
    def step_tokens(self) -> int:
        return self.micro_tokens * self.accumulation

    @property
    def effective_batch(self) -> int:
        """Sequences per optimizer step: what decides the run that is trained, so no fix may change it."""
        return self.batch_size * self.accumulation
