"""The oracle table: the closed form of `brimful fit` beside traces of the frameworks' own models.

    python -m tools.oracle draw       choose the configs by a seed, once; half are for the final report
    python -m tools.oracle trace      trace those without numbers (transformers, PEFT, LitGPT)
    python -m tools.oracle again 12   trace 12 rows again and report differences
    python -m tools.oracle            compare the closed form with the development half of the table
    python -m tools.oracle held       the other half: only for the report

The table is tests/accuracy/oracle.csv. Its configs were drawn before any formula was fixed for them.
"""

from __future__ import annotations

import csv
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from brimful.fit.memory import peak_memory
from brimful.specs.framework import find_framework
from brimful.specs.gpu import Gpu, find_gpu
from brimful.specs.model import Model
from brimful.specs.presets import Preset, all_presets, find_preset
from brimful.specs.training import Training
from brimful.units import GIB

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "accuracy" / "oracle.csv"
SEED, ROWS = 18, 320
GPUS = ("h100-sxm-80gb", "a100-sxm-80gb", "rtx-4090")
ROOM_BYTES = 4096 * GIB  # large enough for any config: whether a card has it does not matter here
LARGEST = 1_600_000_000  # parameters of the models drawn, if a family has any that small
SETTINGS = (
    *(
        "gpu",
        "framework",
        "model",
        "layers",
        "dtype",
        "casts",
        "attention",
        "checkpointing",
        "tuning",
        "rank",
    ),
    *("targets", "batch_size", "sequence_tokens", "accumulation", "optimizer", "optimizer_kernel"),
)
MEASURED = ("allocated_bytes", "reserved_bytes", "versions")
COLUMNS = ("id", "half", "depth", *SETTINGS, *MEASURED)
Row = dict[str, str]


# ---- configs


def draw() -> list[Row]:
    """Rows without numbers, always the same."""
    from brimful.tracing.models.programs import FAMILIES, why_not

    chance = random.Random(SEED)
    frameworks = ["transformers"] * 5 + ["pytorch", "litgpt"]
    rows: list[Row] = []
    while len(rows) < ROWS:
        framework = frameworks[len(rows) % len(frameworks)]
        families: Sequence[str] = FAMILIES if framework == "transformers" else ("gpt2",)
        if framework == "litgpt":
            families = ("llama", "gpt_neox")
        row = _drawn(chance, framework, chance.choice(families))
        if why_not(*case(row)[:2]) is None:
            rows.append({"id": str(len(rows)), "half": ("open", "held")[chance.random() < 0.5], **row})
    chance.shuffle(rows)
    return rows


def _drawn(chance: random.Random, framework: str, family: str) -> Row:
    preset = chance.choice(_small(family))
    whole = chance.random() < 0.2
    layers = preset.model.layers if whole else chance.choice((4, 6, 8))
    casts = chance.choice((("bfloat16", "autocast"), ("bfloat16", "none"), ("float32", "none")))
    if framework == "pytorch":
        casts = chance.choice((("bfloat16", "autocast"), ("bfloat16", "autocast"), ("float32", "none")))
    elif framework == "litgpt":
        casts = chance.choice((("bfloat16", "none"), ("bfloat16", "none"), ("float32", "none")))
    tokens = min(chance.choice((256, 512, 1024, 2048)), preset.context_tokens)
    batch = chance.choice([size for size in (1, 2, 4, 8, 16, 32) if size * tokens <= 16384])
    lora = chance.random() < 0.25
    return {
        "depth": "full" if whole else "cut",
        "gpu": chance.choice(GPUS), "framework": framework, "model": preset.model.name,
        "layers": str(layers), "dtype": casts[0], "casts": casts[1],
        "attention": "math" if framework != "litgpt" and chance.random() < 0.15 else "flash",
        "checkpointing": "full" if chance.random() < 0.3 else "none",
        "tuning": "lora" if lora else "full",
        "rank": str(chance.choice((8, 16, 64))), "targets": str(chance.choice((2, 4, 7))),
        "batch_size": str(batch), "sequence_tokens": str(tokens),
        "accumulation": str(chance.choice((1, 1, 2))),
        "optimizer": chance.choice(("adamw", "adamw", "adamw", "adamw", "sgd", "momentum")),
        "optimizer_kernel": chance.choice(("foreach", "fused")),
    }  # fmt: skip


def _small(family: str) -> list[Preset]:
    of_family = sorted(
        (each for each in all_presets() if each.family == family), key=lambda each: _numbers(each.model)
    )
    return [each for each in of_family if _numbers(each.model) <= LARGEST] or of_family[:1]


def _numbers(model: Model) -> int:
    from brimful.fit.count import parameters

    return parameters(model)


