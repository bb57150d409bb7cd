"""`Model`: the shape of a decoder transformer. Sizes only; how it is trained is `Training`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A GPT-type decoder: learned positions, layer norm before each part, an MLP with GELU."""

    name: str
    layers: int
    heads: int
    kv_heads: int  # equal to heads unless queries share keys and values
    width: int
    mlp_width: int
    vocab: int
    positions: int  # rows of the learned position table
    tied: bool  # the output projection is the token embedding
    bias: bool
    dropout: float

    def __post_init__(self) -> None:
        assert min(self.layers, self.heads, self.kv_heads, self.width, self.mlp_width, self.vocab) > 0
        assert self.width % self.heads == 0
        assert self.heads % self.kv_heads == 0

    @property
    def head_width(self) -> int:
        return self.width // self.heads
