"""Fit's own phrases as sentences, so that they can be told in other languages.

Formulas and advice write plain English, with numbers in it. Here each such phrase stands once more as a
template; a phrase that is none of them stays as it is, and a test over many trainings is red until it stands
here.
"""

from __future__ import annotations

import re
from functools import cache

from brimful.language import Number, Sentence, Several, say

# Where the peak is, and what a fix does: notes are joined by semicolons, and told part by part.
_TEMPLATES: tuple[Sentence, ...] = (
    say("end of the forward pass"),
    say("start of the backward pass"),
    say("gradient of the output matrix"),
    say("backward pass of the last layer"),
    say("end of the backward pass"),
    say("optimizer step"),
    say("every step"),
    say("loading"),
    say("before the first step"),
    say("fuses the loss and drops its fp32 copies"),
    say("fuses the small kernels"),
    say("minutes to warm up"),
    say("the score matrix is never stored"),
    say("scores stay on the chip"),
    say("the logits are never all in memory"),
    say("needs liger-kernel"),
    say("logits and loss in {n} slices: its fp32 copies are of one slice only"),
    say("the logits are made once"),
    say("cheap parts of each layer are run again going back"),
    say("each layer is run again in the backward pass"),
    say("nothing is run twice"),
    say("only the cheap parts are run twice"),
    say("AdamW's state in 8 bits"),
    say("needs bitsandbytes or torchao"),
    say("optimizer state and gradients spread over the GPUs"),
    say("weights too are spread over the GPUs, and gathered layer by layer"),
    say("weights stay whole: nothing to gather"),
    say("whole layers then run in {dtype}, not only their multiplies"),
    say("each gradient is used and dropped at once"),
    say("no clipping by the whole norm"),
    say("multiplies in {dtype}, fp32 weights"),
    say("half the activations"),
    say("weights, gradients and AdamW in bf16 too: may train worse"),
    say("trains an adapter of rank {n}, not the model"),
    say("an adapter over weights held in {n} bits"),
    say("the frozen weights in {n} bits"),
    say("weights and optimizer state rest in host memory: slow"),
    say("tensor cores multiply {dtype} several times as fast as fp32"),
    say("fp32 with {n} bits of mantissa in the multiplies"),
    say("this card has no bf16 hardware"),
    say("fp16 needs a GradScaler"),
    say("one kernel for the whole optimizer step"),
    say("larger multiplies, fewer launches"),
    say("still {n} sequences a step"),
    say("MFU is then of the {dtype} peak"),
    say("a change in the training script"),
    say("a change in {file} or {other}"),
    say("a change in {file}"),
    say("torch.compile does not run on {gpu}: Triton needs Volta or newer"),
    say("set compile=False"),
    say("{gpu} has no bf16 hardware: speed is taken at its {dtype} peak"),
    say("dtype='float16' is faster"),
    say("a vocabulary of {n} is no multiple of 64"),
    say("{n} fills tensor cores better"),
    say("the memory {gpu} shows to a framework is recalled, not read off one"),
    say("the memory {gpu} shows to a framework is estimated, not read off one"),
    say("no set of changes fits one {gpu}"),
    say("no set of changes fits {n} {gpu}"),
    say("{n} of them sharing weights and states (zero3) would hold it"),
)
# Why a part of the memory is there, as it stands beside the part.
_REASONS: tuple[Sentence, ...] = (
    say("{millions} M parameters in {dtype}"),
    say("{millions} M parameters in {n}-bit"),
    say("{millions} M parameters in {dtype} over {n} GPUs"),
    say("{name}, the only part that is trained"),
    say("one for each trained parameter"),
    say("{name}'s numbers for each trained parameter"),
    say("a second copy of the gradients"),
    say("autocast's {dtype} copies"),
    say("two layers and the tables, whole"),
    say("cuBLAS scratch"),
    say("4-bit layers' inputs, freed with the step's graph"),
    say("the norms' inputs"),
    say("the norms' inputs in fp32"),
    say("norm output, q k v and result"),
    say("norm output, q k v and result, and the score matrix"),
    say("its input, and {width} wide in between"),
    say("one byte for each number dropped or kept"),
    say("inputs of the adapted layers"),
    say("final norm, token ids"),
    say("checkpointing keeps each layer's input only"),
    say("layer inputs, attention, every other multiply"),
    say("1/{n} of {shape} at a time"),
    say("{shape}: logits, gradient, zeros"),
    say("{shape}: logits and fp32 copies"),
    say("{shape}: old and new"),
    say("{shape}: old and new, and the loss's copies"),
    say("{shape}: still held by the loop"),
    say("the 4-bit output matrix in 16 bits"),
    say("4-bit output matrix in 16 bits"),
    say("gradient of the vocabulary table before it is added"),
    say("one layer's gradients"),
    say("one layer's gradients and its activations made again"),
    say("first layer, and the tied table's gradients"),
    say("copies the optimizer makes on the way"),
    say("freed blocks PyTorch keeps, rounding"),
    say("driver and kernels, outside PyTorch"),
    say("desktop and other processes, as you said"),
    say("as {n} runs of your own say (`brimful calibrate`)"),
)


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], Sentence], ...]:
    """Templates as patterns; a plain one before one that takes anything."""
    kinds = {
        "n": r"[\d,]+",
        "millions": r"[\d,.]+",
        "dtype": r"\w+",
        "name": r"\w+",
        "width": r"\d+",
        "shape": r"\([\d, ]+\)",
    }

    def pattern(sentence: Sentence) -> re.Pattern[str]:
        parts = re.split(r"\{(\w+)\}", sentence.text)
        text = "".join(
            re.escape(part) if i % 2 == 0 else f"(?P<{part}>{kinds.get(part, '.+')})"
            for i, part in enumerate(parts)
        )
        return re.compile(text)

    plain_first = sorted((*_TEMPLATES, *_REASONS), key=lambda sentence: "{" in sentence.text)
    return tuple((pattern(sentence), sentence) for sentence in plain_first)


def known(part: str) -> Sentence | None:
    """One part of a phrase as a sentence; None where nobody has written it down here."""
    for pattern, sentence in _patterns():
        if (match := pattern.fullmatch(part)) is not None:
            values = {name: _value(name, value) for name, value in match.groupdict().items()}
            return Sentence(sentence.text, values)
    return None


def _value(name: str, shown: str) -> object:
    plain = shown.replace(",", "")
    if name == "n":
        return int(plain)
    return Number(float(plain), 1) if name == "millions" else shown


def phrase(text: str, between: str = "; ") -> Several:
    """A phrase of Fit, part by part; parts that are not known stay as they are."""
    return Several(tuple(known(part) or part for part in text.split(between)), between=between)
