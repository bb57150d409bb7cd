"""`Model`: the shape of a transformer. Sizes only; how it is trained is `Training`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Norm = Literal["layer", "rms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder (GPT-2, Llama, …) or, with `classes` or `encoder`, a BERT-type encoder.

    The defaults describe GPT-2: learned positions, layer norm before each part, an MLP with GELU.
    """

    name: str
    layers: int
    heads: int
    kv_heads: int  # equal to heads unless queries share keys and values
    width: int
    mlp_width: int
    vocab: int
    positions: int  # rows of the learned position table; 0 for rotary or relative positions
    tied: bool  # the output projection is the token embedding
    bias: bool  # on the linear layers and, for layer norm, on the norms
    dropout: float = 0.0  # after attention and MLP, and on the embedding
    head_size: int = 0  # 0: width / heads
    gated: bool = False  # SwiGLU, GeGLU: three matrices in the MLP instead of two
    gelu_tensors: int = 1  # what the activation keeps: 1 for a fused kernel, 4 for tanh-GELU in Python
    norm: Norm = "layer"
    norms: int = 2  # norms a layer has across its width
    norm_bias: bool | None = None  # None: as `bias` for layer norms; an rms norm never has one
    qkv_bias: bool | None = None  # None: as `bias`
    head_bias: bool = False  # on the output projection
    qk_norm: bool = False  # a norm over each head of queries and keys
    parallel: bool = False  # attention and MLP read the same input and are added together
    rotary: bool = False
    attention_dropout: float = 0.0
    capped: bool = False  # attention scores are soft-capped by a tanh
    writes_scores: bool = False  # its own code makes the score matrix, whatever kernels PyTorch has
    encoder: bool = False  # not causal; norms after each part; a norm on the embedding
    segments: int = 0  # rows of BERT's segment table
    classes: int | None = None  # a classifier on the first token instead of a vocabulary at the end

    def __post_init__(self) -> None:
        assert min(self.layers, self.heads, self.kv_heads, self.width, self.mlp_width, self.vocab) > 0
        assert self.head_size or self.width % self.heads == 0
        assert self.heads % self.kv_heads == 0

    @property
    def head_width(self) -> int:
        return self.head_size or self.width // self.heads

    @property
    def query_width(self) -> int:
        """Width of all query heads together: `width`, except where head_size says otherwise."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.kv_heads * self.head_width
