"""`Framework`: what a training framework's own code decides, where neither model nor settings do.

The same Llama, batch and length take a fifth more in one framework than in another: keys written out for
every query head, a tied table stored twice, inputs of 4-bit layers kept for two steps. Each such fact stands
in `frameworks.toml` with the file it was read in.
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
    fused_qkv: bool = True  # one matrix makes q, k and v: what keeps v keeps the buffer of all three
    fused_families: tuple[str, ...] = ()  # families in which it does, where the rest has three
    repeats_keys: bool = False  # eager code writes grouped keys and values out for every query head
    copies_attention: bool = False  # heads are put side by side in a new buffer for the output matrix
    copying_families: tuple[str, ...] = ()  # families in which they are, where the rest needs no copy
    groups_in_kernel: bool = False  # attention is handed grouped keys, which only flash attention takes
    norm_value_fp32: bool = False  # a trained rms norm keeps its normalized value in fp32
    fused_gelu: bool = False  # torch's kernel also where transformers writes tanh-GELU in Python
    caps_scores: bool = False  # soft-capped attention (Gemma 2) is written out, score matrix and all
    triton_attention: bool = False  # the first FlashAttention, as Triton has it
    fused_norms: bool = False  # one kernel each for norms and rotary positions, without a compiler too
    # -- tables and logits
    ties: bool = True  # a tied table is stored once
    narrow_tables: bool = False  # tables that tokens are only looked up in are bf16 where multiplies are
    fp32_loss: bool = True  # 16-bit training: the loss runs in fp32; else in the logits' own format
    slices_loss: bool = False  # it goes over slices of the logits, one after the other
    plain_loss_families: tuple[str, ...] = ()  # families whose loss takes the logits as they are
    casts_logits: bool = False  # autocast: the loss casts the logits to fp32 itself, before its softmax
    fp32_logits: bool = True  # 16-bit training: the model hands out fp32 logits, alive in the backward pass
    returns_loss: bool = False  # the model hands out the loss alone: nobody outside it holds logits
    drops_logits: bool = False  # the loop lets go of the logits before the backward pass
    # -- adapters
    lora_targets: int | None = None  # linear layers a LoRA layer adapts where nobody says; None: the papers'
    lora_rank: int | None = None
    lora_dropout: bool | None = None  # None: unless the adapter is fp32, as PEFT's is
    lora_shares_inputs: bool = False  # layers that read the same input share what LoRA keeps of it
    lora_pads: bool = False  # q and v alone: LoRA's output is copied into a padded one, and kept for it
    scales_output: bool = False  # a scaling adapter (Adapter v2) scales the logits as well, and keeps them
    adapter_first_layer: int = 0  # of LLaMA-Adapter: layers before it have nothing to train behind them
    recipes: tuple[tuple[str, int, int], ...] = ()  # part of a model's name -> targets, rank
    # -- 4-bit weights
    quantizes_output: bool = False  # the output projection too
    double_quantizes: bool = False  # the scales too, whatever the settings say
    quantized_inputs: int = 1  # copies of each 4-bit layer's input alive at the peak
    dequantized_copies: int = 1  # 16-bit copies of a 4-bit matrix while it is multiplied by
    # -- several GPUs and micro-steps
    whole_gradients: bool = False  # sharded: gradients of earlier micro-steps wait whole, frozen ones too
    checkpoints_sharded: bool = False  # sharded adapter runs are always checkpointed, layer by layer
    loss_chunk_tokens: int | None = None  # adapter runs make logits and loss for so many positions at a time
    stages_cut_batch: bool = (
        False  # pipeline: the batch is cut into as many micro-batches as there are stages
    )
    fp32_gradients: bool = False  # gradients are added up and reduced in fp32
    global_batch: int | None = None  # sequences of an optimizer step over all GPUs where nobody says
    varying_lengths: bool = False  # each micro-batch is as long as its own longest sequence

    def recipe(self, model_name: str) -> tuple[int | None, int | None]:
        """LoRA's targets and rank where nobody says: the recipe for this model, or the default."""
        plain = re.sub(r"[^a-z0-9]", "", model_name.lower())
        for part, targets, rank in self.recipes:
            if part in plain:
                return targets, rank
        return self.lora_targets, self.lora_rank


PLAIN = Framework()
_FIELDS = frozenset(field.name for field in fields(Framework))


def find_framework(text: str) -> Framework:
    """The framework of this name, as its newest release is, or as the one named: 'transformers==4.51'."""
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
    """The framework that a repository or web address names; plain PyTorch where it names none we know.

    What was published there was measured with a release of its day (`published`), not with the newest.
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
