"""A decoder written out by hand, and an AdamW too: the kind students train, recorded on a GPU by one of them.

24 layers of width 1024, 16 heads, rotary positions, RMS norms, SwiGLU, softmax and cross-entropy as formulas.
The recordings are of one step after five others; the model is described by its sizes in them and by the
course it comes from (Stanford CS336), and written anew here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

VOCAB, WIDTH, LAYERS, HEADS, HIDDEN, BATCH = 10_000, 1024, 24, 16, 4096, 4


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: Any) -> Any:
        return torch.einsum("...i,oi->...o", x, self.weight)


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(VOCAB, WIDTH))

    def forward(self, ids: Any) -> Any:
        return self.weight[ids, :]


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        dtype = x.dtype
        x = x.to(torch.float32)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * scale
        return (self.weight * x).to(dtype)


class Rotary(nn.Module):
    waves: Any

    def __init__(self, tokens: int) -> None:
        super().__init__()
        half = torch.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS)
        angles = torch.einsum("t,f->tf", torch.arange(tokens), torch.tensor(10_000.0) ** -half)
        self.register_buffer("waves", torch.stack((torch.cos(angles), torch.sin(angles))), persistent=False)

    def forward(self, x: Any) -> Any:
        *outer, width = x.shape
        first, second = x.reshape(*outer, width // 2, 2).permute(4, 0, 1, 2, 3).unbind(0)
        cos, sin = self.waves[:, : x.size(-2), :].unbind(0)
        one = cos * first - sin * second
        two = sin * first + cos * second
        turned = torch.concat((one, two), dim=-1)
        return turned  # noqa: RET504  the name holds it until the function ends, as in the recorded script


def softmax(x: Any) -> Any:
    below = x - torch.max(x, dim=-1, keepdim=True)[0]
    above = torch.exp(below)
    return above / torch.sum(above, dim=-1, keepdim=True)


def attend(query: Any, key: Any, value: Any, mask: Any) -> Any:
    scores = torch.einsum("...qd,...kd->...qk", query, key) / math.sqrt(key.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = softmax(scores)
    return torch.einsum("...qk,...kd->...qd", weights, value)


class Attention(nn.Module):
    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (Linear(WIDTH, WIDTH) for _ in range(4))
        self.rotary = rotary

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        q, k, v = self.query(x), self.key(x), self.value(x)
        q, k, v = (t.reshape(batch, tokens, HEADS, width // HEADS).permute(0, 2, 1, 3) for t in (q, k, v))
        q = self.rotary(q)  # one after the other: the old tensor goes before the next is made
        k = self.rotary(k)
        place = torch.arange(tokens, device=x.device)
        mask = (place.view(-1, 1) >= place.view(1, -1))[None, ...]
        mixed = attend(q, k, v, mask)
        mixed = mixed.permute(0, 2, 1, 3).reshape(batch, tokens, width).contiguous()
        out = self.out(mixed)
        return out  # noqa: RET504  as above


class Layer(nn.Module):
    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.attention = Attention(rotary)
        self.gate, self.down, self.up = Linear(WIDTH, HIDDEN), Linear(HIDDEN, WIDTH), Linear(WIDTH, HIDDEN)
        self.before_attention, self.before_mlp = Norm(), Norm()

    def forward(self, x: Any) -> Any:
        attended = self.attention(self.before_attention(x))
        middle = x + attended
        mixed = self.mlp(self.before_mlp(middle))
        out = middle + mixed
        return out  # noqa: RET504  as above

    def mlp(self, x: Any) -> Any:
        return self.down(swish(self.gate(x)) * self.up(x))


def swish(x: Any) -> Any:
    return x * torch.sigmoid(x)


class Decoder(nn.Module):
    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.table = Table()
        self.rotary = Rotary(tokens)  # before the layers: .to() moves tensors in this order
        self.layers = nn.ModuleList(Layer(self.rotary) for _ in range(LAYERS))
        self.last_norm = Norm()
        self.head = Linear(WIDTH, VOCAB)

    def forward(self, ids: Any) -> Any:
        looked_up = self.table(ids)
        x = looked_up
        for layer in self.layers:
            x = layer(x)
        x = self.last_norm(x)
        logits = self.head(x)
        return logits  # noqa: RET504  as above


def cross_entropy(logits: Any, targets: Any) -> Any:
    def log_softmax(x: Any) -> Any:
        highest = torch.max(x, dim=-1, keepdim=True)[0]
        x = x - highest
        return x - torch.log(torch.sum(torch.exp(x), dim=-1, keepdim=True))

    surprise = -log_softmax(logits)
    return torch.mean(torch.gather(surprise, -1, targets.unsqueeze(-1)))


class AdamW(torch.optim.Optimizer):
    """New moments are new tensors in every step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "decay": 0.01})

    def step(self, closure: Any = None) -> None:
        """One loop whose names hold the last tensors until the next parameter's replace them, as recorded."""
        for group in self.param_groups:
            rate, (fast, slow), eps = group["lr"], group["betas"], group["eps"]
            for parameter in group["params"]:
                gradient, state = parameter.grad.data, self.state[parameter]
                step = state.get("step", 1)
                first = state.get("first", torch.zeros_like(gradient))
                second = state.get("second", torch.zeros_like(gradient))
                new_first = fast * first + ((1 - fast) * gradient)
                new_second = slow * second + ((1 - slow) * torch.square(gradient))
                now = rate * (math.sqrt(1 - slow**step) / (1 - fast**step))
                parameter.data -= now * new_first / (torch.sqrt(new_second) + eps)
                parameter.data -= rate * group["decay"] * parameter.data
                state["step"], state["first"], state["second"] = step + 1, new_first, new_second


def train(tokens: int, *, autocast: bool, warm_up: int, mark: Callable[[], None]) -> Callable[[], None]:
    """A program that trains `warm_up` steps and one more, which `mark` brackets."""

    def program() -> None:
        model = Decoder(tokens)
        model.to("cuda")
        adamw = AdamW(model.parameters())

        def ids(steps: int) -> Any:
            return torch.randint(VOCAB, (steps, BATCH, tokens), device="cuda")

        warm_ids, last_ids, warm_targets, last_targets = ids(warm_up), ids(1), ids(warm_up), ids(1)
        for i in range(warm_up):
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                logits = model(warm_ids[i])
                loss = cross_entropy(logits, warm_targets[i])
            loss.backward()
            adamw.step()
            adamw.zero_grad()
        del logits, loss
        adamw.zero_grad(set_to_none=True)
        mark()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            logits = model(last_ids[0])
            loss = cross_entropy(logits, last_targets[0])
        loss.backward()
        adamw.step()
        mark()

    return program


def infer(tokens: int, *, autocast: bool, warm_up: int, mark: Callable[[], None]) -> Callable[[], None]:
    """The same model in inference mode."""

    def program() -> None:
        model = Decoder(tokens)
        model.to("cuda").eval()
        warm_ids, last_ids = (torch.randint(VOCAB, (n, BATCH, tokens), device="cuda") for n in (warm_up, 1))
        with torch.inference_mode():
            for i in range(warm_up):
                with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                    model(warm_ids[i])
            mark()
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                model(last_ids[0])
            mark()

    return program
