"""Small programs to trace. Each is a builder: it makes everything on the fake GPU and returns one step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], Any]


def attention_by_hand() -> None:
    """What was recorded on a GPU as `silmont__mem_snapshot`, written anew."""

    def softmax(x: Any) -> Any:
        highest = x.max(dim=-1, keepdim=True).values
        above = torch.exp(x - highest)
        total = torch.sum(above, dim=-1, keepdim=True)
        return above / total

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = torch.einsum("bqd,bkd->bqk", q, k)
        scores = scores / math.sqrt(q.shape[-1])
        weights = softmax(scores)
        return torch.einsum("bqk,bkd->bqd", weights, v)

    q, k, v = (torch.randn(8, 4096, 16, device="cuda", requires_grad=True) for _ in range(3))
    mixed = attend(q, k, v)
    loss = mixed.sum()
    loss.backward()


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, tokens, width))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.before_attention(x))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class Gpt(nn.Module):
    def __init__(
        self,
        *,
        vocab: int = 1024,
        layers: int = 2,
        heads: int = 4,
        width: int = 256,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocab, bias=False)
        self.checkpoint = checkpoint

    def forward(self, ids: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        x = self.tokens(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoint else layer(x)
        return self.head(x)


def a_training(
    make: Callable[[], nn.Module] = Gpt,
    *,
    dtype: torch.dtype | None = torch.bfloat16,
    optimizer: Callable[[Any], Any] | None = None,
    batch: int = 4,
    tokens: int = 256,
    accumulation: int = 1,
    scaler: bool = False,
) -> Callable[[], Step]:
    """A builder that trains `make()` on random tokens."""

    def build() -> Step:
        model = make().to("cuda")
        chosen = optimizer or (lambda parameters: torch.optim.AdamW(parameters, fused=True))
        optim = chosen(model.parameters())
        grad_scaler = torch.amp.GradScaler("cuda", enabled=scaler)

        def step() -> None:
            for _ in range(accumulation):
                ids = torch.randint(1024, (batch, tokens), device="cuda")
                with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
                    logits = model(ids)
                    loss = functional.cross_entropy(logits.view(-1, logits.size(-1)), ids.view(-1))
                grad_scaler.scale(loss / accumulation).backward()
            grad_scaler.step(optim)
            grad_scaler.update()
            optim.zero_grad(set_to_none=True)

        return step

    return build
