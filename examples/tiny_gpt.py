"""A GPT small enough for any laptop, in plain PyTorch, that can be stopped and moved.

    pip install 'brimful[trace]'
    brimful submit -- python examples/tiny_gpt.py

Three lines make it movable: `Run()`, the look at `run.latest`, and `run.after(...)` at the end of each step.
Batches are drawn by step number, so a run that was stopped and moved has the losses of one that was not.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from brimful.job import Run

TEXT = "a full glass holds no air, a full gpu no idle hour: fill what you have before you buy more. " * 40
CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 32, 8, 64, 4, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, letters: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(letters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters)

    def forward(self, ids, targets):
        x = self.blocks(self.token(ids) + self.place(torch.arange(ids.shape[1])))
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def a_batch(data, step: int):
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,), generator=generator)
    return (
        torch.stack([data[s : s + CONTEXT] for s in starts]),
        torch.stack([data[s + 1 : s + 1 + CONTEXT] for s in starts]),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps

    torch.manual_seed(0)
    letters = sorted(set(TEXT))
    data = torch.tensor([letters.index(letter) for letter in TEXT])
    model = GPT(len(letters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    run, start = Run(every_s=60), 0
    if run.latest:
        state = torch.load(run.latest / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, from step {start}", flush=True)

    def save(folder) -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, folder / "state.pt")

    for step in range(start, steps):
        loss = model(*a_batch(data, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}", flush=True)
        run.after(step + 1, save)
    print("done", flush=True)


if __name__ == "__main__":
    main()
