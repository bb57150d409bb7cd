"""A cause is planted, and `why-slow` has to name it.

Slow loader, evaluation, tiny batch, wrong peak, waiting ranks and the healthy run are real training loops
under a real Meter, on a clock that the test moves: what a step does is PyTorch's, how long it takes is made
up. A throttled clock comes from the fake NVML library beside such a loop. What only a GPU shows (`.item()`,
launches) is planted on a device of two clocks that follow CUDA's rules for launches and waits: no kernel ran,
and the test says so by its name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from brimful.cli.main import main
from brimful.diagnose.findings import CAUSES, Diagnosis, cause_words
from brimful.diagnose.slow import diagnose, why_line
from brimful.language import Sentence, Several, words
from brimful.meter.nvml import _THROTTLES, read_gpus, throttle_said
from brimful.meter.samples import GpuSample, RunSample, Sample, StepSample, as_line, read_samples
from tests.conftest import ROOT
from tests.fake_nvml import FakeNvml, a_card
from tests.meter.clocks import Clock

WIDTH, BATCH, LAYERS, STEPS = 64, 256, 4, 12
PEAK = 1e9  # FLOPs a second of the made-up device: multiplies reach four fifths of it
LAUNCH_S = 0.0005  # that a layer takes at the least, however small


def codes(said: Several | tuple[Sentence, ...]) -> list[str]:
    parts = said.parts if isinstance(said, Several) else said
    return [each.code for each in parts if isinstance(each, Sentence)]


class Work:
    """A loop's device: each pass takes its FLOPs' time on the clock."""

    def __init__(self) -> None:
        self.clock = Clock()

    def forward(self, rows: int) -> None:
        self.clock.passes(LAYERS * max(LAUNCH_S, 2 * rows * WIDTH**2 / (0.8 * PEAK)))

    def backward(self, rows: int) -> None:
        for _ in range(2):
            self.forward(rows)


def trained(
    path: Path,
    *,
    batch: int = BATCH,
    load_s: float = 0.0,
    evaluates: bool = False,
    **meter: Any,
) -> list[Sample]:
    """The samples of a real loop: a perceptron on random numbers, a Meter around it."""
    import torch

    from brimful.meter.loop import Meter

    work = Work()

    class Data(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, _: int) -> Any:
            work.clock.passes(load_s)
            return torch.randn(batch, WIDTH)

    class Timed(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            context.rows = len(x)
            work.forward(len(x))
            return x.clone()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            work.backward(context.rows)
            return gradient

    class Net(torch.nn.Sequential):
        def forward(self, x: Any) -> Any:
            return Timed.apply(super().forward(x)).square().mean()

    layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = Net(*layers)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    meter.setdefault("peak_flops_per_s", PEAK)
    with Meter(model, jsonl=path, terminal_s=None, share=False, clock=work.clock, **meter) as measured:
        for x in torch.utils.data.DataLoader(Data(), batch_size=None):
            model(x).backward()
            if evaluates:
                evaluate(model)
            sgd.step()
            sgd.zero_grad()
            measured.step()
    return list(read_samples(path))


def evaluate(model: Any) -> None:
    import torch

    model.eval()
    with torch.no_grad():
        for _ in range(4):
            model(torch.randn(BATCH, WIDTH))
    model.train()


@pytest.mark.torch
@pytest.mark.parametrize(
    ("planted", "more", "way"),
    [
        ("data-starved", {"load_s": 0.06}, "slow.load_faster"),
        ("evaluation-heavy", {"evaluates": True}, "slow.pause_less"),
        ("small matmuls", {"batch": 1}, "slow.larger_micro_step"),
        ("wrong peak", {"peak_flops_per_s": 1e8}, "slow.declare_peak"),
        ("healthy", {}, ""),
    ],
    ids=["slow loader", "evaluation every step", "tiny batch", "wrong peak", "healthy run"],
)
def test_planted_in_a_real_loop(planted: str, more: dict[str, Any], way: str, tmp_path: Path) -> None:
    found = diagnose([trained(tmp_path / "run.jsonl", **more)])

    assert found.cause == planted, found
    if found.findings:
        first = found.findings[0]
        assert way in codes(first.change)
        assert any(character.isdigit() for character in str(first.says))
    else:
        assert found.mfu is not None
        assert found.says.code == "slow.good_mfu"
        assert found.says.as_dict()["mfu"] == found.mfu


# It leaves without taking PyTorch apart: gloo's threads may still run then, and that ends in an abort.
RANK = """
import os, sys
from tests.diagnose.test_slow import rank
rank(int(sys.argv[1]), sys.argv[2], sys.argv[3])
os._exit(0)
"""


def rank(number: int, where: str, path: str) -> None:
    """One of two over gloo; by their clocks the second works while the first waits for it."""
    import torch
    import torch.distributed as dist

    from brimful.meter.loop import Meter

    dist.init_process_group("gloo", init_method=where, rank=number, world_size=2)
    model, clock, reduce = torch.nn.Linear(64, 64), Clock(), dist.all_reduce

    def waits(tensor: Any) -> None:
        reduce(tensor)
        clock.passes(0.025 if number == 0 else 0.001)

    dist.all_reduce = waits
    try:
        with Meter(
            model, jsonl=path, terminal_s=None, share=False, peak_flops_per_s=1e10, clock=clock
        ) as meter:
            for _ in range(10):
                model(torch.randn(32, 64)).sum().backward()
                clock.passes(0.002 if number == 0 else 0.05)
                for weight in model.parameters():
                    dist.all_reduce(weight.grad)
                model.zero_grad()
                meter.step()
    finally:
        dist.all_reduce = reduce
        dist.destroy_process_group()


@pytest.mark.torch
def test_a_rank_that_others_wait_for_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two real processes over gloo, one of them slow."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    where, path = f"file://{tmp_path}/meet", str(tmp_path / "run.jsonl")
    environment = {**os.environ, "RANK": "1", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", RANK, "1", where, path], env=environment) as other:
        rank(0, where, path)
    assert other.returncode == 0

    files = [list(read_samples(tmp_path / name)) for name in ("run.jsonl", "run.rank1.jsonl")]
    found = diagnose(files)

    assert found.cause == "communication", found
    last = found.findings[0].evidence[-1].as_dict()
    assert (last["code"], last["rank"]) == ("slow.rank_comes_last", 1)
    assert codes(found.findings[0].change) == ["slow.find_why_rank_is_slow", "slow.overlap"]


@pytest.mark.torch
def test_a_throttled_clock_beside_a_real_loop(tmp_path: Path, fake_nvml: FakeNvml) -> None:
    """The loop is real; the card is the fake NVML library's, read by the real nvidia-ml-py."""
    fake_nvml.show(a_card(sm_clock=1200, sm_clock_max=3105, throttle=0x20, temperature=91))

    samples = trained(tmp_path / "run.jsonl")
    steps = [sample for sample in samples if isinstance(sample, StepSample)]

    found = diagnose([samples, [gpu for step in steps for gpu in read_gpus(step.at_s)]])

    assert found.cause == "throttling", found
    says = found.findings[0].says.as_dict()
    assert says["clock"] == pytest.approx(1200 / 3105)
    assert says["reason"] == {"code": "meter.throttle_too_hot"}
    assert {"code": "slow.hottest", "celsius": 91} in [each.as_dict() for each in found.findings[0].evidence]


