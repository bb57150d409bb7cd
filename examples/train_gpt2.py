"""GPT-2 124M on random tokens, the shape of nanoGPT: bf16 autocast, flash attention, fused AdamW.

brimful trace examples/train_gpt2.py --gpu rtx-4070            what a GPU would hold, without one
python examples/train_gpt2.py                                  train, on a machine that has one
"""

import argparse

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, tokens, width))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.before_attention = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads)
        self.before_mlp = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class Gpt(nn.Module):
    def __init__(self, *, vocab=50304, positions=1024, layers=12, heads=12, width=768):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.places = nn.Embedding(positions, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.last_norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.last_norm(x))
        return logits, functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    model = Gpt(positions=options.tokens).to("cuda")
    adamw = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
    for _ in range(options.steps):
        ids = torch.randint(50304, (options.batch, options.tokens), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            logits, loss = model(ids, ids)
        loss.backward()
        adamw.step()
        adamw.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
