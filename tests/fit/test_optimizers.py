"""What each optimizer keeps, by its own definition, and what fp8 changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brimful.configs.read import read
from brimful.errors import BadInput
from brimful.fit.activations import layer_bytes
from brimful.fit.advice.sweep import sweep
from brimful.fit.count import layer_matrices, layers_matmul_parameters, parameters
from brimful.fit.fit import estimate, fit
from brimful.fit.roofline import newton_schulz_flops
from brimful.fit.states import gradient_bytes, optimizer_bytes, state_numbers, weights_bytes
from brimful.specs.gpu import find_gpu
from brimful.specs.presets import all_presets, find_preset
from tests.builders import refuses
from tests.fit.builders import a_model, a_training

GPT2 = a_model()
H100 = find_gpu("h100-sxm-80gb")
LLAMA = find_preset("llama-3.1-8b").model


@pytest.mark.parametrize("preset", all_presets(), ids=lambda preset: preset.model.name)
def test_the_matrices_of_the_layers_are_all_that_is_multiplied_there(preset: Any) -> None:
    counted = sum(many * rows * columns for many, rows, columns in layer_matrices(preset.model))

    assert counted == layers_matmul_parameters(preset.model)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "momentum", "muon", "adafactor"])
def test_states_are_those_that_pytorch_keeps(name: str) -> None:
    """torch.optim's own optimizers take a step on a small GPT; what their state holds is counted."""
    import torch
    from torch import nn

    model = a_model(layers=3, width=64, heads=4, vocab=160, positions=32, bias=False, tied=True)
    d, m = model.width, model.mlp_width
    matrices = [nn.Parameter(torch.randn(r, c)) for n, r, c in layer_matrices(model) for _ in range(n)]
    tables = [nn.Parameter(torch.randn(model.vocab, d)), nn.Parameter(torch.randn(model.positions, d))]
    norms = [nn.Parameter(torch.randn(d)) for _ in range(2 * model.layers + 1)]
    every = [*matrices, *tables, *norms]
    assert m == 4 * d
    assert sum(weight.numel() for weight in every) == parameters(model)

    made: dict[str, list[Any]] = {
        "adamw": [torch.optim.AdamW, every],
        "adam": [torch.optim.Adam, every],
        "sgd": [torch.optim.SGD, every],
        "momentum": [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), every],
        "adafactor": [torch.optim.Adafactor, every],
        "muon": [torch.optim.Muon, matrices],
    }
    optimizers = [made[name][0](made[name][1])]
    if name == "muon":
        optimizers.append(torch.optim.AdamW([*tables, *norms]))
    for weight in every:
        weight.grad = torch.ones_like(weight)
    kept = 0
    for optimizer in optimizers:
        optimizer.step()
        for state in optimizer.state.values():
            values = [v for key, v in state.items() if isinstance(v, torch.Tensor) and key != "step"]
            kept += sum(value.numel() for value in values)

    assert state_numbers(model, a_training(optimizer=name)) == kept


def test_adafactor_keeps_next_to_nothing_and_in_fp32() -> None:
    half = a_training(optimizer="adafactor", casts="none")

    assert optimizer_bytes(LLAMA, half) < 0.002 * weights_bytes(LLAMA, half)
    assert optimizer_bytes(LLAMA, half) == optimizer_bytes(LLAMA, replace(half, casts="autocast"))


def test_muon_is_between_lion_and_adamw_and_takes_time_for_its_iterations() -> None:
    lion, muon, adamw = (a_training(optimizer=name) for name in ("lion", "muon", "adamw"))

    sizes = [optimizer_bytes(GPT2, each) for each in (lion, muon, adamw)]
    assert sizes == sorted(sizes)
    # a layer of GPT-2: four square matrices, two four times as wide
    assert newton_schulz_flops(GPT2) == 12 * 5 * (4 * 6 * 768**3 + 2 * (4 * 768**2 * 3072 + 2 * 768**3))
    steps = [estimate(GPT2, each, H100, correction=None).speed.step_s.likely for each in (adamw, muon)]
    assert steps[0] < steps[1] < 1.1 * steps[0]


# -- fp8 ---------------------------------------------------------------------------------------------------


def fp8(**fields: Any) -> Any:
    return a_training(**{"fp8": True, "casts": "gather", "batch_size": 2, "sequence_tokens": 8192, **fields})


def test_fp8_leaves_states_alone_and_torchao_keeps_16_bit_inputs() -> None:
    plain = replace(fp8(), fp8=False)

    for part in (weights_bytes, gradient_bytes, optimizer_bytes, layer_bytes):
        assert part(LLAMA, fp8()) == part(LLAMA, plain)


def test_transformer_engine_keeps_inputs_in_a_byte() -> None:
    kept = [sum(layer_bytes(LLAMA, each).values()) for each in (fp8(), fp8(fp8_inputs=True))]

    # inputs of attention, of the MLP, and of its last matrix
    assert kept[0] - kept[1] == fp8().micro_tokens * (2 * LLAMA.width + LLAMA.mlp_width)


def test_fp8_is_faster_by_less_than_its_peak_and_names_that_peak() -> None:
    plain, eight = (
        estimate(LLAMA, each, H100, correction=None).speed for each in (replace(fp8(), fp8=False), fp8())
    )

    assert 1.1 < eight.tokens_per_s.likely / plain.tokens_per_s.likely < 1.6
    assert (plain.peak_format, eight.peak_format) == ("bf16", "fp8")


@pytest.mark.parametrize(
    ("gpu", "generation"), [("a100-80gb", "Ampere"), ("v100-sxm-16gb", "Volta"), ("mi250x", "CDNA2")]
)
def test_a_card_without_fp8_is_refused_by_its_generation(gpu: str, generation: str) -> None:
    with refuses(BadInput, "fit.no_fp8", generation) as refused:
        fit("llama-3.1-8b", fp8(), gpu)
    assert "Hopper" in refused.value.hint

    reading = read(None, model="gpt2", overrides=["precision=fp8"])
    assert reading.training.fp8
    with refuses(BadInput, "fit.no_fp8"):
        sweep(reading, find_gpu(gpu), "batch_size", [1, 2], correction=None)


def test_inputs_in_fp8_without_fp8_are_refused() -> None:
    with refuses(BadInput, "configs.fp8_inputs_without_fp8"):
        read(None, model="gpt2", overrides=["fp8_inputs=True"])
