"""Which numbers of a traced program are real, and that a trace never answers with those that are not."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import brimful
from brimful.specs.gpu import find_gpu
from brimful.tracing.report import Trace, report
from tests.tracing.programs import a_training

pytestmark = pytest.mark.torch

MIB = 1024**2


def traced(program: Callable[[], Any], *, gpu: str = "rtx-4090") -> Trace:
    return brimful.trace(program, gpu=gpu, settings="")


def training(batch: Callable[[], Any], *, model: Callable[[], Any] | None = None) -> Callable[[], Any]:
    """A program that trains on what `batch` gives, moved to the GPU."""

    def build() -> Callable[[], None]:
        trained = (model or (lambda: nn.Linear(64, 64)))().cuda()
        sgd = torch.optim.SGD(trained.parameters(), lr=0.1)

        def step() -> None:
            trained(batch().cuda()).sum().backward()
            sgd.step()
            sgd.zero_grad()

        return step

    return build


# ---- numbers on the CPU


def test_a_batch_that_is_cut_out_of_a_file_at_random_places_has_its_size() -> None:
    tokens = torch.arange(10_000)
    seen: list[Any] = []

    def batch() -> Any:
        at = torch.randint(len(tokens) - 64, (8,))
        seen.append(torch.stack([tokens[i : i + 64] for i in at]).float())
        return seen[-1]

    trace = traced(training(batch))

    assert [tuple(b.shape) for b in seen] == [(8, 64)] * 2
    assert trace.values_invented == 0
    assert trace.fits


def test_widths_computed_from_tensors_on_the_cpu_are_right() -> None:
    def model() -> Any:
        widths = (torch.arange(1, 4) * 24.5 + 7.5).div(8).round().mul(8).int().tolist()
        assert widths == [32, 56, 80]
        return nn.Sequential(nn.Linear(64, widths[0]), nn.Linear(widths[0], widths[2]))

    trace = traced(training(lambda: torch.zeros(4, 64), model=model))
    items = {item.code: item.bytes for item in trace.items}
    assert items["weights"] == 4 * (64 * 32 + 32 + 32 * 80 + 80)


def test_weights_made_on_the_cpu_are_not_real() -> None:
    def program() -> None:
        model = nn.Linear(1 << 18, 1 << 18)  # 256 GiB
        model.half().cuda()

    assert traced(program, gpu="b200").allocated_bytes == 2 * ((1 << 36) + (1 << 18))


def test_a_real_tensor_is_unknown_once_a_gpu_value_is_written_into_it() -> None:
    read: list[float] = []

    def program() -> None:
        losses = torch.zeros(3)
        losses[0] = torch.ones((), device="cuda")
        read.append(losses.mean().item())

    assert traced(program).values_invented == 1


def test_tensors_are_copied_deeply_wherever_they_live() -> None:
    def program() -> None:
        held = {
            "step": torch.tensor(0.0),
            "loss": torch.ones((), device="cuda").cpu(),
            "model": nn.Linear(8, 8),
            "on_gpu": nn.Linear(8, 8).cuda(),
        }
        again = copy.deepcopy(held)
        assert again["model"].weight.shape == (8, 8)
        assert isinstance(again["on_gpu"].weight, nn.Parameter)
        assert again["step"].item() == 0.0

    assert traced(program).values_invented == 0


def test_a_tensor_may_be_made_from_numbers_while_a_layer_is_recomputed() -> None:
    def program() -> None:
        layer = nn.Linear(8, 8).cuda()

        def scaled(x: Any) -> Any:
            return layer(x) * torch.tensor(2.0, device="cuda")

        x = torch.ones(4, 8, device="cuda", requires_grad=True)
        checkpoint(scaled, x, use_reentrant=False).sum().backward()

    assert traced(program).steps == 0


def test_a_tensor_may_be_made_from_scalars_on_the_gpu() -> None:
    def program() -> None:
        loss = torch.ones((), device="cuda")
        assert torch.tensor([loss, [loss][0] * 2]).shape == (2,)
        assert torch.tensor([[loss, loss]], device="cuda").shape == (1, 2)

    assert traced(program).values_invented == 4


# ---- what a trace could not know


def doubts(trace: Trace) -> set[str]:
    return {doubt.code for doubt in trace.doubts}


def test_an_empty_batch_never_fits() -> None:
    trace = traced(training(lambda: torch.zeros(0, 64)))

    assert (trace.verdict, trace.fits, trace.chance) == ("cannot_tell", False, None)
    assert "tracing.doubt_empty_batch" in doubts(trace)


def test_a_training_that_counts_no_flop_never_fits() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.ones(64))

        def forward(self, x: Any) -> Any:
            return x * self.by

    trace = traced(training(lambda: torch.zeros(4, 64), model=Scale))
    assert trace.verdict == "cannot_tell"
    assert doubts(trace) == {"tracing.doubt_no_flops"}


@pytest.mark.parametrize(
    "shape",
    [
        lambda x, n: x[:n],
        lambda x, n: x[: 2 * n + 1],
        lambda x, n: torch.zeros(4 // n, 64, device="cuda"),
        lambda x, n: x.repeat(n, 1),
        lambda x, n: torch.nn.functional.linear(x.view(n * 4, 64), x),
    ],
)
def test_a_size_read_from_the_gpu_never_fits(shape: Callable[[Any, Any], Any]) -> None:
    def program() -> None:
        x = torch.zeros(4, 64, device="cuda")
        shape(x, (x > 0).sum().item())

    trace = traced(program)
    assert trace.verdict == "cannot_tell"
    assert doubts(trace) == {"tracing.doubt_shape"}
    assert "test_values.py" in trace.doubts[0].as_dict()["line"]


def test_a_tensor_on_the_gpu_used_as_an_index_is_a_size_read_from_it() -> None:
    def program() -> None:
        x = torch.zeros(4, 64, device="cuda")
        x[: (x > 0).sum()]

    def other() -> None:
        x = torch.zeros(4, 64, device="cuda")
        x[: int((x > 0).sum())]

    assert doubts(traced(program)) == doubts(traced(other)) == {"tracing.doubt_shape"}


@pytest.mark.parametrize(
    "size",
    [
        lambda n: n.tolist()[0],
        lambda n: n.cpu().numpy()[0],
        lambda n: n.cpu().numpy().max(),
        lambda n: n.cpu().numpy().sum() + 1,
        lambda n: n.cpu().numpy().tolist()[1],
        lambda n: int(n.cpu().numpy()[:1].astype(int)),
    ],
)
def test_a_size_read_from_the_gpu_in_a_list_or_an_array_never_fits(size: Callable[[Any], Any]) -> None:
    def program() -> None:
        x = torch.zeros(4, 64, device="cuda")
        x[: size((x > 0).sum(dim=1))]

    assert doubts(traced(program)) == {"tracing.doubt_shape"}


def test_an_array_of_labels_from_the_gpu_leaves_the_verdict_alone() -> None:
    def batch() -> Any:
        x = torch.zeros(4, 64, device="cuda")
        guesses, losses = x.argmax(dim=1).cpu().numpy(), x.mean(dim=1).cpu().numpy()
        print((guesses == guesses).mean(), losses.mean(), guesses.shape, len(guesses))
        return x

    assert traced(training(batch)).fits


def test_values_that_are_only_printed_or_compared_leave_the_verdict_alone() -> None:
    def batch() -> Any:
        x = torch.zeros(4, 64, device="cuda")
        right = (x > 0).sum().item()
        print(f"accuracy {right / 4:.2f}", right + 1, int(x.sum()), right * x.mean(), right > 2)
        return x

    trace = traced(training(batch))
    assert trace.values_invented > 0
    assert trace.fits


# ---- counters and verdicts


def test_an_optimizer_is_traced_as_it_runs_on_a_gpu() -> None:
    def held_at_once(**how: bool) -> int:
        trace = traced(a_training(optimizer=lambda p: torch.optim.AdamW(p, **how)))
        blocks = [b for b in trace.tape.blocks if b.place.phase == "optimizer" and not b.role]
        return max(sum(b.bytes for b in blocks if b.born <= at.born < (b.died or 0)) for at in blocks)

    assert held_at_once() == held_at_once(foreach=True) > 3 * held_at_once(foreach=False)


def test_gradients_are_clipped_all_at_once() -> None:
    def program() -> None:
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).cuda()
        model(torch.ones(2, 64, device="cuda")).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    assert "_foreach_norm" in {block.place.op for block in traced(program).tape.blocks}


def test_counting_flops_never_ends_a_trace() -> None:
    def program() -> None:
        a, b = (torch.ones(64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        out = torch.empty(64, 64, device="cuda")
        torch.addmm(out.clone(), a, b, out_dtype=torch.float32, out=out)
        torch.ops.aten.mm.dtype(a, b, torch.float32)

    speed = traced(program).speed
    assert speed is not None
    assert speed.flops == 2 * 2 * 64**3


def test_what_is_freed_after_the_run_does_not_change_its_report() -> None:
    kept: list[Any] = []

    def program() -> None:
        kept.append(torch.zeros(MIB, device="cuda"))
        kept.append(kept)  # a cycle: the collector frees it, whenever that is

    trace = traced(program)
    events = len(trace.tape.events)
    kept.clear()
    gc.collect()
    assert len(trace.tape.events) == events
    assert report(trace.tape, {}, find_gpu("rtx-4090")).allocated_bytes == 4 * MIB


def fills(fraction: float | None = None) -> Callable[[], None]:
    """Needs 6 GiB at once, and leaves 10 GiB of cache behind that no later request can use."""

    def program() -> None:
        if fraction is not None:
            torch.cuda.set_per_process_memory_fraction(fraction)
        for size in (4096, 6144):
            torch.empty(size * MIB, dtype=torch.uint8, device="cuda")

    return program


def test_reserved_is_never_more_than_the_card_has() -> None:
    trace = traced(fills(), gpu="rtx-4060")  # 8 GB: the first block is given back before the second is taken

    assert trace.fits
    assert trace.allocated_bytes == trace.reserved_bytes == 6144 * MIB
    assert trace.device_bytes <= trace.usable_bytes
    assert traced(fills(), gpu="rtx-4090").reserved_bytes == 10240 * MIB


def test_a_script_may_limit_itself_to_a_part_of_the_card() -> None:
    assert traced(fills(0.9), gpu="rtx-4060").fits
    limited = traced(fills(0.5), gpu="rtx-4060")
    assert not limited.fits
    assert limited.out_of_memory is not None
    assert limited.out_of_memory["wanted_bytes"] == 4096 * MIB or limited.out_of_memory["free_bytes"] > 0


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.AdamW])
def test_fused_optimizers_take_a_step(optimizer: Any) -> None:
    def build() -> Callable[[], None]:
        model = nn.Linear(64, 64).cuda()
        fused = optimizer(model.parameters(), lr=0.1, fused=True)

        def step() -> None:
            model(torch.zeros(4, 64, device="cuda")).sum().backward()
            fused.step()

        return step

    assert traced(build).fits


@pytest.mark.parametrize("function", [nn.functional.silu, nn.functional.mish])
def test_the_gradient_of_an_activation_is_one_kernel(function: Callable[[Any], Any]) -> None:
    def program() -> None:
        x = torch.ones(1024, 1024, device="cuda", requires_grad=True)
        function(x).backward(torch.ones(1024, 1024, device="cuda"))

    trace = traced(program)
    # the input, the result, the gradient that comes and the one that leaves
    assert trace.tensor_bytes == 4 * 4 * MIB