class TwoClocks:
    """A device that works behind the program: CUDA's rules for launches and waits, with no kernel at all.

    A launch takes the program `launch_s` and waits in the queue; a kernel starts when it was launched and the
    one before it is done; a wait holds the program until the device is through.
    """

    def __init__(self, *, launch_s: float) -> None:
        self.launch_s, self.program_s, self.device_s, self.busy_s = launch_s, 0.0, 0.0, 0.0

    def launch(self, kernel_s: float) -> None:
        self.program_s += self.launch_s
        self.device_s = max(self.device_s, self.program_s) + kernel_s
        self.busy_s += kernel_s

    def wait(self) -> float:
        waited = max(0.0, self.device_s - self.program_s)
        self.program_s += waited
        return waited


def on_two_clocks(
    *, kernels: int, kernel_s: float, launch_s: float = 10e-6, program_s: float = 0.0, item: bool = False
) -> list[Sample]:
    """What a Meter would write of it, number by number from the two clocks.

    In each step the program works `program_s` on its own (logging, the next batch) and launches the kernels.
    """
    device = TwoClocks(launch_s=launch_s)
    useful = 0.5 * kernels * kernel_s  # of the peak's seconds: kernels at half of it
    samples: list[Sample] = [
        RunSample(
            at_s=0, pid=1, host="h", device="cuda:0", gpu="rtx-4070", flops_per_step=useful * 58.3e12,
            peak_flops_per_s=58.3e12, peak_format="bf16", peak_source="catalog: rtx-4070",
        )
    ]  # fmt: skip
    end_s = began_s = 0.0
    for step in range(30):
        busy_before, waited = device.busy_s, 0.0
        device.program_s += program_s
        for _ in range(kernels):
            device.launch(kernel_s)
            if device.device_s - device.program_s > 0.05:
                device.program_s = device.device_s - 0.05  # the queue is full: a launch waits for room
        if item:
            waited = device.wait()
        took, host = device.device_s - end_s, device.program_s - began_s
        end_s, began_s = device.device_s, device.program_s
        samples += [
            StepSample(
                at_s=end_s, step=step, step_s=took, warmup=step < 10, clock="cuda", forward_s=took / 3,
                backward_s=2 * took / 3, host_s={"forward": host}, syncs=int(item), sync_s=waited,
                micro_steps=1, mfu=useful / took,
            ),
            GpuSample(at_s=end_s, index=0, busy_frac=min(1.0, (device.busy_s - busy_before) / took)),
        ]  # fmt: skip
    return samples


