"""What a Meter must not do: count work that is no training, stay behind, or stand in an error's way."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from brimful.meter.samples import EndSample, read_samples
from tests.meter.clocks import Clock

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PEAK = 50e9
WIDTH, ROWS = 64, 32
LAYER = 2 * ROWS * WIDTH * WIDTH
FORWARD = 3 * LAYER
FLOPS = 3 * FORWARD - LAYER  # nobody wants the gradient of the input


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def a_model(*, recomputed: bool = False) -> Any:
    from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))

        def forward(self, x: Any) -> Any:
            if not recomputed:
                return self.layers(x)
            with set_checkpoint_early_stop(False):  # else the last layer is not multiplied again
                return checkpoint(self.layers, x, use_reentrant=False)

    return Layers()


def a_meter(model: Any, tmp_path: Path, **options: Any) -> Any:
    from brimful.meter.loop import Meter

    use = {"peak_flops_per_s": PEAK, "terminal_s": None, "jsonl": tmp_path / "run.jsonl"}
    return Meter(model, **{**use, "clock": Clock(0.001), **options})


def a_step(model: Any, *, micro_steps: int = 1) -> None:
    for _ in range(micro_steps):
        model(torch.randn(ROWS, WIDTH)).square().mean().backward()


def evaluate(model: Any, batches: int) -> None:
    model.eval()
    with torch.no_grad():
        for _ in range(batches):
            model(torch.randn(ROWS, WIDTH))
    model.train()


def test_an_evaluation_before_the_first_step_is_not_its_work(tmp_path: Path) -> None:
    model = a_model()
    with a_meter(model, tmp_path) as meter:
        evaluate(model, 20)
        a_step(model)
        meter.step()
    assert meter.last.mfu * meter.last.step_s * PEAK == pytest.approx(FLOPS)


def test_recomputed_work_is_hfu_under_accumulation_too(tmp_path: Path) -> None:
    model = a_model(recomputed=True)
    with a_meter(model, tmp_path) as meter:
        a_step(model, micro_steps=4)
        meter.step()
    last = meter.last
    assert last.hfu * last.step_s * PEAK == pytest.approx(4 * (FLOPS + FORWARD), rel=0.01)
    assert last.mfu * last.step_s * PEAK == pytest.approx(4 * 3 * FORWARD, rel=0.01)  # at most 3 forwards


def test_a_long_evaluation_costs_no_more_for_each_batch(tmp_path: Path) -> None:
    model = a_model()
    with a_meter(model, tmp_path) as meter:
        evaluate(model, 500)
        assert len(meter.timeline._marks) < 20
        a_step(model)
        meter.step()
    assert set(meter.last.pauses_s) == {"evaluation"}


def test_the_first_batch_of_an_evaluation_is_no_wait_for_training_data(tmp_path: Path) -> None:
    clock = Clock()

    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, _: int) -> Any:
            clock.passes(0.05)
            return torch.zeros(WIDTH)

    model = a_model()
    with a_meter(model, tmp_path, clock=clock) as meter:
        a_step(model)
        model.eval()
        with torch.no_grad():
            for batch in torch.utils.data.DataLoader(Slow()):
                model(batch)
        model.train()
        meter.step()
    assert meter.last.data_s == 0
    assert meter.last.pauses_s["evaluation"] == pytest.approx(0.1)


class _DeadEvent:
    def query(self) -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered")

    def elapsed_time(self, _later: Any) -> float:
        raise RuntimeError("CUDA error: device-side assert triggered")


def test_a_dead_device_does_not_hide_the_loops_own_error(tmp_path: Path) -> None:
    model = a_model()
    meter = a_meter(model, tmp_path)
    meter._drained_s = math.inf  # so that the device is asked at the end alone
    meter.timeline._event = _DeadEvent

    def loop() -> None:
        with meter:
            a_step(model)
            meter.step()
            raise IndexError("the loop's own")

    with pytest.raises(IndexError, match="the loop's own"):
        loop()
    *_, end = read_samples(tmp_path / "run.jsonl")
    assert isinstance(end, EndSample)
    assert end.error == "IndexError"


def test_closing_twice_is_closing_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = a_model()
    with a_meter(model, tmp_path) as meter:
        a_step(model)
        meter.step()
        meter.close()
    assert capsys.readouterr().err == ""
    assert sum(isinstance(each, EndSample) for each in read_samples(tmp_path / "run.jsonl")) == 1


def test_an_error_in_the_backward_pass_that_was_caught_is_over(tmp_path: Path) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(_context: Any, _gradient: Any) -> Any:
            raise RuntimeError("out of memory")

    first = a_model()
    model = torch.nn.Sequential(first)
    with a_meter(model, tmp_path) as meter:
        hook = first.register_forward_hook(lambda _module, _args, output: Fails.apply(output))
        with pytest.raises(RuntimeError, match="out of memory"):
            a_step(model)
        hook.remove()
        a_step(model)
        meter.step()
    assert meter.last.micro_steps == 2
