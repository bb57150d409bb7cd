"""A model split over GPUs: tensor, pipeline and context parallelism, and experts of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brimful.configs.read import read
from brimful.errors import BadInput
from brimful.fit.activations import kept_items, layer_bytes, logits_bytes_per_number
from brimful.fit.count import parameters
from brimful.fit.fit import estimate
from brimful.fit.memory import peak_memory
from brimful.fit.stages import bubble_steps, in_flight, pipeline_stages
from brimful.fit.states import gathered_bytes, optimizer_bytes, waiting_bytes, weights_bytes
from brimful.specs.gpu import find_gpu
from brimful.specs.model import Model
from brimful.specs.presets import find_preset
from brimful.specs.training import Training
from tests.builders import refuses
from tests.fit.builders import a_model, a_training

H100 = find_gpu("h100-sxm-80gb")
LLAMA = find_preset("llama-3.1-8b").model
MIXTRAL = find_preset("mixtral-8x7b").model


def split(**fields: Any) -> Training:
    return a_training(**{"compiled": False, "casts": "none", "accumulation": 1, "gpus": 8, **fields})


def allocated(model: Model, training: Training) -> float:
    return peak_memory(model, training, H100).allocated_bytes.likely


# -- pipeline ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "micro_batches", "held"), [(0, 8, 4), (1, 8, 3), (3, 8, 1), (0, 2, 2)])
def test_1f1b_keeps_as_many_micro_batches_as_there_are_stages_ahead(
    rank: int, micro_batches: int, held: int
) -> None:
    training = split(pipeline=4, accumulation=micro_batches)

    assert in_flight(training, rank) == held


def test_interleaving_shortens_the_bubble_and_keeps_more() -> None:
    plain = split(pipeline=8, accumulation=32)
    interleaved = replace(plain, virtual_stages=4)

    assert bubble_steps(plain) == 7  # a share of 7/39: (p - 1)/(m + p - 1)
    assert bubble_steps(interleaved) == 7 / 4
    # L(1 + (p - 1)/(p·v)) of Korthikanti et al., section 4.2.3
    assert in_flight(interleaved, 0) == pytest.approx(8 * (1 + 7 / (8 * 4)))


@pytest.mark.parametrize("model", [LLAMA, a_model(layers=12, tied=True), MIXTRAL])
@pytest.mark.parametrize("stages", [2, 4])
def test_stages_hold_the_model_once_and_a_tied_table_twice(model: Model, stages: int) -> None:
    found = pipeline_stages(model, split(pipeline=stages, accumulation=8))
    middles = found[1:-1] * (stages - 2)  # one stands for all that are alike
    held = sum(parameters(stage.model) for stage in [found[0], *middles, found[-1]])

    twice = model.vocab * model.width if model.tied else 0
    assert held == parameters(model) + twice


def test_the_first_stage_keeps_most_and_the_last_has_the_logits() -> None:
    training = split(pipeline=4, accumulation=16, sequence_tokens=4096, batch_size=1)
    first, _, last = pipeline_stages(LLAMA, training)

    kept = [sum(item.bytes for item in kept_items(s.model, training, s.in_flight)) for s in (first, last)]
    assert kept[0] > 3.5 * kept[1] - LLAMA.width * training.micro_tokens * 8
    assert first.model.first
    assert not first.model.last
    peak = peak_memory(LLAMA, training, H100).peak_at
    assert 1 <= peak.stage <= peak.stages == 4


def test_a_sharded_stage_stays_gathered_and_its_gradients_wait_whole() -> None:
    training = split(
        gpus=16, pipeline=4, accumulation=8, sharding="zero3", shards=4, dtype="bfloat16", casts="gather"
    )
    stage = pipeline_stages(LLAMA, training)[0].model

    assert gathered_bytes(stage, training) == 2 * parameters(stage)
    assert waiting_bytes(stage, training) == 4 * parameters(stage)


def test_more_micro_batches_spread_the_bubble() -> None:
    few, many = (split(pipeline=8, accumulation=m, batch_size=1) for m in (8, 64))

    rates = [estimate(LLAMA, each, H100, correction=None).speed.tokens_per_s.likely for each in (few, many)]
    # (m + p - 1)/m: 15/8 against 71/64, and the update is spread over more tokens
    assert rates[1] / rates[0] > (15 / 8) / (71 / 64) * 0.99


# -- tensor ------------------------------------------------------------------------------------------------


def test_tensor_parallelism_splits_all_but_what_a_multiply_reads() -> None:
    alone, eight = split(gpus=1, batch_size=1), split(tensor=8, batch_size=1)
    whole, part = layer_bytes(LLAMA, alone), layer_bytes(LLAMA, eight)

    read = 2 * LLAMA.width * alone.micro_tokens  # gathered whole on every GPU
    assert part["activations_norms"] == whole["activations_norms"] // 8
    assert part["activations_attention"] == read + (whole["activations_attention"] - read) // 8
    assert part["activations_mlp"] == read + (whole["activations_mlp"] - read) // 8


def test_without_sequence_parallelism_norms_are_on_every_gpu() -> None:
    along = split(tensor=8)

    whole = layer_bytes(LLAMA, replace(along, sequence_parallel=False))["activations_norms"]
    assert layer_bytes(LLAMA, along)["activations_norms"] == whole // 8


def test_a_split_vocabulary_takes_four_fp32_tables_backward_as_pytorch_writes_it() -> None:
    eager = split(gpus=1)

    assert logits_bytes_per_number(split(tensor=8))["backward"] == 4 + 4 * 4
    assert logits_bytes_per_number(eager)["backward"] == 4 + 3 * 4


def test_weights_and_states_are_split_by_tensor_parallelism() -> None:
    for part in (weights_bytes, optimizer_bytes):
        assert part(LLAMA, split(tensor=8)) == pytest.approx(part(LLAMA, split(gpus=1)) / 8, rel=1e-6)


# -- context, experts --------------------------------------------------------------------------------------


def test_context_parallelism_splits_tokens_but_gathers_keys() -> None:
    alone = split(gpus=1, batch_size=1, sequence_tokens=65536, checkpointing="full", fused_loss=True)
    four = replace(alone, gpus=4, context=4)
    one, part = allocated(LLAMA, alone), allocated(LLAMA, four)

    states = weights_bytes(LLAMA, alone) + optimizer_bytes(LLAMA, alone)
    assert (one - states) / 4 < part - states < one - states


def test_experts_over_gpus_split_their_weights_and_nothing_else() -> None:
    alone, eight = split(sharding="ddp"), split(sharding="ddp", expert=8)
    experts = MIXTRAL.experts
    assert experts is not None

    routed = 2 * 32 * experts.count * 3 * MIXTRAL.width * experts.width  # bytes of all experts in bf16
    saved = weights_bytes(MIXTRAL, alone) - weights_bytes(MIXTRAL, eight)
    assert saved == pytest.approx(routed * 7 / 8, rel=1e-6)
    assert layer_bytes(MIXTRAL, alone) == layer_bytes(MIXTRAL, eight)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["gpus=5", "tensor=5"], ("heads_do_not_split", 32, 5)),
        (["gpus=64", "pipeline=64"], ("layers_do_not_split", 32, 64)),
        (["gpus=8", "pipeline=8", "virtual_stages=8"], ("layers_do_not_split", 32, 64)),
        (["gpus=8", "expert=3"], ("experts_do_not_divide", 8, 3, 8)),
        (["gpus=2", "expert=4"], ("experts_do_not_divide", 8, 4, 2)),
    ],
)
def test_a_split_that_cannot_be_is_refused_with_its_numbers(
    words: list[str], reason: tuple[str, *tuple[int, ...]]
) -> None:
    with refuses(BadInput, f"configs.{reason[0]}", *reason[1:]):
        read(None, model="mixtral-8x7b", overrides=words)
