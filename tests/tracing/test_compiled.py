"""Compiled code: Inductor's own plan where it can be made, an interval where it cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import brimful
from brimful.specs.gpu import find_gpu
from brimful.tracing.compiling import compiled
from brimful.tracing.report import Trace, report
from brimful.units import MIB
from tests.tracing.programs import Gpt, a_training

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _without_torch_trace() -> Iterator[None]:
    """The compiler's own log, thousands of lines a graph, which pytest would keep."""
    log = logging.getLogger("torch.__trace")
    log.disabled = True
    yield
    log.disabled = False


def traced(program: Callable[[], Any], gpu: str = "rtx-4090") -> Trace:
    return brimful.trace(program, gpu=gpu, settings="")


def codes(trace: Trace) -> set[str]:
    return {note.code.removeprefix("tracing.note_") for note in trace.notes}


def graphs(trace: Trace) -> int:
    return trace.rules_fired.get(compiled.PLANNED_RULE, 0)


def added(x: Any) -> Any:
    """Eight tensors at once, or none where they are fused."""
    parts = [x + number for number in range(8)]
    return sum(parts[1:], parts[0]).mean()


def calling(function: Callable[[Any], Any], **how: Any) -> Callable[[], None]:
    """A program that compiles a function and calls it with 256 MiB."""

    def program() -> None:
        torch.compile(function, **how)(torch.zeros(64 * MIB, device="cuda"))

    return program


# ---- a number


def test_what_is_fused_takes_no_memory() -> None:
    trace = traced(calling(added))

    # The input, partial sums of 3 x 128 blocks on 128 processors, and the mean.
    assert trace.requested_bytes == 256 * MIB + 4 * 384 + 4
    assert trace.least.requested_bytes == trace.requested_bytes
    assert graphs(trace) == 1
    assert codes(trace) == {"compiled"}


def test_each_card_has_a_plan_of_its_own() -> None:
    assert traced(calling(added), gpu="rtx-4060").requested_bytes != traced(calling(added)).requested_bytes


def test_a_buffer_that_is_done_with_is_used_again() -> None:
    """Two matmuls and what lies between them, by hand: one result of 4 MiB is rewritten in place."""

    def program() -> None:
        x, first, second = (torch.zeros(1024, 1024, device="cuda") for _ in range(3))
        with torch.no_grad():
            torch.compile(lambda x: functional.gelu(x @ first).mul(2).sin() @ second)(x)

    trace = traced(program)
    assert trace.tensor_bytes == (3 + 2) * 4 * MIB


def test_a_gpt_compiled_trains_in_less_memory_than_uncompiled() -> None:
    eager = traced(a_training(lambda: Gpt(layers=1), batch=8))
    planned = traced(a_training(lambda: torch.compile(Gpt(layers=1)), batch=8))

    assert graphs(planned) == 2  # forward and backward, made once
    assert planned.allocated_bytes < eager.allocated_bytes
    assert planned.least.allocated_bytes == planned.allocated_bytes
    assert planned.speed is not None
    assert eager.speed is not None
    assert planned.speed.flops == eager.speed.flops
    assert planned.speed.moved_bytes < eager.speed.moved_bytes
    items = {item.code: item.bytes for item in planned.items}
    assert items["logits_loss"] > 8 * 256 * 1024 * 2
    assert items["activations"] > items["weights"]


