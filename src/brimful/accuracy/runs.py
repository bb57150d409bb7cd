"""A table of published or own measurements, one run per row: what `brimful runs score` predicts.

The words in such tables are other people's. Each column is read by the words known here; an unknown word gets
a named fallback and is listed. Notes are never read.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from brimful.configs.files import read_bytes
from brimful.configs.reading import Reading
from brimful.configs.settings import apply_settings, parse_sets
from brimful.errors import BadInput, BrimfulError, NotFound
from brimful.fit.count import parameters
from brimful.language import Quoted, Sentence, say
from brimful.specs.framework import Framework, framework_at
from brimful.specs.gpu import Gpu, find_gpu
from brimful.specs.model import Model
from brimful.specs.torch import CURRENT, Torch, find_torch
from brimful.specs.training import Training

MAX_BYTES = 64 << 20
NEEDED = ("id", "model", "gpu", "seq_len", "micro_batch_per_gpu")

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row, understood: what to predict, and what was assumed."""

    model: Model
    training: Training
    gpu: Gpu
    fallbacks: tuple[Sentence, ...] = ()


class Skipped(Exception):
    """The row cannot be predicted, with the reason."""

    def __init__(self, said: Sentence) -> None:
        super().__init__(said)
        self.said = said


@dataclass(slots=True)
class _Reader:
    """Reads one row, collecting what had to be assumed."""

    row: Row
    fallbacks: list[Sentence] = field(default_factory=list)

    def text(self, column: str) -> str:
        return (self.row.get(column) or "").strip()

    def words(self, column: str) -> str:
        return self.text(column).lower()

    def integer(self, column: str, fallback: int | None = None) -> int:
        text = self.text(column).replace(",", "")
        try:
            said = float(text) if len(text) < 20 else 0.0
            value = round(said)
        except (ValueError, OverflowError):
            said, value = 0.0, 0
        if 0 < value < 10**15 and (value == said or fallback is not None):
            if value != said:
                self.assume(column, value)
            return value
        if fallback is None:
            if not text:
                raise Skipped(say("accuracy.column_empty", column=column))
            raise Skipped(say("accuracy.column_is", column=column, value=Quoted(text[:30])))
        if text:
            self.assume(column, fallback)
        return fallback

    def assume(self, column: str, taken: object) -> None:
        written = Quoted(self.text(column)[:40])
        self.fallbacks.append(say("accuracy.taken_as", column=column, written=written, taken=taken))


def read_rows(path: Path, needed: Sequence[str] = NEEDED) -> Iterator[Row]:
    """The rows of a CSV, unchanged."""
    raw = read_bytes(path, what=say("accuracy.runs_file"), most=MAX_BYTES)
    try:
        rows = csv.DictReader(io.StringIO(raw.decode("utf-8-sig"), newline=""))
        missing = [name for name in needed if name not in (rows.fieldnames or [])]
        if missing:
            raise no_column(path, missing, needed)
        yield from rows
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(say("accuracy.not_csv", path=path, error=error)) from error


def no_column(path: Path, missing: Sequence[str], needed: Sequence[str]) -> BadInput:
    columns = {"missing": ", ".join(missing), "needed": ", ".join(needed)}
    return BadInput(say("accuracy.no_column", path=path, **columns))


def understand(row: Row) -> Run:
    """What the row describes, or Skipped with the reason."""
    reader = _Reader(row)
    gpu = _gpu(reader)
    model = _model(reader)
    try:
        training = _training(reader)
    except AssertionError as error:
        raise Skipped(say("accuracy.contradicts_itself", problem=str(error))) from error
    model, training = _overruled(reader, model, training)
    return Run(model=model, training=training, gpu=gpu, fallbacks=tuple(reader.fallbacks))


