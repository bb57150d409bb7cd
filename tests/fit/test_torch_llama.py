"""Our closed forms against PyTorch itself, on a Llama small enough for a laptop, in pure bf16."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brimful.fit.activations import layer_bytes
from brimful.fit.count import forward_flops_per_token, model_flops_per_token, parameters, step_flops
from brimful.specs.model import Model
from brimful.specs.training import Training
from tests.fit.builders import a_model, a_training

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Failed to initialize NumPy"),
]

BATCH, TOKENS, RANK = 2, 64, 8


def a_llama_model(**changes: Any) -> Model:
    shape: dict[str, Any] = {
        "layers": 2, "heads": 4, "width": 128, "mlp_width": 352, "vocab": 1000, "positions": 0,
        "tied": False, "gated": True, "norm": "rms", "rotary": True,
    }  # fmt: skip
    return a_model(name="llama", **{**shape, **changes})


def a_norm(width: int) -> Any:
    """An rms norm written in Python, as model code mostly has it."""
    import torch
    from torch import nn

    class RmsNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x: Any) -> Any:
            wide = x.to(torch.float32)
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.weight * wide.to(x.dtype)

    return RmsNorm()


def a_linear(fan_in: int, fan_out: int, *, adapted: bool, dropout: float) -> Any:
    """A linear layer, or a frozen one with a LoRA adapter beside it."""
    from torch import nn
    from torch.nn import functional

    class Lora(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(fan_in, fan_out, bias=False)
            self.lora_a = nn.Linear(fan_in, RANK, bias=False)
            self.lora_b = nn.Linear(RANK, fan_out, bias=False)

        def forward(self, x: Any) -> Any:
            dropped = functional.dropout(x, dropout) if dropout else x
            return self.base(x) + self.lora_b(self.lora_a(dropped)) * 2

    return Lora() if adapted else nn.Linear(fan_in, fan_out, bias=False)


def a_layer(model: Model, *, targets: int, dropout: float, fused: bool) -> Any:
    import torch
    from torch import nn
    from torch.nn import functional

    def heads(y: Any) -> Any:
        return y.view(y.shape[0], y.shape[1], -1, model.head_width).transpose(1, 2)

    def turned(y: Any, cos: Any, sin: Any) -> Any:
        half = model.head_width // 2
        return y * cos + torch.cat((-y[..., half:], y[..., :half]), dim=-1) * sin

    def linear(fan_in: int, fan_out: int, *, adapted: bool) -> Any:
        return a_linear(fan_in, fan_out, adapted=adapted, dropout=dropout)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            d, q, k, m = model.width, model.query_width, model.kv_width, model.mlp_width
            self.before_attention, self.before_mlp = a_norm(d), a_norm(d)
            self.q, self.v = linear(d, q, adapted=targets >= 2), linear(d, k, adapted=targets >= 2)
            self.k, self.out = linear(d, k, adapted=targets >= 7), linear(q, d, adapted=targets >= 7)
            self.gate, self.up = linear(d, m, adapted=targets >= 7), linear(d, m, adapted=targets >= 7)
            self.down = linear(m, d, adapted=targets >= 7)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            x = x + self.attend(self.before_attention(x), cos, sin)
            y = self.before_mlp(x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

        def attend(self, x: Any, cos: Any, sin: Any) -> Any:
            q, k, v = self.q(x), self.k(x), self.v(x)
            if fused:  # one matmul makes all three, and each is a view of what it made
                q, k, v = torch.cat((q, k, v), dim=-1).split([q.shape[-1], k.shape[-1], v.shape[-1]], dim=-1)
            q, k, v = turned(heads(q), cos, sin), turned(heads(k), cos, sin), heads(v)
            if (shared := model.heads // model.kv_heads) > 1:
                k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(mixed.transpose(1, 2).reshape(*x.shape[:2], model.query_width))

    return Layer()


def a_llama(model: Model, *, targets: int = 0, dropout: float = 0.0, fused: bool = False) -> Any:
    """Norms and rotary positions in Python, SwiGLU; queries, keys and values apart (Hugging Face) or `fused`.

    With `targets` the weights are frozen and 2 or 7 linear layers of each layer have a LoRA adapter, which
    may drop part of its input.
    """
    import torch
    from torch import nn
    from torch.nn import functional

    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(model.vocab, model.width)
            layers = [
                a_layer(model, targets=targets, dropout=dropout, fused=fused) for _ in range(model.layers)
            ]
            self.layers = nn.ModuleList(layers)
            self.last_norm = a_norm(model.width)
            self.head = nn.Linear(model.width, model.vocab, bias=False)

        def forward(self, ids: Any) -> Any:
            angle = torch.arange(ids.shape[1], device=ids.device).outer(torch.ones(model.head_width))
            x = self.tokens(ids)
            cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
            for layer in self.layers:
                x = layer(x, cos, sin)
            return functional.cross_entropy(self.head(self.last_norm(x)).float().flatten(0, 1), ids.flatten())

    llama = Llama().bfloat16()
    for name, weight in llama.named_parameters():
        weight.requires_grad_(targets == 0 or "lora_" in name)
    return llama


def ids_of() -> Any:
    import torch

    return torch.zeros((BATCH, TOKENS), dtype=torch.long)


def kept_bytes(model: Model, **kind: Any) -> int:
    """What autograd saves for the backward pass of the whole model."""
    import torch

    llama = a_llama(model, **kind)
    own = {weight.untyped_storage().data_ptr() for weight in llama.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        address = tensor.untyped_storage().data_ptr()
        if address not in own and tensor.dtype != torch.long:
            kept[address] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        llama(ids_of())
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def measured_layer_bytes(*, kv_heads: int = 4, **kind: Any) -> int:
    """One layer: a model of two less one of one."""
    two, one = (a_llama_model(layers=layers, kv_heads=kv_heads) for layers in (2, 1))
    return kept_bytes(two, **kind) - kept_bytes(one, **kind)


def a_run(**changes: Any) -> Training:
    return a_training(batch_size=BATCH, sequence_tokens=TOKENS, casts="none", compiled=False, **changes)


def derived_layer_bytes(model: Model, training: Training) -> int:
    return sum(layer_bytes(model, training).values())


def test_parameters_of_a_llama_equal_pytorchs() -> None:
    model = a_llama_model(kv_heads=2)

    assert sum(weight.numel() for weight in a_llama(model).parameters()) == parameters(model)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_flops_of_a_llama_equal_flop_counter_modes(kv_heads: int) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model = a_llama_model(kv_heads=kv_heads)
    llama = a_llama(model)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        loss = llama(ids_of())
    with FlopCounterMode(display=False) as backward:
        loss.backward()

    tokens = BATCH * TOKENS
    ours = forward_flops_per_token(model, sequence_tokens=TOKENS) * tokens
    assert forward.get_total_flops() == pytest.approx(ours, rel=0.02)
    both = forward.get_total_flops() + backward.get_total_flops()
    assert both == pytest.approx(model_flops_per_token(model, sequence_tokens=TOKENS) * tokens, rel=0.02)


def test_a_frozen_layer_multiplies_4n_and_not_6n() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    found, ours = [], []
    for layers in (2, 1):  # one layer: the first of all needs no gradient of its input
        model = a_llama_model(layers=layers, width=512, mlp_width=1408)
        llama = a_llama(model, targets=2)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
            llama(ids_of()).backward()
        found.append(counted.get_total_flops())
        ours.append(step_flops(model, replace(a_run(tuning="lora", targets=2), accumulation=1)))

    assert found[0] - found[1] == pytest.approx(ours[0] - ours[1], rel=0.02)


def test_a_trained_layer_keeps_what_we_say_it_keeps() -> None:
    derived = derived_layer_bytes(a_llama_model(), a_run())

    assert measured_layer_bytes(fused=True) == pytest.approx(derived, rel=0.001)
    # Three matmuls instead of one leave nothing for v to hold on to: h·N·(q+k) less. A row never says which.
    apart = 2 * BATCH * TOKENS * (128 + 128)
    assert measured_layer_bytes(fused=False) == pytest.approx(derived - apart, rel=0.001)


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_shared_keys_and_values_are_counted_as_flash_attention_reads_them(kv_heads: int) -> None:
    model = a_llama_model(kv_heads=kv_heads)
    derived = derived_layer_bytes(model, a_run())

    # Code that repeats them for each query head keeps the copies instead: 2·h·N·(q-k) more.
    repeated = 2 * 2 * BATCH * TOKENS * (model.query_width - model.kv_width)
    assert measured_layer_bytes(kv_heads=kv_heads) == pytest.approx(derived + repeated, rel=0.001)


@pytest.mark.parametrize(("targets", "inputs"), [(2, 2 * 128), (7, 6 * 128 + 352)])
def test_a_frozen_layer_keeps_what_lora_reads_and_what_lies_between(targets: int, inputs: int) -> None:
    derived = derived_layer_bytes(a_llama_model(), a_run(tuning="lora", targets=targets, rank=RANK))

    # Dropout on a CPU keeps its mask as bf16 numbers, on a GPU as bytes: one byte more for each input.
    on_cpu = BATCH * TOKENS * inputs
    measured = measured_layer_bytes(targets=targets, dropout=0.1, fused=True)
    assert measured - on_cpu == pytest.approx(derived, rel=0.001)


def test_lora_without_dropout_keeps_each_input_once() -> None:
    """What a row cannot tell: without dropout, adapted layers that read one tensor share it."""
    derived = derived_layer_bytes(a_llama_model(), a_run(tuning="lora", targets=7, rank=RANK))

    assert 0.6 * derived < measured_layer_bytes(targets=7, fused=True) < 0.8 * derived


def compiled_layer_bytes(*, kv_heads: int) -> int:
    """What the min-cut partitioner hands from the forward to the backward graph, for one layer."""
    import torch
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    found: list[int] = []
    for layers in (2, 1):
        forward: list[Any] = []

        def keep(graph: Any, _: Any, forward: list[Any] = forward) -> Any:
            forward.append(graph)
            return make_boxed_func(graph.forward)

        make: Any = aot_autograd  # torch leaves it untyped
        backend = make(
            fw_compiler=keep,
            bw_compiler=lambda graph, _: make_boxed_func(graph.forward),
            decompositions=select_decomp_table(),
            partition_fn=min_cut_rematerialization_partition,
        )
        torch._dynamo.reset()
        llama = a_llama(a_llama_model(layers=layers, kv_heads=kv_heads))
        compiled: Any = torch.compile(llama, backend=backend)
        compiled(ids_of()).backward()
        _, *saved = forward[0].graph.output_node().args[0]
        made = [node for node in saved if node.op != "placeholder" and node.meta["val"].dtype != torch.long]
        found.append(sum(node.meta["val"].numel() * node.meta["val"].element_size() for node in made))
    return found[0] - found[1]


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_compiling_keeps_what_a_backward_matmul_reads_and_makes_the_rest_again(kv_heads: int) -> None:
    model = a_llama_model(kv_heads=kv_heads)
    derived = derived_layer_bytes(model, replace(a_run(), compiled=True))

    # Attention's output is listed twice, as the kernel gave it and as the next matmul reads it: one buffer.
    twice = 2 * BATCH * TOKENS * model.query_width
    # Repeated keys and values are kept as copies even so; flash attention that shares them needs none.
    repeated = 2 * 2 * BATCH * TOKENS * (model.query_width - model.kv_width)
    assert compiled_layer_bytes(kv_heads=kv_heads) == pytest.approx(derived + twice + repeated, rel=0.01)