class Mlp(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        return x + self.down(functional.gelu(self.up(self.norm(x)))).sin()


def kept_bytes(model: nn.Module, x: Any) -> int:
    """What AOTAutograd's partitioner hands from forward to backward, asked directly, without our tracer."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    found: list[int] = []

    def forward(graph: Any, _: Any) -> Any:
        _, *kept = next(iter(graph.graph.find_nodes(op="output"))).args[0]
        storages = {node.meta["val"].untyped_storage() for node in kept if node.op != "placeholder"}
        found.append(sum(storage.nbytes() for storage in storages))
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    torch.compile(model, backend=backend)(x).sum().backward()
    torch._dynamo.reset()
    return found[0]


def test_what_waits_for_the_backward_pass_is_what_the_partitioner_keeps() -> None:
    held: list[int] = []

    def program() -> None:
        model = torch.compile(Mlp().cuda())
        x = torch.zeros(512, 256, device="cuda")
        before = torch.cuda.memory_allocated()
        loss = model(x).sum()
        held.append(torch.cuda.memory_allocated() - before)
        loss.backward()

    traced(program)
    loss, workspace = 512, 8_519_680  # blocks: that of the loss is rounded up
    assert held[0] - workspace - loss == kept_bytes(Mlp(), torch.zeros(512, 256))


def test_code_between_graphs_runs_as_it_is() -> None:
    def broken(x: Any) -> Any:
        return x * added(x).item()

    trace = traced(calling(broken))
    assert graphs(trace) == 2
    assert trace.tensor_bytes == 2 * 256 * MIB


def by_module(model: nn.Module) -> nn.Module:
    model.compile()
    return model


def by_layer(model: Any) -> nn.Module:
    for layer in model.layers:
        layer.compile(fullgraph=True)
    return model


@pytest.mark.parametrize("how", [by_module, by_layer, lambda model: torch.compile(model, dynamic=True)])
def test_models_may_be_compiled_in_any_way(how: Callable[[Any], nn.Module]) -> None:
    trace = traced(a_training(lambda: how(Gpt(layers=1))))

    assert graphs(trace) >= 2
    assert trace.steps == 2
    assert trace.least.allocated_bytes == trace.allocated_bytes
    assert "compiled" in codes(trace)
    assert not codes(trace) & {"unfused", "not_compiled"}


def test_a_process_group_does_not_make_dynamo_forget_pytorchs_own_ops() -> None:
    from torch._dynamo import trace_rules

    def counted(x: Any) -> Any:
        return x + torch.arange(x.numel(), device=x.device)

    def program() -> None:
        trace_rules.clear_lru_cache()  # as torch.distributed.init_process_group does
        calling(counted, fullgraph=True)()

    trace_rules.clear_lru_cache()  # and as it did before the trace
    trace = traced(program)
    assert graphs(trace) == 1
    assert torch.arange in trace_rules.get_torch_obj_rule_map(), "and later code is compiled as ever"


def test_functions_may_be_decorated_and_called_with_other_shapes() -> None:
    def program() -> None:
        @torch.compile(dynamic=True)
        def scaled(x: Any) -> Any:
            return added(x) * x

        for mebibytes in (16, 64, 32):
            scaled(torch.zeros(mebibytes * MIB // 4, device="cuda"))

    trace = traced(program)
    assert trace.tensor_bytes == pytest.approx(2 * 64 * MIB, abs=4096)
    assert graphs(trace) == 1


def test_checkpointed_layers_are_recomputed_in_compiled_code_too() -> None:
    def of(*, checkpoint: bool) -> Trace:
        return traced(a_training(lambda: torch.compile(Gpt(layers=2, checkpoint=checkpoint)), batch=8))

    plain, recomputed = of(checkpoint=False), of(checkpoint=True)
    assert recomputed.allocated_bytes < plain.allocated_bytes


def test_attention_written_by_hand_becomes_flash_attention() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return functional.softmax(q @ k.transpose(-2, -1) / 8.0, dim=-1) @ v

    def program() -> None:
        q, k, v = (
            torch.zeros(2, 8, 1024, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        )
        torch.compile(attend)(q, k, v).sum().backward()

    trace = traced(program)
    assert trace.rules_fired["attention kernel: flash"] >= 1
    assert trace.tensor_bytes < 2 * 8 * 1024 * 1024 * 2  # less than one score matrix


def test_the_weights_a_compiled_function_reaches_get_gradients() -> None:
    def build() -> Callable[[], None]:
        model = nn.Linear(64, 64).cuda()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of = torch.compile(lambda x: model(x).square().mean())

        def step() -> None:
            loss_of(torch.zeros(8, 64, device="cuda")).backward()
            sgd.step()
            assert all(p.grad is not None for p in model.parameters())
            sgd.zero_grad()

        return step

    assert graphs(traced(build)) == 2


# ---- an interval


def has_two_ends(trace: Trace) -> bool:
    return (
        trace.allocated_bytes >= 9 * 256 * MIB and trace.least.allocated_bytes < 0.2 * trace.allocated_bytes
    )


def test_kernels_chosen_by_timing_them_give_an_interval() -> None:
    trace = traced(calling(added, mode="max-autotune-no-cudagraphs"))

    assert has_two_ends(trace)
    assert codes(trace) == {"autotuned"}


def test_whatever_inductor_raises_the_trace_goes_on_with_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx

    def fails(*_: Any, **__: Any) -> None:
        raise KeyError

    monkeypatch.setattr(compile_fx, "compile_fx_inner", fails)
    trace = traced(calling(added))
    assert has_two_ends(trace)
    assert codes(trace) == {"unfused"}

    monkeypatch.setattr(compile_fx, "compile_fx", fails)
    trace = traced(calling(added))
    assert has_two_ends(trace)
    assert codes(trace) == {"not_compiled"}


def test_a_function_that_dynamo_refuses_whole_is_traced_op_by_op() -> None:
    def broken(x: Any) -> Any:
        added(x)
        breakpoint_for_dynamo()
        return added(x)

    trace = traced(calling(broken, fullgraph=True))
    assert has_two_ends(trace)
    assert codes(trace) == {"not_compiled"}


@torch._dynamo.disable
def breakpoint_for_dynamo() -> None: ...


def test_other_releases_of_pytorch_get_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "PLANNED", ("2.9",))

    trace = traced(calling(added))
    assert has_two_ends(trace)
    assert codes(trace) == {"release_not_planned"}


def test_a_compiled_program_fits_only_where_both_ends_do() -> None:
    trace = traced(calling(added, mode="max-autotune-no-cudagraphs"))
    context = trace.device_bytes - trace.reserved_bytes

    def verdict(usable: int) -> str:
        card = replace(find_gpu("rtx-4090"), memory_bytes=usable + context)
        return report(trace.tape, {}, card).verdict

    assert verdict(trace.reserved_bytes) == "fits"
    assert verdict((trace.least.reserved_bytes + trace.reserved_bytes) // 2) == "cannot_tell"
    assert verdict(trace.least.allocated_bytes // 2) == "does_not_fit"


# ---- what a plan does not know


def test_a_matmul_that_may_be_padded_and_cuda_graphs_are_named() -> None:
    def program() -> None:
        x = torch.zeros(512, 1023, device="cuda", dtype=torch.bfloat16)
        torch.compile(lambda x: x @ x.t(), mode="reduce-overhead")(x)

    assert codes(traced(program)) == {"compiled", "padding", "cuda_graphs"}


# ---- fit --exact


def test_a_compiled_config_of_nanogpt_has_an_exact_answer() -> None:
    from brimful.specs.presets import find_preset
    from brimful.specs.training import Training
    from brimful.tracing.models.programs import exact

    sizes = {"layers": 1, "heads": 2, "kv_heads": 2, "width": 128, "mlp_width": 512}
    model = replace(find_preset("gpt2").model, family="", gelu_tensors=1, **sizes)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"sequence_tokens": 256, "accumulation": 1, "dtype": "bfloat16"}
    planned, eager = (
        exact(model, Training(batch_size=8, compiled=each, **settings), find_gpu("rtx-4090"))
        for each in (True, False)
    )
    assert graphs(planned) == 2
    assert planned.fits
    # The logits twice and their gradient of zeros in bf16, where eager code has fp32 copies too.
    logits = 8 * 256 * model.vocab
    items = {item.code: item.bytes for item in planned.items}
    assert items["logits_loss"] + items["temporaries"] == pytest.approx(6 * logits, rel=0.02)
    assert planned.allocated_bytes < 0.7 * eager.allocated_bytes
