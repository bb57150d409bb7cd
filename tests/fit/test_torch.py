"""Our closed forms against PyTorch itself, on a GPT small enough for a laptop."""

from __future__ import annotations

from typing import Any

import pytest

from brimful.fit.activations import kept_items
from brimful.fit.count import (
    forward_flops_per_token,
    matmul_parameters,
    model_flops_per_token,
    parameters,
)
from brimful.specs.model import Model
from tests.fit.builders import a_model, a_training

pytestmark = [
    pytest.mark.torch,
    # torch says so once when NumPy is absent; nothing here needs it
    pytest.mark.filterwarnings("ignore:Failed to initialize NumPy"),
]

SMALL = a_model(layers=3, heads=4, width=128, vocab=1000, positions=64)
BATCH = 2


def a_gpt(model: Model) -> Any:
    """The decoder the formulas describe, in plain torch.nn."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width, bias = model.width, model.bias
            self.before_attention = nn.LayerNorm(width, bias=bias)
            self.qkv = nn.Linear(width, 3 * width, bias=bias)
            self.out = nn.Linear(width, width, bias=bias)
            self.before_mlp = nn.LayerNorm(width, bias=bias)
            self.up = nn.Linear(width, model.mlp_width, bias=bias)
            self.down = nn.Linear(model.mlp_width, width, bias=bias)

        def forward(self, x: Any) -> Any:
            x = x + self.attend(self.before_attention(x))
            return x + self.down(functional.gelu(self.up(self.before_mlp(x))))

        def attend(self, x: Any) -> Any:
            batch, tokens, width = x.shape
            shape = (batch, tokens, model.heads, model.head_width)
            q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(model.vocab, model.width)
            self.places = nn.Embedding(model.positions, model.width)
            self.layers = nn.ModuleList([Layer() for _ in range(model.layers)])
            self.last_norm = nn.LayerNorm(model.width, bias=model.bias)
            self.head = nn.Linear(model.width, model.vocab, bias=False)
            if model.tied:
                self.head.weight = self.tokens.weight

        def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
            for layer in self.layers:
                x = layer(x)
            logits = self.head(self.last_norm(x))
            return logits, functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten())

    return Gpt()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_equal_pytorchs(bias: bool, tied: bool) -> None:
    import torch

    model = a_model(vocab=50257, bias=bias, tied=tied)
    with torch.device("meta"):
        gpt = a_gpt(model)

    assert sum(p.numel() for p in gpt.parameters()) == parameters(model)


def test_flops_equal_flop_counter_modes_forward_and_backward() -> None:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    gpt, ids = a_gpt(SMALL), torch.zeros((BATCH, SMALL.positions), dtype=torch.long)
    tokens = ids.numel()
    # The plain kernel, because the counter knows its two matmuls as what they are: attention in full.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        _, loss = gpt(ids)
    with FlopCounterMode(display=False) as backward:
        loss.backward()

    ours = forward_flops_per_token(SMALL, sequence_tokens=SMALL.positions) * tokens
    assert forward.get_total_flops() == pytest.approx(ours, rel=0.02)
    both = forward.get_total_flops() + backward.get_total_flops()
    assert both == pytest.approx(
        model_flops_per_token(SMALL, sequence_tokens=SMALL.positions) * tokens, rel=0.02
    )


def test_autograd_keeps_what_we_say_it_keeps() -> None:
    import torch

    gpt, ids = a_gpt(SMALL), torch.zeros((BATCH, SMALL.positions), dtype=torch.long)
    own = {p.untyped_storage().data_ptr() for p in gpt.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        # Held on to, so that no address is used twice while we count.
        address = tensor.untyped_storage().data_ptr()
        if address not in own and tensor.dtype != torch.long:
            kept[address] = tensor
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16),
    ):
        gpt(ids)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())

    training = a_training(batch_size=BATCH, sequence_tokens=SMALL.positions, compiled=False)
    tokens = training.micro_tokens
    derived = (
        sum(item.bytes for item in kept_items(SMALL, training)) - 4 * 8 * tokens
    )  # token ids are no floats
    casts = 2 * matmul_parameters(SMALL)
    log_softmax = 4 * tokens * SMALL.vocab
    assert measured == pytest.approx(derived + casts + log_softmax, rel=0.001)


def test_compiling_keeps_as_many_bytes_for_the_backward_pass_and_asks_for_a_gradient_of_the_logits() -> None:
    import torch
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    forward: list[Any] = []
    backward: list[Any] = []

    def keep_in(graphs: list[Any]) -> Any:
        def compiler(graph: Any, _: Any) -> Any:
            graphs.append(graph)
            return make_boxed_func(graph.forward)

        return compiler

    make: Any = aot_autograd  # torch leaves it untyped
    backend = make(
        fw_compiler=keep_in(forward),
        bw_compiler=keep_in(backward),
        decompositions=select_decomp_table(),
        partition_fn=min_cut_rematerialization_partition,
    )
    gpt, ids = a_gpt(SMALL), torch.zeros((BATCH, SMALL.positions), dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16):
        compiled: Any = torch.compile(gpt, backend=backend)
        _, loss = compiled(ids)
    loss.backward()

    logits, _, *saved = forward[0].graph.output_node().args[0]
    made = [node for node in saved if node.op != "placeholder" and node.meta["val"].dtype != torch.long]
    activations = [node for node in made if node.meta["val"].shape != logits.meta["val"].shape]
    measured = sum(node.meta["val"].numel() * node.meta["val"].element_size() for node in activations)
    tangents = [node for node in backward[0].graph.nodes if node.name.startswith("tangents")]

    training = a_training(batch_size=BATCH, sequence_tokens=SMALL.positions)
    tokens = training.micro_tokens
    derived = sum(item.bytes for item in kept_items(SMALL, training)) - 4 * 8 * tokens
    # Attention's output is listed twice, as the kernel gave it and as the next matmul reads it: one buffer.
    twice = SMALL.layers * 2 * tokens * SMALL.width
    assert measured == pytest.approx(derived + 2 * matmul_parameters(SMALL) + twice, rel=0.01)
    assert logits.meta["val"].shape in [node.meta["val"].shape for node in tangents]