def case(row: Row) -> tuple[Model, Training, Gpu]:
    """A row in the closed form's terms."""
    model = replace(find_preset(row["model"]).model, layers=int(row["layers"]))
    if row["framework"] == "pytorch":
        model = replace(model, family="", gelu_tensors=1)
    adapter: dict[str, Any] = {}
    half, lora = row["dtype"] != "float32", row["tuning"] == "lora"
    chunks = 1
    if lora:
        # PEFT keeps its matrices in fp32, LitGPT in the weights' format.
        adapter = {"adapter_dtype": "float32"} if row["framework"] == "transformers" and half else {}
        chunks = -(-int(row["sequence_tokens"]) // 128) if row["framework"] == "litgpt" else 1
    numbers = ("batch_size", "sequence_tokens", "accumulation", "rank")
    words = ("dtype", "casts", "attention", "checkpointing", "tuning", "optimizer", "optimizer_kernel")
    settings: dict[str, Any] = {name: int(row[name]) for name in numbers}
    settings |= {name: row[name] for name in words}
    training = Training(
        **settings, targets=int(row["targets"]), compiled=False, loss_chunks=chunks, even_lengths=True,
        framework=find_framework(row["framework"]), **adapter,
    )  # fmt: skip
    return model, training, find_gpu(row["gpu"])


# ---- traces


def traced(row: Row) -> Row:
    import torch
    import transformers

    from brimful.allocator import Settings, run
    from brimful.tracing.cuda_device import cuda_device
    from brimful.tracing.models.programs import program
    from brimful.tracing.session import recording

    model, training, gpu = case(row)
    build = program(model, training)
    with recording(cuda_device(gpu), steps=10) as recorder:
        step = build()
        step()
        step()
    outcome = run(recorder.tape.requests(), Settings.parse(""))
    del step
    versions = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    if row["framework"] == "litgpt":
        from importlib.metadata import version

        versions = f"torch {torch.__version__.split('+')[0]}, litgpt {version('litgpt')}"
    return {
        "allocated_bytes": str(outcome.peak_allocated_bytes),
        "reserved_bytes": str(outcome.peak_reserved_bytes),
        "versions": versions,
    }


def fill() -> None:
    rows = read()
    for number, row in enumerate(rows):
        if row["allocated_bytes"]:
            continue
        start_s = time.process_time()
        try:
            row.update(traced(row))
        except Exception as error:  # noqa: BLE001  a framework's own refusal leaves the row empty
            print(row["id"], row["model"], type(error).__name__, str(error)[:200], flush=True)
            continue
        print(number, row["id"], row["model"], f"{time.process_time() - start_s:.1f} s", flush=True)
        write(rows)


def read() -> list[Row]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(rows: Iterable[Row]) -> None:
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


# ---- comparison


def compared(rows: Iterable[Row]) -> Iterator[tuple[Row, float, float]]:
    """Each row with the closed form's relative error for both counters."""
    for row in rows:
        if not row["allocated_bytes"]:
            continue
        model, training, gpu = case(row)
        if model.tied and not training.framework.ties:
            model = replace(model, tied=False)
        closed = peak_memory(model, training, gpu)
        yield (
            row,
            closed.allocated_bytes.likely / int(row["allocated_bytes"]) - 1,
            closed.reserved_bytes.likely / int(row["reserved_bytes"]) - 1,
        )


def summary(errors: Sequence[float]) -> tuple[float, float, float]:
    """Median, 90th percentile and worst of the absolute errors."""
    sizes = sorted(map(abs, errors))
    return statistics.median(sizes), sizes[round(0.9 * (len(sizes) - 1))], sizes[-1]


def show(half: str) -> None:
    found = [each for each in compared(read()) if each[0]["half"] == half]
    groups = {"all": found, "full depth": [each for each in found if each[0]["depth"] == "full"]}
    for name in ("framework", "tuning", "checkpointing", "dtype", "casts", "attention", "optimizer_kernel"):
        for value in sorted({row[name] for row, _, _ in found}):
            groups[f"{name} {value}"] = [each for each in found if each[0][name] == value]
    if half == "open":
        for family in sorted({find_preset(row["model"]).family for row, _, _ in found}):
            groups[family] = [each for each in found if find_preset(each[0]["model"]).family == family]
    for name, some in groups.items():
        if some:
            allocated = summary([error for _, error, _ in some])
            reserved = summary([error for _, _, error in some])
            shown = " / ".join(f"{100 * e:.1f}" for e in allocated)
            print(f"{name:24} n={len(some):3} allocated {shown:22} reserved", end=" ")
            print(" / ".join(f"{100 * e:.1f}" for e in reserved))


def main() -> None:
    verb = sys.argv[1] if len(sys.argv) > 1 else "open"
    if verb == "draw":
        assert not TABLE.exists(), "the configs are drawn already"
        write(draw())
    elif verb == "trace":
        fill()
    elif verb == "again":
        rows = random.Random(0).sample([row for row in read() if row["allocated_bytes"]], int(sys.argv[2]))
        for row in rows:
            print(
                row["id"], {name: (row[name], new) for name, new in traced(row).items() if row[name] != new}
            )
    else:
        show(verb)


if __name__ == "__main__":
    main()
