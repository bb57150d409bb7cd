"""What a Meter says of a loop whose work is known by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brimful.errors import BadInput
from brimful.language import words
from brimful.meter.runtime import live
from brimful.meter.samples import EndSample, RunSample, StepSample, read_samples
from tests.meter.clocks import Clock

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PEAK = 50e9
WIDTH, HIDDEN, ROWS = 64, 256, 32
FORWARD = 2 * ROWS * 2 * WIDTH * HIDDEN  # two multiplies
# The gradient of the input is nobody's work: the first layer's backward pass is one multiply, not two.
FLOPS = 3 * FORWARD - FORWARD // 2
LOOK_S = 0.001  # that pass at each look at the clock, where a test does not say otherwise


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def a_model() -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Linear(WIDTH, HIDDEN, bias=False), nn.ReLU(), nn.Linear(HIDDEN, WIDTH, bias=False)
    )


def a_meter(model: Any, tmp_path: Path, **options: Any) -> Any:
    from brimful.meter.loop import Meter

    use = {"peak_flops_per_s": PEAK, "terminal_s": None, "jsonl": tmp_path / "run.jsonl"}
    return Meter(model, **{**use, "clock": Clock(LOOK_S), **options})


def train(model: Any, meter: Any, *, steps: int = 6, micro_steps: int = 1, between: Any = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(steps):
        for _ in range(micro_steps):
            model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if between:
            between(step)
        meter.step()


def steps_of(tmp_path: Path) -> list[StepSample]:
    return [each for each in read_samples(tmp_path / "run.jsonl") if isinstance(each, StepSample)]


def test_mfu_is_the_hand_calculation(tmp_path: Path) -> None:
    model = a_model()
    with a_meter(model, tmp_path, tokens_per_step=ROWS) as meter:
        train(model, meter, steps=8)
    run, *steps, end = read_samples(tmp_path / "run.jsonl")
    assert isinstance(run, RunSample)
    assert isinstance(end, EndSample)
    assert (run.flops_per_step, run.flops_source, run.peak_source) == (FLOPS, "counted", "declared")
    steady = [each for each in steps if isinstance(each, StepSample) and not each.warmup]
    assert len(steady) == 5
    for each in steady:
        assert each.mfu == pytest.approx(FLOPS / each.step_s / PEAK, rel=0.01)
        assert each.tokens_per_s == pytest.approx(ROWS / each.step_s)
        assert sum(each.parts_s.values()) == pytest.approx(each.step_s)
    assert end.mfu == pytest.approx(5 * FLOPS / sum(each.step_s for each in steady) / PEAK, rel=0.01)


def test_accumulated_micro_steps_are_one_step(tmp_path: Path) -> None:
    model = a_model()
    with a_meter(model, tmp_path) as meter:
        train(model, meter, micro_steps=3)
    assert meter.last.micro_steps == 3
    assert meter.last.mfu == pytest.approx(3 * FLOPS / meter.last.step_s / PEAK, rel=0.01)


def test_recomputed_work_is_in_hfu_and_not_in_mfu(tmp_path: Path) -> None:
    from torch.utils.checkpoint import checkpoint

    class Again(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.inner = torch.nn.Linear(WIDTH, WIDTH, bias=False), a_model()

        def forward(self, x: Any) -> Any:
            return checkpoint(self.inner, self.head(x), use_reentrant=False)

    model = Again()
    with a_meter(model, tmp_path) as meter:
        train(model, meter)
    inner, head = 2 * ROWS * 2 * WIDTH * HIDDEN, 2 * ROWS * WIDTH * WIDTH
    # PyTorch recomputes up to the last tensor it needs: the first of the inner two multiplies.
    done = meter.last.step_s * PEAK
    assert meter.last.hfu * done == pytest.approx(3 * inner + 2 * head + inner / 2)
    assert meter.last.mfu * done == pytest.approx(3 * inner + 2 * head, rel=0.05)


def test_a_gpt_uses_the_predictors_formula(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from brimful.configs.huggingface import read_shape
    from brimful.fit.count import model_flops_per_token

    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=96, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with a_meter(model, tmp_path) as meter:
        for _ in range(5):
            tokens = torch.randint(0, 96, (4, 16))
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            meter.step()
    per_token = model_flops_per_token(read_shape(config.to_dict(), name="here").model, sequence_tokens=16)
    assert meter.last.tokens == 64, "the whole numbers the model was called with"
    assert meter.last.mfu == pytest.approx(64 * per_token / meter.last.step_s / PEAK)
    run = next(read_samples(tmp_path / "run.jsonl"))
    assert isinstance(run, RunSample)
    assert run.flops_source == "formula: gpt2"


def test_a_config_that_is_not_this_models_is_not_believed() -> None:
    from types import SimpleNamespace

    from brimful.meter.flops import formula_of

    model = a_model()
    model.config = SimpleNamespace(n_layer=12, n_head=12, n_embd=768, block_size=1024, vocab_size=50304)
    assert formula_of(model, checkpointing=None) is None


def test_time_is_told_apart(tmp_path: Path) -> None:
    clock = Clock()

    class Slow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = a_model()

        def forward(self, x: Any) -> Any:
            clock.passes(0.004)
            return SlowBackward.apply(self.inner(x))

    class SlowBackward(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(_context: Any, gradient: Any) -> Any:
            clock.passes(0.006)
            return gradient

    class SlowSgd(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            clock.passes(0.003)
            return super().step(closure)

    class SlowRows:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            clock.passes(0.005)
            return torch.randn(ROWS, WIDTH)

    model = Slow()
    optimizer = SlowSgd(model.parameters(), lr=1e-4)
    with a_meter(model, tmp_path, clock=clock) as meter:
        for rows in torch.utils.data.DataLoader(SlowRows(), batch_size=None):
            model(rows).square().mean().backward()
            optimizer.step()
            clock.passes(0.002)
            meter.step()
    told = {"data": 0.005, "forward": 0.004, "backward": 0.006, "optimizer": 0.003, "other": 0.002}
    assert meter.last.parts_s == pytest.approx(told)
    assert meter.last.step_s == pytest.approx(0.020)


def test_a_loop_without_a_dataloader_marks_its_own(tmp_path: Path) -> None:
    clock = Clock()

    def batches() -> Any:
        for _ in range(4):
            clock.passes(0.004)
            yield torch.randn(ROWS, WIDTH)

    model = a_model()
    with a_meter(model, tmp_path, clock=clock) as meter:
        for rows in meter.data(batches()):
            model(rows).square().mean().backward()
            meter.step()
    assert [step.data_s for step in steps_of(tmp_path)] == pytest.approx([0.004] * 4)


def test_evaluation_and_checkpoints_are_left_out_and_told_apart(tmp_path: Path) -> None:
    model, clock = a_model(), Clock()
    meter = a_meter(model, tmp_path, clock=clock)

    def between(step: int) -> None:
        if step == 4:
            model.eval()
            with torch.no_grad():
                for _ in range(3):
                    model(torch.randn(ROWS, WIDTH))
                    clock.passes(0.01)
            model(torch.randn(ROWS, WIDTH))
            model.train()
            with meter.pause("checkpoint"):
                clock.passes(0.02)
        clock.passes(0.001)

    with meter:
        train(model, meter, between=between)
    paused, after = steps_of(tmp_path)[4:6]
    assert paused.pauses_s == pytest.approx({"evaluation": 0.03, "checkpoint": 0.02})
    assert paused.step_s == pytest.approx(after.step_s), "none of it is in the step"
    assert paused.micro_steps == 1
    end = meter.summary()
    assert end.pauses_s.keys() == {"evaluation", "checkpoint"}


def test_waits_for_the_device_are_counted(tmp_path: Path) -> None:
    model = a_model()
    before = torch.Tensor.item
    with a_meter(model, tmp_path, count_waits=True) as meter:
        train(model, meter, between=lambda _step: [model[0].weight.sum().item() for _ in range(5)])
    assert meter.last.syncs == 5
    assert meter.last.sync_s == pytest.approx(5 * LOOK_S)
    assert torch.Tensor.item is before, "everything is put back"


def test_hooks_are_gone_afterwards(tmp_path: Path) -> None:
    from torch.optim import optimizer
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    model, following = a_model(), _BaseDataLoaderIter.__next__
    with a_meter(model, tmp_path) as meter:
        train(model, meter)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert _BaseDataLoaderIter.__next__ is following
    assert not optimizer._global_optimizer_pre_hooks
    assert not optimizer._global_optimizer_post_hooks


def test_an_exception_is_told_and_passes_through(tmp_path: Path) -> None:
    model = a_model()
    meter = a_meter(model, tmp_path)

    def fails(step: int) -> None:
        assert step < 2 or 1 // 0

    def run() -> None:
        with meter:
            train(model, meter, between=fails)

    with pytest.raises(ZeroDivisionError):
        run()
    *_, end = read_samples(tmp_path / "run.jsonl")
    assert isinstance(end, EndSample)
    assert (end.error, end.steps) == ("ZeroDivisionError", 2)


def test_a_sink_that_fails_is_told_once_and_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full:
        def start(self, _run: object) -> None: ...
        def end(self, _end: object) -> None: ...
        def step(self, _sample: object) -> None:
            raise OSError(28, "No space left on device")

    model = a_model()
    with a_meter(model, tmp_path, sinks=[Full()]) as meter:
        train(model, meter)
    said = words("meter.sink_failed", sink="Full", error="").rstrip(" :")
    assert capsys.readouterr().err.count(said) == 1
    assert len(steps_of(tmp_path)) == 6


def test_a_running_process_is_found_by_watch_and_gone_after(tmp_path: Path) -> None:
    model = a_model()
    with a_meter(model, tmp_path, tokens_per_step=ROWS) as meter:
        [before] = live()
        assert before.step is None
        train(model, meter, steps=1)
        [during] = live()
    assert during.step is not None
    assert during.step.mfu == meter.last.mfu
    assert live() == []


def test_measured_stands_beside_the_estimate(tmp_path: Path) -> None:
    import brimful
    from brimful.specs.training import Training

    training = Training(batch_size=1, sequence_tokens=64, accumulation=1, dtype="bfloat16", compiled=False)
    estimate = brimful.fit("gpt2", training, "rtx-4070")
    model = a_model()
    with a_meter(model, tmp_path, estimate=estimate) as meter:
        train(model, meter)
    likely = estimate.speed.step_s.likely
    assert meter.last.step_s_vs_estimate == pytest.approx(meter.last.step_s / likely)


def test_without_a_peak_there_is_no_mfu_and_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = a_model()
    with a_meter(model, tmp_path, peak_flops_per_s=None, terminal_s=100.0) as meter:
        train(model, meter)
    assert meter.last.mfu is None
    said = capsys.readouterr().err
    assert words("meter.no_mfu", why="") in said
    assert "peak_flops_per_s" in said


def test_a_card_by_name_gives_its_own_peak(tmp_path: Path) -> None:
    model = a_model()
    with a_meter(model, tmp_path, peak_flops_per_s=None, gpu="rtx 4070") as meter, torch.autocast("cpu"):
        train(model, meter)
    assert (meter.peak.format, meter.peak.source) == ("bf16", "catalog: rtx-4070")


@pytest.mark.parametrize("wrong", [{"peak_flops_per_s": 165}, {"tokens_per_step": 0}, {"gpus": 0}])
def test_numbers_out_of_range_are_refused(tmp_path: Path, wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        a_meter(a_model(), tmp_path, **wrong)


def test_importing_brimful_imports_no_torch() -> None:
    program = "import brimful, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_tensorboard_and_wandb_get_the_same_numbers(tmp_path: Path) -> None:
    class Writer:
        said: dict[str, float]

        def __init__(self) -> None:
            self.said, self.config, self.summary = {}, {}, {}  # type: ignore[var-annotated]

        def add_text(self, _name: str, text: str) -> None:
            assert json.loads(text)["kind"] == "run"

        def add_scalar(self, name: str, value: float, _step: int) -> None:
            self.said[name] = value

        def log(self, numbers: dict[str, float], *, commit: bool) -> None:
            assert not commit
            self.said.update(numbers)

        def flush(self) -> None: ...

    board, tracker = Writer(), Writer()
    tracker.config = type("Config", (dict,), {"update": lambda self, more, allow_val_change: None})()
    model = a_model()
    with a_meter(model, tmp_path, tensorboard=board, wandb=tracker) as meter:
        train(model, meter)
    assert board.said == tracker.said
    assert board.said["brimful/mfu"] == meter.last.mfu


ON_A_CARD = """
import torch, brimful
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
with brimful.Meter(model, tokens_per_step=8, jsonl=%r, terminal_s=None) as meter:
    for _ in range(4):
        loss = model(torch.randn(8, 64, device="cuda")).square().mean()
        loss.backward()
        loss.item()
        optimizer.step()
        meter.step()
"""


def test_on_a_card_parts_are_times_of_the_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the trace's fake card, where every span between two events is one millisecond."""
    from brimful.cli.main import main

    script, path = tmp_path / "train.py", tmp_path / "run.jsonl"
    script.write_text(ON_A_CARD % str(path), encoding="utf-8")
    assert main(["trace", str(script), "--gpu", "rtx-4070"]) == 0, capsys.readouterr().err
    run, first, *_ = read_samples(path)
    assert isinstance(run, RunSample)
    assert isinstance(first, StepSample)
    assert (run.gpu, run.peak_source) == ("NVIDIA GeForce RTX 4070", "catalog: rtx-4070")
    assert first.clock == "cuda"
    assert first.forward_s == first.backward_s == first.optimizer_s == 0.001
    assert first.host_s.keys() == first.parts_s.keys()
    assert first.syncs == 1, "the loss; not the step counters AdamW keeps in host memory"
