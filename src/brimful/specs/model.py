"""`Model`: the shape of a transformer. Sizes only; how it is trained is `Training`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Norm = Literal["layer", "rms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts instead of the MLP: each token goes to `chosen` of `count`, and the shared
    ones."""

    count: int  # routed experts of a layer
    chosen: int  # of them, for each token
    width: int  # inner width of one expert
    shared_width: int = 0  # inner width of all shared experts together: every token uses them
    shared_gate: bool = False  # a learned number scales the output of the shared experts
    dense_layers: int = 0  # layers with an ordinary MLP of the model's mlp_width instead

    def __post_init__(self) -> None:
        assert 0 < self.chosen <= self.count
        assert self.width > 0
        assert min(self.shared_width, self.dense_layers) >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """What a vision transformer reads: a square image cut into square patches, each a token."""

    size: int  # side length in pixels
    patch: int  # side length of a patch in pixels
    channels: int = 3
    extra_tokens: int = 1  # the class token, and registers
    patch_bias: bool = True
    mask_token: bool = False  # a learned placeholder for patches that are masked in pre-training

    def __post_init__(self) -> None:
        assert 0 < self.patch <= self.size
        assert self.channels > 0
        assert self.extra_tokens >= 0

    @property
    def tokens(self) -> int:
        """Per image: its sequence length."""
        return (self.size // self.patch) ** 2 + self.extra_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder (GPT-2, Llama, …); with `encoder` a BERT-type encoder; with `images` a vision transformer.

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
    # Tensors the activation keeps: 1 for a fused kernel, 4 for tanh-GELU in Python, 0 for ReLU.
    gelu_tensors: int = 1
    norm: Norm = "layer"
    norms: int = 2  # norms per layer across its width
    norm_fp32: bool = False  # an rms norm multiplies by its weight in fp32, before the cast
    softmax_fp32: bool = False  # attention without a fused kernel computes its softmax in fp32
    norm_weights: bool = True  # norms have a learned scale
    norm_bias: bool | None = None  # None: as `bias` for layer norms; an rms norm never has one
    qkv_bias: bool | None = None  # None: as `bias`
    head_bias: bool = False  # on the output projection
    qk_norm: bool = False  # a norm over each head of queries and keys
    parallel: bool = False  # attention and MLP read the same input and are added
    rotary: bool = False
    attention_dropout: float = 0.0
    capped: bool = False  # attention scores are soft-capped by a tanh
    writes_scores: bool = False  # its own code materialises the score matrix, whatever kernels PyTorch has
    encoder: bool = False  # not causal; norms after each part; a norm on the embedding
    segments: int = 0  # rows of BERT's segment table
    classes: int | None = None  # a classifier on the first token instead of a vocabulary; 0: none
    experts: Experts | None = None  # a mixture of experts instead of most MLPs
    images: Images | None = None  # patches of an image instead of words: no vocabulary, no causal mask
    value_tables: int = 0  # token tables besides the first one, each added to the values of one layer
    embedding_norm: bool = False  # one more norm, before the first layer
    layer_scale: bool = False  # a learned factor for each number that a block adds to the residual stream
    first: bool = True  # holds the tables: in a pipeline only the first stage does
    last: bool = True  # holds the output: in a pipeline only the last stage does
    class_inputs: int = 1  # concatenated hidden states that the classifier of an image reads
    family: str = ""  # Hugging Face's model_type; empty for nanoGPT's GPT

    def __post_init__(self) -> None:
        assert min(self.layers, self.heads, self.kv_heads, self.width, self.mlp_width) > 0
        assert (self.vocab > 0) == (self.images is None)
        assert self.images is None or self.classes is not None
        assert self.experts is None or self.experts.dense_layers <= self.layers
        assert self.head_size or self.width % self.heads == 0
        assert self.heads % self.kv_heads == 0

    @property
    def head_width(self) -> int:
        return self.head_size or self.width // self.heads

    @property
    def causal(self) -> bool:
        """Whether a token sees only earlier ones."""
        return not self.encoder and self.images is None

    @property
    def query_width(self) -> int:
        """Width of all query heads together: `width`, unless head_size says otherwise."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.kv_heads * self.head_width
