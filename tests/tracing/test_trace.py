"""`brimful.trace`: what comes out for a training program, and what it says about bad ones."""

from __future__ import annotations

import json

import pytest
import torch

import brimful
from brimful.errors import BadInput
from brimful.units import GIB
from tests.tracing.programs import Gpt, a_training

pytestmark = pytest.mark.torch


def test_the_items_sum_to_what_the_device_holds() -> None:
    peak = brimful.trace(a_training(), gpu="rtx-4070")

    assert sum(item.bytes for item in peak.items) == peak.device_bytes
    assert all(item.bytes >= 0 for item in peak.items)
    assert peak.requested_bytes <= peak.allocated_bytes <= peak.reserved_bytes < peak.device_bytes
    assert peak.fits


def test_parameters_gradients_and_optimizer_state_are_told_apart() -> None:
    peak = brimful.trace(a_training(), gpu="rtx-4070")
    with torch.device("meta"):
        weights = sum(p.numel() for p in Gpt().parameters())

    items = {item.code: item.bytes for item in peak.items}
    assert items["weights"] == 4 * weights
    # two moments in fp32, and a step count of 4 B for each tensor
    assert items["optimizer_state"] == pytest.approx(8 * weights, rel=0.001)


def test_the_first_step_has_no_optimizer_state_yet() -> None:
    peak = brimful.trace(a_training(), gpu="rtx-4070")

    assert peak.steps == 2
    assert peak.first_step.allocated_bytes < peak.steady_step.allocated_bytes == peak.allocated_bytes


def test_more_steps_do_not_raise_the_peak() -> None:
    two, five = (brimful.trace(a_training(), gpu="rtx-4070", steps=steps) for steps in (2, 5))

    assert two.allocated_bytes == five.allocated_bytes
    assert five.steps == 5


def test_logits_of_a_large_vocabulary_are_named_with_the_line_that_makes_them() -> None:
    peak = brimful.trace(a_training(lambda: Gpt(vocab=50304), batch=8), gpu="rtx-4070")

    largest = max(peak.items, key=lambda item: item.bytes)
    assert largest.code == "logits_loss"
    assert peak.peak_at["phase"] == "backward"
    assert "programs.py" in peak.peak_at["line"]
    assert peak.top_holders[0].category == "logits_loss"
    assert peak.fixes[0]["name"] == "loss"
    assert (peak.fits, peak.chance) == (True, 0)


def test_a_card_too_small_names_the_op_the_line_and_the_settings_that_save_it() -> None:
    peak = brimful.trace(a_training(lambda: Gpt(vocab=50304), batch=96, tokens=1024), gpu="rtx-4070")

    assert (peak.fits, peak.chance) == (False, 1)
    failure = peak.out_of_memory
    assert failure is not None
    assert failure["wanted_bytes"] > failure["free_bytes"]
    assert "programs.py" in failure["line"]
    assert peak.saving_settings == ()  # no setting makes 30 GiB fit in 12


def test_the_answer_is_json_and_has_what_programs_match() -> None:
    data = json.loads(json.dumps(brimful.trace(a_training(), gpu="rtx-4070").as_dict(), allow_nan=False))

    assert data["peak_requested_bytes"] > 0
    assert {
        "peak_allocated_bytes", "peak_reserved_bytes", "device_bytes", "items", "peak_at", "values_invented",
        "rules_fired", "timeline", "first_step", "steady_step", "out_of_memory", "speed",
        "chance_of_running_out",
    } <= set(data)  # fmt: skip
    assert max(data["timeline"]["allocated_bytes"]) == data["peak_allocated_bytes"]


def test_a_whole_program_is_stopped_after_its_steps() -> None:
    done = []

    def program() -> None:
        step = a_training()()
        for number in range(1000):
            step()
            done.append(number)

    peak = brimful.trace(program, gpu="rtx-4070", steps=3)

    assert peak.steps == 3
    assert len(done) == 3
    assert peak.allocated_bytes == brimful.trace(a_training(), gpu="rtx-4070").allocated_bytes


def test_expandable_segments_reserve_less() -> None:
    program = a_training(lambda: Gpt(vocab=50304), batch=8)
    plain = brimful.trace(program, gpu="rtx-4070", settings="")
    expandable = brimful.trace(program, gpu="rtx-4070", settings="expandable_segments:True")

    assert expandable.reserved_bytes < plain.reserved_bytes
    assert expandable.requested_bytes == plain.requested_bytes


def test_torch_is_as_before_when_the_trace_is_over() -> None:
    before = torch.nn.functional.scaled_dot_product_attention
    brimful.trace(a_training(), gpu="rtx-4070")

    assert torch.nn.functional.scaled_dot_product_attention is before
    assert not torch.cuda.is_available()
    assert torch.ones(2).sum().item() == 2


def test_a_program_that_stays_on_the_cpu_is_told_so() -> None:
    with pytest.raises(BadInput) as caught:
        brimful.trace(lambda: torch.ones(3).sum(), gpu="rtx-4070")
    assert caught.value.code == "nothing_on_gpu"


def test_step_time_and_mfu_come_with_an_interval() -> None:
    speed = brimful.trace(a_training(lambda: Gpt(width=1024, heads=16), batch=8), gpu="a100-sxm-80gb").speed

    assert speed is not None
    assert 0 < speed.step_s.low < speed.step_s.likely < speed.step_s.high
    assert 0 < speed.mfu.low < speed.mfu.high <= 1


def test_a_pytest_user_can_put_a_bar() -> None:
    assert brimful.trace(a_training(), gpu="rtx-4070").reserved_bytes < 1 * GIB
