"""Each named rule: what a GPU does there, and that the trace does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import brimful
from brimful.specs.gpu import find_gpu
from brimful.tracing.attention import choose_kernel
from brimful.tracing.buffers import Layout, split_reduction
from brimful.tracing.cuda_device import CudaDevice, blas_workspace_bytes, cuda_device
from brimful.tracing.report import Trace
from tests.tracing.programs import Gpt, a_training

pytestmark = pytest.mark.torch

MIB = 1024**2


def traced(program: Callable[[], Any], *, gpu: str = "rtx-4090", steps: int = 2) -> Trace:
    return brimful.trace(program, gpu=gpu, steps=steps, settings="")


def sizes(trace: Trace, *ops: str) -> list[int]:
    return [block.bytes for block in trace.tape.blocks if block.place.op in ops]


def card(name: str) -> CudaDevice:
    return cuda_device(find_gpu(name))


# ---- attention


@pytest.mark.parametrize(
    ("gpu", "dtype", "width", "mask", "kernel"),
    [
        ("a100-sxm-80gb", torch.bfloat16, 64, False, "flash"),
        ("a100-sxm-80gb", torch.bfloat16, 64, True, "efficient"),  # flash takes no mask
        ("a100-sxm-80gb", torch.float32, 64, False, "efficient"),  # nor fp32
        ("a100-sxm-80gb", torch.bfloat16, 512, False, "efficient"),  # nor heads over 256
        ("t4", torch.float16, 64, False, "efficient"),  # nor cards before Ampere
        ("t4", torch.bfloat16, 64, False, "math"),  # where bf16 is no hardware
        ("rtx-4090", torch.bfloat16, 224, False, "efficient"),  # backward of wide heads needs a big chip
        ("a100-sxm-80gb", torch.bfloat16, 224, False, "flash"),
        ("a100-sxm-80gb", torch.float32, 65, False, "math"),  # rows must begin on 16 bytes
        ("t4", torch.float32, 65, False, "efficient"),  # for tensor cores, which Turing has for fp16
        ("t4", torch.float16, 65, False, "math"),
        ("p100-sxm-16gb", torch.float16, 65, False, "efficient"),  # and Pascal not at all
    ],
)
def test_the_attention_kernel_is_chosen_by_card_type_and_shape(
    gpu: str, dtype: torch.dtype, width: int, mask: bool, kernel: str
) -> None:
    q, k, v = (torch.empty(1, 2, 8, width, dtype=dtype, device="meta", requires_grad=True) for _ in range(3))
    given = torch.empty(8, 8, dtype=torch.bool, device="meta") if mask else None

    assert choose_kernel(card(gpu), q, k, v, mask=given) == kernel


def test_a_user_may_forbid_kernels() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.empty(1, 2, 8, 64, dtype=torch.bfloat16, device="meta")
    with sdpa_kernel(SDPBackend.MATH):
        assert choose_kernel(card("a100-sxm-80gb"), q, q, q) == "math"


def test_flash_attention_keeps_no_score_matrix_and_a_card_without_it_does() -> None:
    new, old = (traced(a_training(dtype=torch.float16), gpu=gpu) for gpu in ("rtx-4090", "p100-sxm-16gb"))

    assert new.rules_fired["attention kernel: flash"] == 2 * 2
    assert old.rules_fired["attention kernel: efficient"] == 2 * 2
    scores = 4 * 4 * 256 * 256 * 2  # batch, heads, tokens squared, fp16
    assert scores not in [b.bytes for b in new.tape.blocks if "attention" in b.place.module]


def test_flash_backward_sums_the_query_gradient_in_fp32() -> None:
    trace = traced(a_training())

    batch, heads, tokens, width = 4, 4, 256, 64
    assert 4 * batch * heads * tokens * width in sizes(trace, "_scaled_dot_product_flash_attention_backward")
    assert trace.rules_fired["flash backward"] == 2 * 2 * 2


# ---- backward branches


def test_the_engine_adds_a_second_gradient_into_the_first_where_nobody_else_holds_it() -> None:
    def residual() -> None:
        x = torch.zeros(1 << 20, device="cuda", requires_grad=True)
        y = x * 2
        (y * 3 + y * 4).sum().backward()

    # gradients of y*3 and y*4, added into the first, and of y*2; the expanded one of the sum takes nothing
    assert len([b for b in traced(residual).tape.blocks if b.place.phase == "backward"]) == 3


def test_the_engine_adds_out_of_place_where_the_first_gradient_is_held_elsewhere() -> None:
    kept: list[Any] = []

    class Keeping(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            kept.append(gradient * 2)
            return kept[-1]

    def program() -> None:
        x = torch.zeros(1 << 20, device="cuda", requires_grad=True)
        y = x * 2
        (Keeping.apply(y) + Keeping.apply(y)).sum().backward()
        kept.clear()

    trace = traced(program)
    assert "in-place backward" not in trace.rules_fired
    assert [b.bytes for b in trace.tape.blocks if (b.place.op, b.place.phase) == ("add", "backward")] == [
        4 << 20
    ]


def test_formulas_scatter_into_the_zeros_they_make() -> None:
    def picks() -> None:
        x = torch.zeros(64, 1024, device="cuda", requires_grad=True)
        at = torch.zeros(64, 1, dtype=torch.long, device="cuda")
        (x.gather(1, at).sum() + x.max(dim=1).values.sum()).backward()

    trace = traced(picks)
    assert sizes(trace, "scatter_add", "scatter") == []
    assert sizes(trace, "new_zeros") == [64 * 1024 * 4] * 2


# ---- buffers inside kernels


def test_each_thread_that_multiplies_takes_one_blas_workspace() -> None:
    trace = traced(a_training())

    assert trace.rules_fired["BLAS workspace"] == 2
    assert next(item.bytes for item in trace.items if item.code == "workspaces") == 2 * 8_519_680


@pytest.mark.parametrize(
    ("capability", "config", "size"),
    [
        ((8, 9), "", 8_519_680),
        ((9, 0), "", 33_554_432),
        ((10, 0), "", 33_554_432),
        ((12, 0), "", 8_519_680),
        ((8, 0), ":16:8", 128 * 1024),
        ((9, 0), ":4096:8", 33_554_432),
    ],
)
def test_the_blas_workspace_follows_card_and_setting(
    capability: tuple[int, int], config: str, size: int
) -> None:
    assert blas_workspace_bytes(capability, config) == size


def test_an_expanded_operand_is_copied_for_the_matmul() -> None:
    def expanded() -> None:
        row = torch.zeros(8, 1, 64, device="cuda").expand(8, 512, 64)
        torch.bmm(row, torch.zeros(8, 64, 32, device="cuda"))

    trace = traced(expanded)
    assert trace.rules_fired["matmul operand copied"] == 1
    assert 8 * 512 * 64 * 4 in sizes(trace, "bmm")


@pytest.mark.parametrize(
    ("layout", "outputs", "inputs", "found"),
    [
        # A full sum of 524,288 floats: 512 threads take 1,024 values each, so 64 blocks share it, 4 B each.
        (Layout(1, None, 1, 1), 1, 524_288, (256, 4)),
        # A norm's weight, 1,024 columns of 1,024 rows: 16 blocks x 1,024 outputs x 128 lanes x 4 B.
        (Layout(1024, 1, 1024, 2), 1024, 1024, (8 * MIB, 32)),
        (Layout(1024, 1, 1024, 2), 1024, 4096, (32 * MIB, 32)),
        # Many outputs of few inputs: one block each, no buffer.
        (Layout(1, 1024, 4096, 2), 4096, 1024, None),
        (Layout(1024, 1, 1024, 2), 1024, 512, None),
    ],
)
def test_split_reductions_take_what_recordings_show(
    layout: Layout, outputs: int, inputs: int, found: tuple[int, int] | None
) -> None:
    assert split_reduction(card("rtx-4090"), layout, outputs=outputs, inputs=inputs, element_bytes=4) == found


def test_a_card_with_few_processors_splits_a_reduction_less() -> None:
    big = card("rtx-4090")
    small = replace(big, gpu=replace(big.gpu, processors=8))
    split = [
        split_reduction(c, Layout(1, None, 1, 1), outputs=1, inputs=1 << 24, element_bytes=4)
        for c in (big, small)
    ]
    assert split[0] is not None
    assert split[1] is not None
    assert split[1][0] < split[0][0]


def test_adding_at_indices_sorts_them() -> None:
    def indexed() -> None:
        weight = torch.zeros(10_000, 64, device="cuda", requires_grad=True)
        weight[torch.zeros(4, 1024, dtype=torch.long, device="cuda"), :].sum().backward()

    trace = traced(indexed)
    taken = sizes(trace, "index_put")
    assert taken == [32_768] * 5 + [72_191]  # as a recording of 4,096 indices below 10,000 shows


def test_embedding_backward_adds_parts_in_fp32() -> None:
    def embed(tokens: int) -> Callable[[], None]:
        def program() -> None:
            table = nn.Embedding(5000, 32, device="cuda")
            table(torch.zeros(tokens, dtype=torch.long, device="cuda")).sum().backward()

        return program

    assert "embedding backward" not in traced(embed(3072)).rules_fired
    parts = 4096 // 10 + 4096
    assert 4 * parts * 32 in sizes(traced(embed(4096)), "embedding_dense_backward")


# ---- mixed precision, optimizers, checkpoints


def test_autocast_keeps_casts_of_weights_in_half_precision() -> None:
    half, full = traced(a_training()), traced(a_training(dtype=None))

    items = {item.code: item.bytes for item in half.items}
    assert items["weight_casts"] > 0
    assert "weight_casts" not in {item.code for item in full.items}
    assert half.tensor_bytes < full.tensor_bytes


def test_the_scaler_of_fp16_steps_whatever_optimizer_it_has() -> None:
    for optimizer in (None, lambda p: torch.optim.AdamW(p, foreach=True)):
        trace = traced(a_training(dtype=torch.float16, scaler=True, optimizer=optimizer))
        assert trace.steps == 2
        # fused kernels look for overflow themselves; others are stepped only if the scaler has seen none
        assert optimizer is None or trace.rules_fired["GradScaler: no overflow"] == 2
        assert any(item.code == "optimizer_state" for item in trace.items)


def test_foreach_needs_temporaries_that_fused_does_not() -> None:
    def held_while_stepping(**how: bool) -> int:
        trace = traced(a_training(optimizer=lambda p: torch.optim.AdamW(p, **how)))
        return sum(b.bytes for b in trace.tape.blocks if b.place.phase == "optimizer" and not b.role)

    assert held_while_stepping(fused=True) == 0
    assert held_while_stepping(foreach=True) > 0


def test_checkpointing_keeps_less_and_computes_more() -> None:
    plain = traced(a_training(lambda: Gpt(layers=6), batch=16))
    saved = traced(a_training(lambda: Gpt(layers=6, checkpoint=True), batch=16))

    kept = [{item.code: item.bytes for item in t.items}.get("activations", 0) for t in (plain, saved)]
    assert kept[1] < 0.5 * kept[0]
    assert plain.speed is not None
    assert saved.speed is not None
    assert saved.speed.flops == plain.speed.flops  # MFU does not count what is computed again
    assert saved.speed.step_s.likely >= plain.speed.step_s.likely


def test_accumulation_keeps_gradients_and_adds_into_them() -> None:
    once, thrice = (traced(a_training(accumulation=n)) for n in (1, 3))

    assert thrice.steps == 2
    gradients = [{i.code: i.bytes for i in t.items}.get("gradients", 0) for t in (once, thrice)]
    assert gradients[1] >= gradients[0]
    assert thrice.tensor_bytes >= once.tensor_bytes


# ---- values, loaders, memory that is pinned


def test_values_are_answered_counted_and_named_by_line() -> None:
    def asks() -> None:
        x = torch.zeros(8, device="cuda")
        assert x.sum().item() == 1.0
        assert not torch.isnan(x).any()
        assert torch.isfinite(x).all()
        assert x.cpu().numpy().shape == (8,)
        assert x.tolist() == [1.0] * 8

    trace = traced(asks)
    assert trace.values_invented == 3 + 1 + 8
    assert all("test_rules.py" in line for line in trace.values_at)


def test_batches_are_loaded_for_real_without_workers() -> None:
    from torch.utils.data import DataLoader, TensorDataset

    seen: list[float] = []

    def program() -> None:
        data = TensorDataset(torch.arange(64.0).view(64, 1))
        loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=4, pin_memory=True)
        for (x,) in loader:
            x.pin_memory().to("cuda", non_blocking=True).sum()
            seen.append(x.shape[0])

    trace = traced(program)
    assert seen == [16.0] * 4
    assert trace.rules_fired["data loader: in this process"] == 1
    assert trace.rules_fired["pin_memory"] == 4
    assert trace.values_invented == 0


# ---- whole models


def test_a_residual_network_of_convolutions() -> None:
    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.convolve = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(width)

        def forward(self, x: Any) -> Any:
            return functional.relu(self.norm(self.convolve(x)) + x, inplace=True)

    def build() -> Callable[[], None]:
        first, last = nn.Conv2d(3, 64, 7, stride=2, padding=3), nn.Linear(64, 10)
        model = nn.Sequential(first, Block(64), Block(64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), last).cuda()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step() -> None:
            images = torch.zeros(8, 3, 64, 64, device="cuda")
            functional.cross_entropy(
                model(images), torch.zeros(8, dtype=torch.long, device="cuda")
            ).backward()
            sgd.step()
            sgd.zero_grad()

        return step

    trace = traced(build)
    one = 8 * 64 * 32 * 32 * 4
    kept = {item.code: item.bytes for item in trace.items}["activations"]
    # of each block: the convolution's output and the ReLU's, and the first layer's
    assert kept == pytest.approx(5 * one, rel=0.1)
    assert "tracing.note_convolutions" in {note.code for note in trace.notes}


@pytest.mark.parametrize("to_none", [True, False])
def test_old_gradients_are_named_only_where_they_are_still_held(to_none: bool) -> None:
    def build() -> Callable[[], None]:
        model = nn.Linear(1024, 1024).cuda()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            # with accumulation the second forward pass finds gradients, and needs them
            for _ in range(2 if to_none else 1):
                model(torch.zeros(16, 1024, device="cuda")).sum().backward()
            sgd.step()
            sgd.zero_grad(set_to_none=to_none)

        return step

    named = {fix["name"] for fix in traced(build).fixes}
    assert ("gradients" in named) is not to_none


def test_an_lstm_says_what_cudnn_would_do_otherwise() -> None:
    def build() -> Callable[[], None]:
        model = nn.LSTM(32, 64, batch_first=True).cuda()
        adam = torch.optim.Adam(model.parameters())

        def step() -> None:
            model(torch.zeros(4, 10, 32, device="cuda"))[0].sum().backward()
            adam.step()
            adam.zero_grad()

        return step

    trace = traced(build)
    assert trace.steps == 2
    assert "tracing.note_recurrent" in {note.code for note in trace.notes}


def test_ddp_holds_a_copy_of_the_gradients_in_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "0")

    def build() -> Callable[[], None]:
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("nccl")
        model = DistributedDataParallel(nn.Linear(1024, 1024).cuda(), device_ids=[0])
        adamw = torch.optim.AdamW(model.parameters(), fused=True)

        def step() -> None:
            model(torch.zeros(16, 1024, device="cuda")).sum().backward()
            adamw.step()
            adamw.zero_grad()

        return step

    try:
        trace = traced(build)
    finally:
        torch.distributed.destroy_process_group()
    items = {item.code: item.bytes for item in trace.items}
    assert items["ddp_buckets"] == pytest.approx(4 * (1024 * 1024 + 1024), rel=0.01)
    assert trace.rules_fired["process group: 8 ranks, faked"] == 1
    assert "tracing.note_nccl" in {note.code for note in trace.notes}
