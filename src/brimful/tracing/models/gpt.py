"""A GPT-2 as nanoGPT writes it: fused queries, keys and values, learned positions, a tied output."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from brimful.specs.model import Model


class Attention(nn.Module):
    def __init__(self, model: Model, *, math: bool) -> None:
        super().__init__()
        self.model, self.math = model, math
        self.qkv = nn.Linear(model.width, 3 * model.width, bias=model.bias)
        self.out = nn.Linear(model.width, model.width, bias=model.bias)
        self.drop_scores = nn.Dropout(model.attention_dropout)
        self.drop = nn.Dropout(model.dropout)

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.model.heads, self.model.head_width)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        if self.math:
            scores = (q @ k.transpose(-2, -1)) * self.model.head_width**-0.5
            hidden = torch.ones(tokens, tokens, device=x.device, dtype=torch.bool).triu(1)
            scores = functional.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
            mixed = self.drop_scores(scores) @ v
        else:
            mixed = functional.scaled_dot_product_attention(
                q, k, v, dropout_p=self.model.attention_dropout, is_causal=True
            )
        return self.drop(self.out(mixed.transpose(1, 2).contiguous().view(batch, tokens, width)))


class Layer(nn.Module):
    def __init__(self, model: Model, *, math: bool) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(model.width, bias=model.bias)
        self.attention = Attention(model, math=math)
        self.before_mlp = nn.LayerNorm(model.width, bias=model.bias)
        self.up = nn.Linear(model.width, model.mlp_width, bias=model.bias)
        self.down = nn.Linear(model.mlp_width, model.width, bias=model.bias)
        self.drop = nn.Dropout(model.dropout)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.before_attention(x))
        return x + self.drop(self.down(functional.gelu(self.up(self.before_mlp(x)))))


class Gpt(nn.Module):
    def __init__(self, model: Model, *, checkpoint: bool, math: bool) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.tokens = nn.Embedding(model.vocab, model.width)
        self.places = nn.Embedding(model.positions, model.width)
        self.drop = nn.Dropout(model.dropout)
        self.layers = nn.ModuleList(Layer(model, math=math) for _ in range(model.layers))
        self.last_norm = nn.LayerNorm(model.width, bias=model.bias)
        self.head = nn.Linear(model.width, model.vocab, bias=False)
        if model.tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Any, targets: Any) -> tuple[Any, Any]:
        x = self.drop(self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoint else layer(x)
        logits = self.head(self.last_norm(x))
        return logits, functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