def _overruled(reader: _Reader, model: Model, training: Training) -> tuple[Model, Training]:
    """The column `set`, in the syntax of `fit --set`, for what has no column."""
    words = [word for word in reader.text("set").split(";") if word.strip()]
    if not words:
        return model, training
    try:
        found = apply_settings(
            Reading(model=model, training=training, assumed=(), warnings=()), parse_sets(words)
        )
    except (BrimfulError, AssertionError) as error:
        raise Skipped(say("accuracy.set_unreadable", problem=str(error))) from error
    return found.model, found.training


def _gpu(reader: _Reader) -> Gpu:
    name = reader.text("gpu")
    if not name:
        raise Skipped(say("accuracy.no_gpu"))
    # '(280 W cap)', '(as stated)': remarks that people add after the name
    plain = re.sub(r"\s*\(.*?\)", "", name)
    sized = re.search(r"\(.*?\d ?gi?b.*?\)", name.lower()) is not None
    # Each way to read the name, and whether a size was invented or lost by it.
    tries = (
        (name, False), (plain, sized), (f"{plain}-80gb", True), (re.sub(r"-\d+GB.*$", "", plain), True)
    )  # fmt: skip
    for each, guessed in tries:
        try:
            gpu = find_gpu(each)
        except NotFound:
            continue
        if guessed:
            reader.assume("gpu", gpu.name)
        return gpu
    raise Skipped(say("accuracy.gpu_unknown", name=Quoted(name[:40])))


# -- the model ---------------------------------------------------------------------------------------------

_LLAMA = {"gated": True, "norm": "rms", "rotary": True, "bias": False}
# Families by a word in the name; the first that matches. Sizes come from the row.
_FAMILIES: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"bert", {"encoder": True, "bias": True, "positions": 512, "segments": 2, "dropout": 0.1,
               "attention_dropout": 0.1}),
    (r"gpt-?neo\b|gpt-neo-", {"bias": True, "qkv_bias": False, "positions": 2048, "gelu_tensors": 4,
                               "writes_scores": True}),
    (r"cerebras", {"bias": True, "positions": 2048, "dropout": 0.0}),
    (r"\bmpt", {"bias": False}),
    (r"opt-", {"bias": True, "positions": 2050}),
    (r"falcon", {"bias": False, "norm_bias": True, "rotary": True, "parallel": True, "norms": 1}),
    (r"stablelm|pythia|neox|dolly", {"bias": True, "rotary": True, "parallel": True}),
    (r"phi-?(1|2)\b|phi-1\.5", {"bias": True, "rotary": True, "parallel": True, "norms": 1,
                                "head_bias": True}),
    (r"gemma-?2", {**_LLAMA, "norms": 4, "capped": True}),
    (r"qwen-?3", {**_LLAMA, "qk_norm": True}),
    (r"qwen", {**_LLAMA, "qkv_bias": True}),
    (r"llama|mistral|yi-|gemma|phi-?[34]|smollm|deepseek", _LLAMA),
    (r"nanochat", {"rotary": True, "norm": "rms", "norm_weights": False, "bias": False,
                   "every_other_table": True}),
    (r"modded", {"rotary": True, "norm": "rms", "bias": False}),
    (r"gpt", {"bias": False, "positions": 1024}),
)  # fmt: skip