ITEM: dict[str, Any] = {"kernels": 200, "kernel_s": 60e-6, "program_s": 8e-3, "item": True}


@pytest.mark.parametrize(
    ("planted", "loop"),
    [
        ("synchronisation", ITEM),
        # The same without the wait: the program runs ahead, and its own work is hidden.
        ("healthy", {**ITEM, "item": False}),
        # A wait that costs little is not why.
        ("healthy", {**ITEM, "program_s": 0.5e-3}),
        ("launch-bound small kernels", {"kernels": 1000, "kernel_s": 4e-6}),
    ],
    ids=[".item() each step", "no .item()", "a harmless .item()", "small kernels"],
)
def test_planted_on_a_device_of_two_clocks_where_no_gpu_is(planted: str, loop: dict[str, Any]) -> None:
    found = diagnose([on_two_clocks(**loop)])

    assert found.cause == planted, found
    if planted == "synchronisation":
        # 12 ms of kernels and 8 ms of the program's own: one after the other where it waits.
        assert found.step_s == pytest.approx(0.020, rel=0.01)
        best = found.findings[0].as_dict()["codes"]["change"][-1]
        assert best == {"code": "slow.would_take", "step": pytest.approx(0.012, rel=0.01)}


@pytest.mark.parametrize(
    ("planted", "loop"),
    [
        ("synchronisation", {**ITEM, "program_s": 20e-3}),
        ("healthy", {**ITEM, "program_s": 0.5e-3}),
        ("launch-bound small kernels", {"kernels": 1000, "kernel_s": 4e-6, "item": True}),
        # Launches or multiplies: nothing tells them apart here, and more work at a time helps either.
        ("small matmuls", {"kernels": 1000, "kernel_s": 4e-6}),
    ],
    ids=[".item() each step", "a harmless .item()", "small kernels", "small kernels and no wait"],
)
def test_planted_on_two_clocks_and_nobody_looked_at_the_card(planted: str, loop: dict[str, Any]) -> None:
    found = diagnose([[sample for sample in on_two_clocks(**loop) if not isinstance(sample, GpuSample)]])

    assert found.cause == planted, found
    assert "slow.needs_looks" in codes(found.missing)


def test_too_few_steps_tell_nothing() -> None:
    samples = on_two_clocks(**ITEM)[:25]

    found = diagnose([samples])

    assert found.cause == "cannot tell"
    assert codes(found.missing) == ["slow.few_steps"]
    assert why_line(samples) is None


def a_run(**more: Any) -> list[Sample]:
    steps = [
        StepSample(at_s=float(n), step=n, step_s=1.0, forward_s=0.4, backward_s=0.6, micro_steps=1, **more)
        for n in range(8)
    ]
    return [RunSample(at_s=0, pid=1, host="h"), *steps]


def test_without_a_peak_or_a_prediction_it_cannot_be_told() -> None:
    found = diagnose([a_run()])

    assert found.cause == "cannot tell"
    assert codes(found.missing) == ["slow.needs_peak", "slow.needs_estimate"]


