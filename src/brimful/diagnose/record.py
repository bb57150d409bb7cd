"""A measured run as rows of the table that `score` and `calibrate` read.

The table has a published format, so its vocabulary is limited. Each row is read back the way `score` will
read it; what it cannot express is reported, not hidden.
"""

from __future__ import annotations

import csv
import fcntl
import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from brimful.accuracy.runs import MAX_BYTES, NEEDED, Skipped, no_column, understand
from brimful.configs.reading import Reading, own_lines
from brimful.errors import BadInput, Refused
from brimful.files import write_whole
from brimful.fit.count import parameters
from brimful.language import Number, Plain, Sentence, Several, say
from brimful.language.failures import os_errors_as
from brimful.meter.samples import EndSample, RunSample, Sample, StepSample
from brimful.specs.gpu import Gpu
from brimful.specs.model import Model
from brimful.specs.training import Training
from brimful.units import GIB

# Those of the published table, the release of PyTorch, and our own settings for what no column can express.
COLUMNS = (
    "id", "source_repo_or_url", "source_path", "commit_if_known", "model", "n_params", "n_layer", "n_head",
    "n_kv_head", "d_model", "d_ff", "vocab", "tied_embeddings", "seq_len", "micro_batch_per_gpu",
    "grad_accum", "global_batch_tokens", "optimizer", "precision", "activation_checkpointing", "attention",
    "compile", "parallelism", "fused_ce_or_chunked_loss", "gpu", "n_gpus", "peak_mem_gib", "mem_kind",
    "tokens_per_s_per_gpu", "step_ms", "mfu", "hfu", "notes", "torch", "set",
)  # fmt: skip
_OPTIMIZERS = {"adam8bit": "Adam8bit", "sgd": "SGD", "momentum": "SGD", "lion": "Lion", "muon": "Muon",
               "adafactor": "Adafactor", "adam": "Adam"}  # fmt: skip
