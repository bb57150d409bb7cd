"""Every change moves memory the way it is known to: over all families and trainings, and as published."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.accuracy.runs import Row, Skipped, read_rows, understand
from brimful.fit.activations import logits_bytes_per_number
from brimful.fit.count import parameters
from brimful.fit.fit import estimate
from brimful.fit.memory import peak_memory
from brimful.specs.estimate import Memory
from brimful.specs.gpu import find_gpu
from brimful.specs.model import Model
from brimful.specs.training import Training
from brimful.units import MIB
from tests.fit.builders import a_model, a_training

H100 = find_gpu("h100-sxm-80gb")

# -- all families, all trainings ---------------------------------------------------------------------------

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"bias": True, "dropout": 0.1},
    "llama": {"gated": True, "norm": "rms", "rotary": True, "positions": 0, "tied": False},
    "qwen3": {"gated": True, "norm": "rms", "rotary": True, "positions": 0, "qk_norm": True},
    "gemma2": {"gated": True, "norm": "rms", "rotary": True, "positions": 0, "norms": 4},
    "pythia": {"rotary": True, "parallel": True, "bias": True, "positions": 0, "tied": False},
    "falcon": {"rotary": True, "parallel": True, "norms": 1, "norm_bias": True, "positions": 0},
    "bert": {"encoder": True, "bias": True, "segments": 2, "dropout": 0.1, "attention_dropout": 0.1},
    "classifier": {"encoder": True, "bias": True, "segments": 2, "classes": 2},
}
TUNINGS: dict[str, dict[str, Any]] = {
    "full": {},
    "LoRA": {"tuning": "lora", "targets": 7, "casts": "none"},
    "QLoRA": {"tuning": "lora", "targets": 2, "casts": "none", "frozen_bits": 4, "adapter_dtype": "float32"},
    "adapter": {"tuning": "adapter", "casts": "none"},
}
# gpus = shards (or replicas) x tensor x pipeline x context
SPREADS: dict[str, dict[str, Any]] = {
    "alone": {},
    "DDP": {"gpus": 8, "sharding": "ddp"},
    "ZeRO 1": {"gpus": 8, "sharding": "zero1", "shards": 8},
    "ZeRO 2": {"gpus": 8, "sharding": "zero2", "shards": 8},
    "ZeRO 3": {"gpus": 8, "sharding": "zero3", "shards": 8},
    "tensor": {"gpus": 16, "sharding": "zero3", "shards": 2, "tensor": 8},
    "pipeline": {"gpus": 8, "pipeline": 4, "sharding": "zero1", "shards": 2},
    "context": {"gpus": 8, "context": 4, "sharding": "zero3", "shards": 8},
}


@st.composite
def models(draw: st.DrawFn) -> Model:
    family = draw(st.sampled_from(sorted(FAMILIES)))
    groups, shared = draw(st.integers(1, 8)), draw(st.sampled_from([1, 2, 4]))
    heads = 1 if family == "classifier" else groups * shared
    width = heads * draw(st.sampled_from([64, 128]))
    return a_model(
        name=family,
        heads=heads,
        kv_heads=heads if family in ("gpt2", "bert", "classifier") else groups,
        width=width,
        mlp_width=draw(st.integers(2, 5)) * width,
        layers=4 * draw(st.integers(1, 12)),
        vocab=draw(st.integers(100, 260_000)),
        **FAMILIES[family],
    )


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    dtype = draw(st.sampled_from(["float32", "bfloat16", "float16"]))
    fields: dict[str, Any] = {
        "batch_size": draw(st.integers(1, 64)),
        "sequence_tokens": 64 * draw(st.integers(1, 128)),
        "accumulation": draw(st.sampled_from([1, 4])),
        "dtype": dtype,
        "casts": draw(st.sampled_from(["autocast", "none", "gather"])),
        "compiled": draw(st.booleans()),
        "attention": draw(st.sampled_from(["flash", "math"])),
        "checkpointing": draw(st.sampled_from(["none", "selective", "full"])),
        "optimizer": draw(st.sampled_from(["adamw", "adam8bit", "sgd", "lion", "adafactor"])),
        "optimizer_kernel": draw(st.sampled_from(["fused", "foreach", "loop"])),
        "loss_chunks": draw(st.sampled_from([1, 8])),
        "fused_loss": draw(st.booleans()),
    }
    fields |= TUNINGS[draw(st.sampled_from(sorted(TUNINGS)))]
    fields |= SPREADS[draw(st.sampled_from(sorted(SPREADS)))]
    return a_training(**fields)


def memory_of(model: Model, training: Training) -> Memory:
    return peak_memory(model, training, H100)


def allocated(model: Model, training: Training) -> float:
    return memory_of(model, training).allocated_bytes.likely


@given(models(), trainings())
@settings(max_examples=150, deadline=None)
def test_items_sum_and_counters_nest_for_every_family_and_training(model: Model, training: Training) -> None:
    memory = memory_of(model, training)

    assert sum(item.bytes for item in memory.items) == memory.device_bytes.likely
    assert all(item.bytes > 0 and item.why for item in memory.items)
    for end in ("low", "likely", "high"):
        sizes = [
            getattr(counter, end)
            for counter in (memory.allocated_bytes, memory.reserved_bytes, memory.device_bytes)
        ]
        assert sizes == sorted(sizes), end


@given(models(), trainings())
@settings(max_examples=150, deadline=None)
def test_more_tokens_never_take_less(model: Model, training: Training) -> None:
    here = allocated(model, training)

    assert allocated(model, replace(training, batch_size=2 * training.batch_size)) >= here
    assert allocated(model, replace(training, sequence_tokens=2 * training.sequence_tokens)) >= here


@given(models(), trainings())
@settings(max_examples=150, deadline=None)
def test_a_larger_model_takes_more(model: Model, training: Training) -> None:
    here = allocated(model, training)

    assert allocated(replace(model, layers=model.layers + 4), training) > here
    wider = replace(model, heads=2 * model.heads, kv_heads=2 * model.kv_heads, width=2 * model.width)
    assert allocated(wider, training) > here
    assert allocated(replace(model, mlp_width=2 * model.mlp_width), training) >= here
    assert allocated(replace(model, vocab=2 * model.vocab), training) > here


@given(models(), trainings())
@settings(max_examples=150, deadline=None)
def test_what_people_do_to_save_memory_never_takes_more(model: Model, training: Training) -> None:
    plain = replace(training, checkpointing="none", loss_chunks=1, fused_loss=False, optimizer="adamw")
    here = allocated(model, plain)

    assert allocated(model, replace(plain, optimizer="adam8bit")) <= here
    assert allocated(model, replace(plain, fused_loss=True)) <= here
    # What eager chunks keep waits while the output matrix's gradient is made. With fewer tokens than it is
    # wide that gradient outweighs the logits, and chunks may take more; nobody trains such a batch.
    if training.batch_size * training.sequence_tokens >= 2 * model.width:
        assert allocated(model, replace(plain, loss_chunks=8)) <= here


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("casts", ["autocast", "none"])
def test_an_adapter_on_frozen_weights_takes_less_than_training_them(family: str, casts: str) -> None:
    model = a_model(width=2048, heads=16, layers=24, **FAMILIES[family])
    for tokens in (64, 1024, 8192):
        full = a_training(batch_size=1, sequence_tokens=tokens, casts=casts, compiled=False)
        assert allocated(model, replace(full, tuning="lora", targets=2)) < allocated(model, full)
        assert allocated(model, replace(full, tuning="adapter")) < allocated(model, full)


def test_4_bit_weights_save_most_of_the_weights_but_nothing_of_the_activations() -> None:
    llama = a_model(layers=32, width=4096, heads=32, mlp_width=11008, vocab=32000, **FAMILIES["llama"])
    lora = a_training(batch_size=1, casts="none", compiled=False, tuning="lora")
    short, long = (replace(lora, sequence_tokens=tokens) for tokens in (256, 8192))
    saved = [
        allocated(llama, each) - allocated(llama, replace(each, frozen_bits=4)) for each in (short, long)
    ]

    assert saved[0] > 0.6 * 2 * parameters(llama)
    assert saved[1] < saved[0]  # dequantizing needs each layer's input once more


@given(models(), trainings())
@settings(max_examples=150, deadline=None)
def test_spreading_the_optimizer_over_gpus_never_takes_more(model: Model, training: Training) -> None:
    eight: dict[str, Any] = {
        "gpus": 8,
        "shards": 8,
        "tensor": 1,
        "pipeline": 1,
        "context": 1,
        "tuning": "full",
    }
    many = replace(training, **eight, frozen_bits=0, adapter_dtype=None, sharding="zero1")
    alone = replace(many, gpus=1, shards=1, sharding="none")

    assert allocated(model, many) <= allocated(model, alone)


def test_checkpointing_saves_what_the_layers_keep() -> None:
    deep = a_model(layers=24, width=2048, heads=16)
    kept, selective, full = (
        allocated(deep, a_training(checkpointing=kind, compiled=False))
        for kind in ("none", "selective", "full")
    )

    assert full < selective < kept


def test_compiling_never_takes_more_in_steady_state() -> None:
    for family, fields in FAMILIES.items():
        model = a_model(**fields)
        for dtype in ("float32", "bfloat16"):
            for casts in ("autocast", "none"):
                eager = a_training(compiled=False, dtype=dtype, casts=casts)
                assert allocated(model, replace(eager, compiled=True)) <= allocated(model, eager), family


# -- as published: two rows that differ in one thing alone -------------------------------------------------

COUNTERS = ("allocated_peak", "reserved_peak", "nvidia-smi")
OUTCOMES = {
    "id", "source_path", "commit_if_known", "source_repo_or_url", "n_params", "global_batch_tokens",
    "grad_accum", "peak_mem_gib", "tokens_per_s_per_gpu", "step_ms", "mfu", "hfu", "notes",
}  # fmt: skip
NOISE_FRAC = 0.02  # three maintainers of one recipe differ by more
LEAST = {"batch": 15, "compile": 2, "chunked loss": 1, "8-bit Adam": 1, "4-bit weights": 8, "adapter": 4}


def what_changed(column: str, before: Row, after: Row) -> str | None:
    """The published change two rows show, if it is one of those that have a known direction."""
    was, now = before[column].lower(), after[column].lower()
    if column == "micro_batch_per_gpu":
        return "batch"
    if column == "seq_len":
        return "length"
    if column == "activation_checkpointing":
        return "checkpointing"
    if column == "compile" and {was, now} <= {"yes", "no"}:
        return "compile"
    if column == "fused_ce_or_chunked_loss":
        return "chunked loss"
    if column == "optimizer" and ("8bit" in was) != ("8bit" in now):
        return "8-bit Adam"
    if column == "precision" and ("nf4" in was) != ("nf4" in now):
        return "4-bit weights"
    if column == "model" and ("adapter v2" in was) != ("adapter v2" in now) and "litgpt" in before["id"]:
        return "adapter"
    return None


def pairs(shared_data: Path) -> Iterator[tuple[str, Row, Row]]:
    runs = shared_data / "runs"
    strict = {
        row["id"] for row in read_rows(runs / "quality.csv", needed=("id",)) if row["strict_test"] == "memory"
    }
    rows = [
        row
        for row in read_rows(runs / "training_runs.csv")
        if row["id"] in strict and row["mem_kind"] in COUNTERS
    ]
    for before, after in combinations(rows, 2):
        differ = [key for key in before if key not in OUTCOMES and before[key] != after[key]]
        if len(differ) == 1 and before["id"].split("-")[0] == after["id"].split("-")[0]:
            name = what_changed(differ[0], before, after)
            if name is not None:
                yield name, before, after


def predicted(row: Row) -> float:
    run = understand(row)
    memory = estimate(run.model, run.training, run.gpu, correction=None).memory
    counters = (memory.allocated_bytes, memory.reserved_bytes, memory.device_bytes)
    return counters[COUNTERS.index(row["mem_kind"])].likely


def test_every_published_change_goes_the_way_it_was_measured(shared_data: Path) -> None:
    seen: dict[str, int] = {}
    wrong = []
    for name, before, after in pairs(shared_data):
        measured = float(after["peak_mem_gib"]) / float(before["peak_mem_gib"]) - 1
        if abs(measured) <= NOISE_FRAC:
            continue
        try:
            ours = predicted(after) / predicted(before) - 1
        except Skipped:
            continue
        seen[name] = seen.get(name, 0) + 1
        if measured * ours <= 0:
            wrong.append(f"{name}: {before['id']} to {after['id']} {measured:+.1%}, we say {ours:+.1%}")

    assert not wrong
    for name, least in LEAST.items():
        assert seen.get(name, 0) >= least, seen


@pytest.mark.parametrize("change", ["batch", "8-bit Adam", "chunked loss", "compile"])
def test_a_published_change_is_right_in_size_too(shared_data: Path, change: str) -> None:
    """Half to twice what was measured: saying 'saves memory' is not enough."""
    for name, before, after in pairs(shared_data):
        measured = float(after["peak_mem_gib"]) - float(before["peak_mem_gib"])
        if name != change or abs(measured) <= 4 * NOISE_FRAC * float(before["peak_mem_gib"]):
            continue
        ours = (predicted(after) - predicted(before)) / 2**30
        assert 0.5 < ours / measured < 2, f"{before['id']} to {after['id']}: {measured:.2f} GiB, {ours:.2f}"


def test_eager_cross_entropy_takes_as_many_copies_of_the_logits_as_measured(shared_data: Path) -> None:
    with (shared_data / "runs" / "kernel_memory.csv").open(newline="", encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["kernel"], row["provider"], row["mode"], row["x_name"])
            == ("cross_entropy", "huggingface", "full", "V")
        ]
    ours = logits_bytes_per_number(a_training(dtype="float32", compiled=False))["backward"]

    assert len(rows) >= 6
    for row in rows:
        config = json.loads(row["config_json"])
        logits = config["B"] * config["T"] * int(row["x_value"])
        # Its logits are a leaf that still holds the gradient of the run before: a copy no training loop has.
        assert ours + 4 == pytest.approx(float(row["median"]) * MIB / logits, rel=0.01)


FASTER_FRAC = 0.10  # published rates of one setting differ by several per cent


def test_a_card_a_format_a_batch_or_compiling_makes_a_run_faster_as_published(shared_data: Path) -> None:
    """Length is left out: a micro-batch of one short sequence is bound by what no row tells."""
    runs = shared_data / "runs"
    marks = {row["id"]: row for row in read_rows(runs / "quality.csv", needed=("id",))}
    rows = [
        row for row in read_rows(runs / "training_runs.csv") if marks[row["id"]]["throughput_test"] == "yes"
    ]
    seen: dict[str, int] = {}
    for before, after in combinations(rows, 2):
        differ = [key for key in before if key not in SPEED_OUTCOMES and before[key] != after[key]]
        if len(differ) != 1 or before["id"].split("-")[0] != after["id"].split("-")[0]:
            continue
        (column,) = differ
        if column not in ("gpu", "precision", "micro_batch_per_gpu", "compile"):
            continue
        measured = float(after["tokens_per_s_per_gpu"]) / float(before["tokens_per_s_per_gpu"]) - 1
        if abs(measured) <= FASTER_FRAC or "thunder" in after["compile"]:
            continue
        seen[column] = seen.get(column, 0) + 1
        ours = predicted_rate(after) / predicted_rate(before) - 1
        assert measured * ours > 0, f"{column}: {before['id']} to {after['id']} {measured:+.0%}, {ours:+.0%}"

    assert sum(seen.values()) >= 20, seen


SPEED_OUTCOMES = OUTCOMES - {"grad_accum"} | {"mem_kind"}


def predicted_rate(row: Row) -> float:
    run = understand(row)
    return (
        estimate(run.model, run.training, run.gpu, correction=None).speed.tokens_per_s.likely
        / run.training.gpus
    )


def test_longer_sequences_and_adapters_go_the_published_way_whatever_the_counter(shared_data: Path) -> None:
    """Tables that do not name their counter still order their own rows: by length, and by what is trained."""
    rows = [
        row
        for row in read_rows(shared_data / "runs" / "training_runs.csv")
        if row["id"].startswith("qwen-") and row["peak_mem_gib"] and row["d_model"]
    ]
    seen = {"seq_len": 0, "model": 0}
    for before, after in combinations(rows, 2):
        differ = {key for key in before if key not in OUTCOMES and before[key] != after[key]}
        same_size = before["model"].split()[0] == after["model"].split()[0]
        if differ == {"seq_len"}:
            change = "seq_len"
        elif same_size and "model" in differ and differ <= {"model", "precision", "optimizer"}:
            change = "model"  # full, LoRA or Q-LoRA
        else:
            continue
        measured = float(after["peak_mem_gib"]) / float(before["peak_mem_gib"]) - 1
        if abs(measured) > NOISE_FRAC:
            seen[change] += 1
            ours = reserved(after) / reserved(before) - 1
            assert measured * ours > 0, f"{before['id']} to {after['id']} {measured:+.0%}, {ours:+.0%}"

    assert seen["seq_len"] >= 40, seen
    assert seen["model"] >= 5, seen


def reserved(row: Row) -> float:
    run = understand(row)
    return estimate(run.model, run.training, run.gpu, correction=None).memory.reserved_bytes.likely