def _model(reader: _Reader) -> Model:
    name = reader.text("model")
    width = reader.integer("d_model")
    heads = reader.integer("n_head", max(1, width // 64))
    family = next((made for pattern, made in _FAMILIES if re.search(pattern, name.lower())), None)
    if family is None:
        family = {"bias": False}
        reader.assume("model", "GPT")
    fields: dict[str, Any] = {
        "name": name,
        "layers": reader.integer("n_layer"),
        "heads": heads,
        "kv_heads": reader.integer("n_kv_head", heads),
        "width": width,
        "mlp_width": reader.integer("d_ff", 4 * width),
        "vocab": reader.integer("vocab", 50304),
        "positions": 0,
        "tied": reader.words("tied_embeddings") in ("yes", "true", "1"),
        "bias": False,
        **family,
    }
    if fields.get("positions") and not fields.get("encoder"):
        fields["positions"] = max(fields["positions"], reader.integer("seq_len", 1))
    if fields.pop("every_other_table", False):
        fields["value_tables"] = -(-fields["layers"] // 2)  # the last layer has one
    if width % heads:
        fields["head_size"] = 128
    if re.search(r"classification", name.lower()):
        fields["classes"] = 2
    try:
        return _nearest(Model(**fields), reader)
    except AssertionError as error:
        raise Skipped(say("accuracy.shape_mismatch")) from error


def _nearest(model: Model, reader: _Reader) -> Model:
    """If the row states the number of parameters, the variant that comes nearest to it.

    Names do not always reveal a gated MLP, a tied table or a head size; the count does.
    """
    count = reader.integer("n_params", 1)
    if count == 1:
        return model
    variants = [
        replace(model, gated=gated, tied=tied, positions=positions, value_tables=tables)
        for gated in {model.gated, True}
        for tied in (model.tied, not model.tied)
        for positions in {model.positions, 0 if model.rotary else reader.integer("seq_len", 1)}
        for tables in {model.value_tables, 0}
    ]

    def distance(variant: Model) -> tuple[float, bool, bool, bool]:
        # Within two thousandths the count is not conclusive: keep what the name says.
        off = abs(parameters(variant) - count) / count
        rounded = 0.0 if off < 0.002 else off
        return rounded, variant.gated != model.gated, variant.tied != model.tied, variant != model

    best = min(variants, key=distance)
    if distance(best)[0] > 0.02:  # then the heads are wider or narrower than width / heads
        sizes = [replace(best, head_size=size) for size in (64, 80, 96, 128, 256)]
        best = min([best, *sizes], key=distance)
    return best


# -- how it is trained ------------------------------------------------------------------------------------


def _training(reader: _Reader) -> Training:
    code, torch = framework_at(reader.text("source_repo_or_url")), _torch(reader)
    fields: dict[str, Any] = {
        "batch_size": reader.integer("micro_batch_per_gpu"),
        "sequence_tokens": reader.integer("seq_len"),
        "accumulation": reader.integer("grad_accum", 1),
        "compiled": reader.words("compile").startswith("yes") or "cuda c" in reader.words("compile"),
        "attention": _attention(reader, torch),
        "framework": code,
        "torch": torch,
        "fp32_gradients": code.fp32_gradients or "fp32 grad" in reader.words("precision"),
        **_precision(reader),
        **_checkpointing(reader),
        **_loss(reader),
        **_optimizer(reader, torch),
        **_tuning(reader, code),
        **_parallel(reader),
    }
    if fields["sharding"] == "zero3" and fields["casts"] == "autocast":
        fields["casts"] = "gather"  # FSDP casts the weights as it gathers them
    return Training(**fields | _by_framework(reader, code, fields))


def _by_framework(reader: _Reader, code: Framework, fields: dict[str, Any]) -> dict[str, Any]:
    """What the framework does whatever the row says or leaves open."""
    made: dict[str, Any] = {}
    adapted, sharded = fields["tuning"] != "full", fields["sharding"] == "zero3"
    if adapted and sharded and code.checkpoints_sharded and fields["checkpointing"] == "none":
        made["checkpointing"] = "full"
        reader.assume("activation_checkpointing", "full")
    whole_step = reader.integer("global_batch_tokens", 1)
    if fields["pipeline"] > 1 and whole_step > 1 and not reader.text("grad_accum"):
        split = fields["tensor"] * fields["pipeline"] * fields["context"]
        micro = fields["batch_size"] * fields["sequence_tokens"] * max(1, fields["gpus"] // split)
        made["accumulation"] = max(1, round(whole_step / micro))
        reader.assume("grad_accum", made["accumulation"])
    elif fields["pipeline"] > 1 and code.stages_cut_batch and not reader.text("grad_accum"):
        whole, stages = fields["batch_size"], fields["pipeline"] * fields["virtual_stages"]
        made |= {"batch_size": max(1, whole // stages), "accumulation": min(whole, stages)}
        reader.assume("grad_accum", made["accumulation"])
    if adapted and code.global_batch and not reader.text("grad_accum"):
        made["accumulation"] = max(1, code.global_batch // (fields["batch_size"] * fields["gpus"]))
        reader.assume("grad_accum", made["accumulation"])
    return made


def _precision(reader: _Reader) -> dict[str, Any]:
    words = reader.words("precision")
    dtype = "float16" if "fp16" in words and "bf16" not in words else "bfloat16"
    fields: dict[str, Any] = {
        "dtype": dtype,
        "casts": "none",
        "fp8": bool(re.search(r"fp8|float8|fp4", words)),
    }
    if not words:
        reader.assume("precision", "amp_bf16")
        fields["casts"] = "autocast"
    elif words.startswith("fp32") and "mixed" not in words:
        fields |= {"dtype": "float32", "tf32": "tf32" in words}
    elif "params" in words and "mixed" in words:
        fields["casts"] = "gather"
    elif "pure" in words:
        fields["casts"] = "none"
    elif "amp" in words or "mixed" in words:
        fields["casts"] = "none" if "bf16 base" in words else "autocast"
    elif "compute" in words and "master" in words:
        fields["casts"] = "autocast"  # fp32 weights cast where they are used, whichever code does the casting
    elif "master" in words:
        fields["master_weights"] = True
    if re.search(r"nf4|int4|4-bit", words):
        fields["frozen_bits"] = 4
        fields["double_quantized"] = bool(re.search(r"nf4-dq|double", words))
    if "fp32 adapter" in words:
        fields["adapter_dtype"] = "float32"
    return fields


def _checkpointing(reader: _Reader) -> dict[str, Any]:
    words = reader.words("activation_checkpointing")
    kind = next((kind for kind in ("full", "selective") if words.startswith(kind)), "none")
    if words and kind == "none" and not words.startswith("none"):
        reader.assume("activation_checkpointing", "none")
    return {"checkpointing": kind, "offload_activations": "offload" in words}


def _loss(reader: _Reader) -> dict[str, Any]:
    words = reader.words("fused_ce_or_chunked_loss")
    sharded = "fsdp" in reader.words("parallelism")
    return {
        "loss_chunks": 8 if "chunk" in words else 1,
        "fused_loss": "fused" in words,
        # Sharded runs compile layer by layer; a row that says the loss is plain means it. A loss spread over
        # tensor-parallel GPUs is not compiled.
        "loss_compiled": not (sharded and words == "no") and "tp x" not in reader.words("parallelism"),
    }


def _torch(reader: _Reader) -> Torch:
    """The release of PyTorch that the row names, else the current one. No other column implies it."""
    try:
        return find_torch(reader.text("torch"))
    except BadInput:
        reader.assume("torch", CURRENT.release)
        return CURRENT


def _attention(reader: _Reader, torch: Torch) -> str:
    words = reader.words("attention")
    return "math" if "math" in words or (not words and not torch.sdpa) else "flash"


# transformers' own AdamW and Adafactor are loops over the parameters (its optimization.py).
_LOOPS = re.compile(r"\b(hf|hugging ?face|transformers)\b")


def _optimizer(reader: _Reader, torch: Torch) -> dict[str, Any]:
    words = reader.words("optimizer")
    names = ("adafactor", "adam8bit", "muon", "lion", "sgd", "adamw", "adam")
    name = next((name for name in names if name in words), None)
    if "8bit" in words or "8-bit" in words:
        name = "adam8bit"
    if name is None:
        if words:
            reader.assume("optimizer", "AdamW")
        name = "adamw"
    loops = _LOOPS.search(words) is not None or not torch.foreach
    kernel = "fused" if "fused" in words else "loop" if loops else "foreach"
    fields: dict[str, Any] = {"optimizer": name, "optimizer_kernel": kernel}
    if "fp32" in words:
        fields["state_dtype"] = "float32"
        fields["master_weights"] = "master" in words
    return fields


def _tuning(reader: _Reader, code: Framework) -> dict[str, Any]:
    words = f"{reader.words('model')} {reader.words('optimizer')} {reader.words('precision')}"
    name = reader.words("model")
    if "adapter v2" in name or "ia3" in name:
        return {"tuning": "adapter", "targets": 7}
    quantized = bool(re.search(r"nf4|int4|4-bit", words))
    if re.search(r"\badapter\b", name):
        return {"tuning": "adapter"}
    if re.search(r"\bq?-?lora\b", words) or quantized:
        # A row rarely says which layers are adapted. Then it is what the framework's own recipe does;
        # otherwise the LoRA paper adapts queries and values, the QLoRA paper every linear layer.
        targets, rank = code.recipe(name)
        if "all-linear" in words:
            targets = 7
        paper = 7 if quantized else 2
        return {"tuning": "lora", "targets": targets or paper, "rank": rank or 8}
    if "adapter" in words or "lora" in words:
        return {"tuning": "adapter"}
    return {"tuning": "full"}


def _parallel(reader: _Reader) -> dict[str, Any]:
    words = reader.words("parallelism")
    # At most six digits of a number are read: no machine has more GPUs.
    sizes = {name: max(1, int(n)) for name, n in re.findall(r"\b(tp|pp|cp|vp) ?x?(\d{1,6})", words)}
    tensor, pipeline, context = sizes.get("tp", 1), sizes.get("pp", 1), sizes.get("cp", 1)
    # Megatron's tables name every degree: a pipeline of "vp 4" is interleaved, "vp 4, fsdp 0" is not sharded
    sharded = re.search(r"[fh]sdp", words) is not None and not re.search(r"\bvp [\w/]+, fsdp *(0|$)", words)
    gpus = _whole_gpus(reader, tensor * pipeline * context)
    rest = gpus // (tensor * pipeline * context)
    fields: dict[str, Any] = {
        "gpus": gpus,
        "tensor": tensor,
        "pipeline": pipeline,
        "context": context,
        "virtual_stages": (2 if "interleaved" in words else sizes.get("vp", 1)) if pipeline > 1 else 1,
        "sharding": "none",
        "offload_states": "offload" in words,
    }
    if stage := re.search(r"zero-?(\d{1,6})", words):
        fields |= _zero(reader, int(stage[1]), rest)
    elif "shard_grad_op" in words:
        fields |= {"sharding": "zero2", "shards": rest}
    elif sharded or "zero" in words:
        fields |= {"sharding": "zero3", "shards": rest * context}
    elif "distributed" in reader.words("optimizer") and rest * context > 1:
        fields |= {"sharding": "zero1", "shards": rest * context}  # Megatron's distributed optimizer
    elif "ddp" in words or (gpus > 1 and tensor * pipeline * context < gpus):
        fields["sharding"] = "ddp"
        if "ddp" not in words and "dp" not in words:
            reader.assume("parallelism", "DDP")
    return fields


def _whole_gpus(reader: _Reader, split: int) -> int:
    """GPUs of the run: at least as many as the split needs, with none left over."""
    said = reader.integer("n_gpus", 1)
    gpus = max(split, said - said % split)
    if gpus != said:
        reader.assume("n_gpus", gpus)
    return gpus


def _zero(reader: _Reader, stage: int, shards: int) -> dict[str, Any]:
    """DeepSpeed's stages: 0 copies everything, and there are three more."""
    if stage == 0:
        return {"sharding": "ddp"}
    if stage > 3:
        reader.assume("parallelism", "ZeRO-3")
    return {"sharding": f"zero{min(3, stage)}", "shards": shards}
