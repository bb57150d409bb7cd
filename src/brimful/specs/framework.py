"""`Framework`: what a training framework's own code decides, where neither model nor settings do.

The same Llama, batch and length take a fifth more in one framework than in another: keys expanded for every
query head, a tied table stored twice, inputs of 4-bit layers kept for two steps. Each such fact is in
`frameworks.toml` with the file it was read in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from brimful.errors import NotFound
from brimful.language import Quoted, say
from brimful.language.near import similar
from brimful.specs.names import read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """The defaults are plain PyTorch, written the way the formulas of `predict` assume."""

    name: str = "pytorch"
    title: str = "plain PyTorch"
    known_as: tuple[str, ...] = ()  # parts of a repository's name or address
    # -- a layer
    fused_qkv: bool = True  # one matrix computes q, k and v: what keeps v keeps the buffer of all three
    fused_families: tuple[str, ...] = ()  # families with it, if the others have three matrices
    repeats_keys: bool = False  # eager code expands grouped keys and values for every query head
    copies_attention: bool = False  # heads are concatenated into a new buffer for the output matrix
    copying_families: tuple[str, ...] = ()  # families that copy, if the others do not
    groups_in_kernel: bool = False  # attention gets grouped keys, which only flash attention supports
    norm_value_fp32: bool = False  # a trained rms norm keeps its normalized value in fp32
    fused_gelu: bool = False  # torch's kernel even where transformers writes tanh-GELU in Python
    caps_scores: bool = False  # soft-capped attention (Gemma 2) materialises the score matrix
    triton_attention: bool = False  # the first FlashAttention, in Triton's version
    fused_norms: bool = False  # one kernel each for norms and rotary positions, even without a compiler
    # -- tables and logits
    ties: bool = True  # a tied table is stored once
    narrow_tables: bool = False  # lookup-only tables are bf16 if matmuls are
    fp32_loss: bool = True  # 16-bit training: the loss runs in fp32; else in the logits' own format
    slices_loss: bool = False  # the loss processes slices of the logits, one after the other
    plain_loss_families: tuple[str, ...] = ()  # families whose loss takes the logits as they are
    casts_logits: bool = False  # autocast: the loss casts the logits to fp32 itself, before its softmax
    fp32_logits: bool = True  # 16-bit training: the model returns fp32 logits, alive in the backward pass
    returns_loss: bool = False  # the model returns only the loss: nothing outside it holds logits
    drops_logits: bool = False  # the loop drops the logits before the backward pass
    # -- adapters
    lora_targets: int | None = None  # linear layers that LoRA adapts by default; None: the papers'
    lora_rank: int | None = None
    lora_dropout: bool | None = None  # None: unless the adapter is fp32, as PEFT's is
    lora_shares_inputs: bool = False  # layers with the same input share what LoRA keeps of it
    lora_pads: bool = False  # q and v only: LoRA's output is copied into a padded one, and kept for it
    scales_output: bool = False  # a scaling adapter (Adapter v2) also scales the logits, and keeps them
    adapter_first_layer: int = 0  # of LLaMA-Adapter: layers before it need no backward pass
    recipes: tuple[tuple[str, int, int], ...] = ()  # part of a model's name -> targets, rank
    # -- 4-bit weights
    quantizes_output: bool = False  # the output projection too
    double_quantizes: bool = False  # the scales too, whatever the settings say
    quantized_inputs: int = 1  # copies of each 4-bit layer's input alive at the peak
    dequantized_copies: int = 1  # 16-bit copies of a 4-bit matrix during its matmul
    # -- several GPUs and micro-steps
    whole_gradients: bool = False  # sharded: gradients of earlier micro-steps wait unsharded, frozen ones too
    checkpoints_sharded: bool = False  # sharded adapter runs are always checkpointed, layer by layer
    # Adapter runs compute logits and loss for this many positions at a time.
    loss_chunk_tokens: int | None = None
    stages_cut_batch: bool = (
        False  # pipeline: the batch is split into as many micro-batches as there are stages
    )
    fp32_gradients: bool = False  # gradients are accumulated and reduced in fp32
    global_batch: int | None = None  # default sequences per optimizer step over all GPUs
    varying_lengths: bool = False  # each micro-batch is as long as its own longest sequence

    def recipe(self, model_name: str) -> tuple[int | None, int | None]:
        """LoRA's default targets and rank: the recipe for this model, or the general default."""
        plain = re.sub(r"[^a-z0-9]", "", model_name.lower())
        for part, targets, rank in self.recipes:
            if part in plain:
                return targets, rank
        return self.lora_targets, self.lora_rank


PLAIN = Framework()
_FIELDS = frozenset(field.name for field in fields(Framework))


def find_framework(text: str) -> Framework:
    """The framework of this name, in its newest release or the one named: 'transformers==4.51'."""
    name, _, release = text.lower()[:100].partition("==")
    wanted = re.sub(r"[^a-z0-9]", "", name)
    for each in all_frameworks():
        if wanted in {re.sub(r"[^a-z0-9]", "", name) for name in (each.name, *each.known_as)}:
            return of_release(each, release) if re.match(r"\s*\d", release) else each
    names = [each.name for each in all_frameworks()]
    said = say("specs.framework_unknown", text=Quoted(text[:40]), names=", ".join(names))
    near = similar(name, names)
    hint = say("specs.hint_framework", name=near[0], names=", ".join(names)) if near else None
    raise NotFound(said, hint=hint, code="unknown_framework")


def framework_at(address: str) -> Framework:
    """The framework that a repository or web address names; plain PyTorch if it names none we know.

    What was published there was measured with a release of its time (`published`), not with the newest.
    """
    parts = set(re.split(r"[/\s#?]+", address.lower()[:400]))
    found = next((each for each in all_frameworks() if parts.intersection(each.known_as)), PLAIN)
    release = read_table("frameworks.toml")[found.name].get("published") if found is not PLAIN else None
    return of_release(found, release) if release else found


@cache
def of_release(framework: Framework, release: str) -> Framework:
    """What a framework's code decided in this release."""
    table = read_table("frameworks.toml").get(framework.name)
    return framework if table is None else _framework(framework.name, table, release=_numbers(release))


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:3])


@cache
def all_frameworks() -> tuple[Framework, ...]:
    """Plain PyTorch, and every table of the file in its order."""
    tables = read_table("frameworks.toml")
    return (PLAIN, *(_framework(name, table) for name, table in tables.items()))


def _framework(name: str, table: dict[str, Any], *, release: tuple[int, ...] | None = None) -> Framework:
    values: dict[str, Any] = {}
    for fact, each in table["facts"].items():
        older = release is not None and "since" in each and release < _numbers(each["since"])
        found = each["before" if older else "is"]
        values[fact] = tuple(found) if isinstance(found, list) else found
    assert values.keys() <= _FIELDS, values.keys() - _FIELDS
    if "recipes" in values:
        values["recipes"] = tuple((part, *numbers) for part, numbers in values["recipes"].items())
    return Framework(name=name, title=table["title"], known_as=tuple(table["known_as"]), **values)