# Words that make a reader of the table recognise the right family; the first that reads back correctly is
# used.
_FAMILY_WORDS = (
    "", "gpt ", "llama ", "qwen ", "qwen3 ", "gemma2 ", "mpt ", "opt- ", "pythia ", "falcon ",
    "cerebras ", "bert ",
)  # fmt: skip
_NOT_SET = frozenset({"framework", "torch", "loss_compiled"})
_MODEL_WORDS = (
    "heads", "kv_heads", "head_size", "width", "mlp_width", "vocab", "positions", "tied", "bias", "gated",
    "rotary", "dropout", "attention_dropout", "gelu_tensors",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The rows, and what they cannot express about the run."""

    rows: tuple[dict[str, str], ...]
    unsaid: tuple[Sentence, ...]


def rows_of(samples: Sequence[Sample], reading: Reading, gpu: Gpu, *, source: str) -> Recorded:
    """One row for each memory counter that was read; speed is in the first."""
    run, steps, end = _run(samples)
    training = reading.training
    _agree(run, steps, training)
    first = _described(run, reading, gpu)
    first |= _speed(steps, training)
    stamp = datetime.fromtimestamp(run.at_s, UTC).strftime("%Y%m%dT%H%M%S")
    name = f"{source}-{stamp}-{run.pid}"
    rows: list[dict[str, str]] = []
    for kind, peak in _peaks(steps, end):
        row = {**first, "id": f"{name}-{kind}" if rows else name, "mem_kind": kind}
        if peak is not None:
            row["peak_mem_gib"] = f"{peak / GIB:.4f}"
        if rows:
            row |= dict.fromkeys(("tokens_per_s_per_gpu", "step_ms", "mfu", "hfu"), "")
        rows.append(row)
    return Recorded(rows=tuple(rows), unsaid=tuple(_unsaid(rows[0], reading, gpu)))


def _run(samples: Sequence[Sample]) -> tuple[RunSample, list[StepSample], EndSample | None]:
    run: RunSample | None = None
    steps: list[StepSample] = []
    end: EndSample | None = None
    for sample in samples:
        if isinstance(sample, RunSample):
            run, steps, end = sample, [], None
        elif isinstance(sample, StepSample) and not sample.warmup:
            steps.append(sample)
        elif isinstance(sample, EndSample):
            end = sample
    if run is None or len(steps) < 5:
        raise Refused(say("accuracy.too_few_steps", steps=len(steps)), code="too_few_steps")
    return run, steps, end


def _agree(run: RunSample, steps: Sequence[StepSample], training: Training) -> None:
    """The config must be that of the run: a step must have as many tokens."""
    counted = {step.tokens for step in steps if step.tokens}
    each = training.step_tokens // training.data_parallel
    if counted and counted != {each}:
        shown = Several(tuple(Number(n) for n in sorted(counted)[:3]), between=" / ")
        said = say("accuracy.other_tokens", each=Number(each), shown=shown)
        raise Refused(said, code="another_config")
    if run.world != training.gpus:
        raise Refused(say("accuracy.other_gpus", gpus=training.gpus, world=Plain(run.world)))


def _peaks(steps: Sequence[StepSample], end: EndSample | None) -> Iterator[tuple[str, int | None]]:
    samples: list[StepSample | EndSample] = [*steps, *([end] if end else [])]
    reserved = [peak for each in samples if (peak := each.peak_reserved_bytes) is not None]
    allocated = [peak for each in samples if (peak := each.peak_allocated_bytes) is not None]
    if reserved:
        yield "reserved_peak", max(reserved)
    if allocated:
        yield "allocated_peak", max(allocated)
    if not reserved and not allocated:
        yield "fits", None


def _speed(steps: Sequence[StepSample], training: Training) -> dict[str, str]:
    step_s = fmean(step.step_s for step in steps)
    mfu = [step.mfu for step in steps if step.mfu is not None]
    hfu = [step.hfu for step in steps if step.hfu is not None]
    return {
        "tokens_per_s_per_gpu": f"{training.step_tokens / training.gpus / step_s:.1f}",
        "step_ms": f"{1000 * step_s:.3f}",
        "mfu": f"{fmean(mfu):.4f}" if mfu else "",
        "hfu": f"{fmean(hfu):.4f}" if hfu else "",
    }


def _described(run: RunSample, reading: Reading, gpu: Gpu) -> dict[str, str]:
    model, training = reading.model, reading.training
    row = dict.fromkeys(COLUMNS, "") | {
        "model": _adapted(model.name, training),
        "n_params": str(parameters(model)),
        "n_layer": str(model.layers),
        "n_head": str(model.heads),
        "n_kv_head": str(model.kv_heads),
        "d_model": str(model.width),
        "d_ff": str(model.mlp_width),
        "vocab": str(model.vocab),
        "tied_embeddings": _yes(model.tied),
        "seq_len": str(training.sequence_tokens),
        "micro_batch_per_gpu": str(training.batch_size),
        "grad_accum": str(training.accumulation),
        "global_batch_tokens": str(training.step_tokens),
        "optimizer": _optimizer(training),
        "precision": _precision(training),
        "activation_checkpointing": training.checkpointing,
        "attention": "math" if training.attention == "math" else "flash",
        "compile": _yes(training.compiled),
        "parallelism": _parallelism(training),
        "fused_ce_or_chunked_loss": "fused"
        if training.fused_loss
        else "chunked"
        if training.loss_chunks > 1
        else "no",
        "gpu": gpu.name,
        "n_gpus": str(training.gpus),
        "torch": run.torch,
        "notes": f"measured by brimful's Meter; FLOPs: {run.flops_source or 'unknown'}",
    }
    named = [_overruled({**row, "model": f"{word}{row['model']}"}, reading) for word in _FAMILY_WORDS]
    return min(named, key=lambda pair: pair[0])[1]


def _overruled(row: dict[str, str], reading: Reading) -> tuple[tuple[int, int], dict[str, str]]:
    """The row with corrections, in the syntax of `fit --set`, for columns that read back differently.

    And how far off it is: facts of the model it gets wrong, then how many settings the rest needs.
    """
    ours = reading.model
    with suppress(Skipped):
        found = understand(row)
        now, then = own_lines(found.training), own_lines(reading.training)
        words = [f"{key}={then[key]}" for key in then if now.get(key) != then[key] and key not in _NOT_SET]
        differ = [name for name in _MODEL_WORDS if getattr(ours, name) != getattr(found.model, name)]
        words += [f"{name}={getattr(ours, name)}" for name in differ]
        row = row | {"set": ";".join(words)}
        model = replace(understand(row).model, name=ours.name)
        wrong = sum(getattr(model, each.name) != getattr(ours, each.name) for each in fields(ours))
        return (wrong, len(row["set"])), row
    return (len(_FAMILY_WORDS) * 100, 0), row


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _adapted(name: str, training: Training) -> str:
    if training.tuning == "full":
        return name
    return f"{name} {'QLoRA' if training.frozen_bits else 'LoRA' if training.tuning == 'lora' else 'adapter'}"


def _optimizer(training: Training) -> str:
    name = _OPTIMIZERS.get(training.optimizer, "AdamW")
    kernel = {"fused": " fused", "foreach": "", "loop": " (transformers)"}[training.optimizer_kernel]
    states = " (fp32 states)" if training.state_dtype == "float32" else ""
    return f"{name}{kernel}{states}"


def _precision(training: Training) -> str:
    if training.dtype == "float32":
        return "fp32"
    short = "bf16" if training.dtype == "bfloat16" else "fp16"
    words = {"autocast": f"amp_{short}", "gather": f"{short} params, mixed", "none": f"pure {short}"}[
        training.casts
    ]
    words += " + nf4 weights" if training.frozen_bits == 4 else ""
    return words + (" + fp8" if training.fp8 else "")


def _parallelism(training: Training) -> str:
    named = {"none": "", "ddp": "ddp", "zero1": "zero-1", "zero2": "zero-2", "zero3": "fsdp"}[
        training.sharding
    ]
    splits = {"tp": training.tensor, "pp": training.pipeline, "cp": training.context}
    return " ".join([*([named] if named else []), *(f"{name} x{n}" for name, n in splits.items() if n > 1)])


def _unsaid(row: dict[str, str], reading: Reading, gpu: Gpu) -> Iterator[Sentence]:
    """Where the table's vocabulary falls short: fields that will be read back differently."""
    try:
        found = understand(row)
    except Skipped as why:
        yield say("accuracy.not_predicted", why=why.said)
        return
    pairs: list[tuple[Model | Training, Model | Training]] = [
        (replace(reading.model, name=found.model.name), found.model),
        (replace(reading.training, framework=found.training.framework), found.training),
    ]
    for ours, theirs in pairs:
        for each in fields(ours):
            was, read = getattr(ours, each.name), getattr(theirs, each.name)
            if was != read and each.name not in ("tf32", "torch", "loss_compiled"):
                yield say("accuracy.read_otherwise", field=each.name, was=was, read=read)
    if found.gpu.name != gpu.name:
        yield say("accuracy.read_otherwise", field="gpu", was=gpu.name, read=found.gpu.name)


def append_rows(path: Path, rows: Sequence[dict[str, str]]) -> list[str]:
    """Add rows to a table, all or none; returns the ids that were not there yet.

    A run that is already there is not written twice. Concurrent writers take turns.
    """
    with os_errors_as("language.cannot_write", path=path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            before = path.read_bytes() if path.exists() else b""
            if len(before) > MAX_BYTES:
                raise BadInput(
                    say("accuracy.too_large", path=path, size=Number(len(before)), most=Number(MAX_BYTES))
                )
            try:
                after, new = _added(before.decode("utf-8-sig"), rows, path)
            except UnicodeDecodeError as error:
                raise BadInput(say("accuracy.not_csv", path=path, error=error)) from error
            if new:
                write_whole(path, after, mode=path.stat().st_mode & 0o777 if path.exists() else 0o644)
            return new


def _added(before: str, rows: Sequence[dict[str, str]], path: Path) -> tuple[str, list[str]]:
    table = csv.DictReader(io.StringIO(before, newline=""))
    header = list(table.fieldnames or COLUMNS)
    needed = (*NEEDED, "n_layer", "d_model")
    if missing := [column for column in needed if column not in header]:
        raise no_column(path, missing, needed)
    known = {row.get("id") for row in table}
    new = [row for row in rows if row["id"] not in known]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, header, extrasaction="ignore", lineterminator="\n")
    if not before.strip():
        writer.writeheader()
    for row in new:
        writer.writerow({column: re.sub(r"[\r\n]+", " ", row.get(column, "")) for column in header})
    joint = "" if not before or before.endswith("\n") else "\n"
    return before + joint + text.getvalue(), [row["id"] for row in new]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