def test_a_prediction_says_whether_it_is_as_fast_as_it_should_be() -> None:
    as_fast = {"speed": {"step_s": {"likely": 0.9}, "bound_by": "compute"}}

    assert diagnose([a_run()], estimate=as_fast).cause == "healthy"
    assert diagnose([a_run()], estimate={"speed": {"step_s": {"likely": 0.3}}}).cause == "cannot tell"


def test_an_a100s_peak_on_another_card_is_seen_by_the_card() -> None:
    samples = a_run(mfu=0.12)
    samples[0] = RunSample(
        at_s=0, pid=1, host="h", gpu="NVIDIA GeForce RTX 4070", peak_flops_per_s=312e12, peak_format="bf16"
    )

    found = diagnose([samples])

    assert found.cause == "wrong peak"
    says = found.findings[0].says.as_dict()
    assert says["own"] == pytest.approx(58.3)
    assert says["right"] == pytest.approx(0.642, abs=0.001)


def test_the_change_that_helps_is_fits() -> None:
    """Launch-bound, with a prediction at hand: what Fit would change, and by how much."""
    import brimful
    from brimful.specs.training import Training

    small = Training(batch_size=1, sequence_tokens=256, accumulation=8, dtype="bfloat16", compiled=False)
    estimate = brimful.fit("gpt2", small, "rtx-4070").as_dict()
    loop = on_two_clocks(kernels=1000, kernel_s=4e-6)

    found = diagnose([loop], estimate=estimate)

    best = min(way["step_time_factor"] for way in estimate["faster"])
    by_fit = found.findings[0].as_dict()["codes"]["change"][-1]
    assert (by_fit["code"], by_fit["times"]) == ("slow.by_fit", best)


def test_the_command_shows_cause_evidence_and_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    loop = on_two_clocks(**ITEM)
    path.write_text("".join(f"{as_line(sample)}\n" for sample in loop))

    assert main(["why-slow", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("SYNCHRONISATION\n")
    assert words("slow.log_less") in " ".join(shown.split())
    assert main(["why-slow", str(path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["cause"] == "synchronisation"
    assert 0 < data["findings"][0]["lost_frac"] < 1
    assert data["reason"]["code"] == data["findings"][0]["codes"]["says"]["code"] == "slow.waits_for_gpu"
    assert "slow.needs_estimate" in [each["code"] for each in data["missing_codes"]]
    line = why_line(loop)
    assert line is not None
    assert line.code == "slow.line"
    assert main(["why-slow", str(path), "--lang", "de"]) == 0
    assert capsys.readouterr().out.startswith("SYNCHRONISIERUNG\n")


def test_the_command_looks_at_the_card_while_the_run_goes_on(
    tmp_path: Path, fake_nvml: FakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_nvml.show(a_card(sm_clock=1200, sm_clock_max=3105, throttle=0x4))
    path, now = tmp_path / "run.jsonl", time.time()
    samples: list[Sample] = [RunSample(at_s=now, pid=1, host="h", device="cuda:0")]
    samples += [StepSample(at_s=now + 4 * n, step=n, step_s=4.0, forward_s=4.0) for n in range(6)]
    path.write_text("".join(f"{as_line(sample)}\n" for sample in samples))

    assert main(["why-slow", str(path), "--look", "1", "--json"]) == 0

    reason = json.loads(capsys.readouterr().out)["data"]["reason"]
    assert (reason["code"], reason["clock"]) == ("slow.throttled", pytest.approx(1200 / 3105))
    assert reason["reason"] == {"code": "meter.throttle_power_cap"}


def test_the_strongest_cause_comes_first_and_the_others_follow(tmp_path: Path) -> None:
    found: Diagnosis = diagnose([a_run(data_s=0.5, comm_s=0.2)])

    assert [each.cause for each in found.findings] == ["data-starved", "communication"]


def test_every_cause_and_every_reason_of_the_driver_has_words() -> None:
    assert [str(cause_words(cause)) for cause in CAUSES] == list(CAUSES)
    assert str(cause_words("evaluation-heavy")) == "evaluation-heavy"
    assert {throttle_said(name).code for name in _THROTTLES.values()} == {
        f"meter.throttle_{name}" for name in _THROTTLES.values()
    }
    assert str(throttle_said("power cap")) == "power cap", "as a file of 0.1 has it"
