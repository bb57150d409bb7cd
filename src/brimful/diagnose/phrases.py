"""Fit's own phrases as sentences, so that they can be told in other languages.

Formulas and advice write plain English, with numbers in it. Here each such phrase stands once more as a
template; a phrase that is none of them stays as it is, and a test over many trainings is red until it stands
here.
"""

from __future__ import annotations

import re
from functools import cache

from brimful.language import Number, Sentence, Several, Size, say
from brimful.units import GIB, KIB, MIB

# Where the peak is, and what a fix does: notes are joined by semicolons, and told part by part.
_TEMPLATES: tuple[Sentence, ...] = (
    say("end of the forward pass"),
    say("start of the backward pass"),
    say("gradient of the output matrix"),
    say("backward pass of the last layer"),
    say("end of the backward pass"),
    say("optimizer step"),
    say("every step"),
    say("on pipeline stage {n} of {all}"),
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
    say("speed with experts is derived and held against no published run"),
    say("the load is taken as even"),
    say("no set of changes fits one {gpu}"),
    say("no set of changes fits {n} {gpu}"),
    say("{n} of them sharing weights and states (zero3) would hold it"),
    say("not corrected: your own runs were on {cards}, not on {gpu} (`brimful runs calibrate`)"),
    say("corrected by {n} runs of your own on {cards}: {parts} (`brimful runs calibrate`)"),
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
    say("all of the stage, for every micro-batch"),
    say("cuBLAS scratch"),
    say("4-bit layers' inputs, freed with the step's graph"),
    say("the norms' inputs"),
    say("the norms' inputs in fp32"),
    say("norm output, q k v and result"),
    say("norm output, q k v and result, and the score matrix"),
    say("its input, and {width} wide in between"),
    say("{n} of {all} experts for each token, router"),
    say("final norm, pixels"),
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
    say("desktop and other processes, assumed"),
    say("as {n} runs of your own say (`brimful runs calibrate`)"),
)


# What `brimful trace` notes, and the changes it names.
_TRACED: tuple[Sentence, ...] = (
    say("take the loss in chunks of the batch, or use a fused linear cross-entropy"),
    say("checkpoint the layers, or halve the batch and accumulate gradients twice as often"),
    say("call scaled_dot_product_attention: no score matrix is kept"),
    say("an 8-bit optimizer keeps a quarter of it"),
    say("sharding spreads it over GPUs"),
    say("fused=True updates without temporaries"),
    say("zero_grad(set_to_none=True) before the forward pass"),
    say("compiled parts: what is kept is exact, temporaries lie between all fused and none fused"),
    say("a compiled function or module could not be cut by AOTAutograd and was traced op by op"),
    say("recurrent layers are traced cell by cell"),
    say("on a GPU cuDNN runs them whole and keeps one reserve buffer of its own size for the backward pass"),
    say("NCCL's own buffers are not in the trace: up to about 1.5 GiB on each GPU, by topology"),
    say(
        "cuDNN's workspaces for convolutions are not in the trace: it chooses kernels by trying them on the "
        "card"
    ),
    say("after its steps the script ended with {name}"),
)
# What argparse and the operating system say, in their own words.
_FOREIGN: tuple[Sentence, ...] = (
    say("the following arguments are required: {names}"),
    say("argument {name}: expected one argument"),
    say("argument {name}: expected at least one argument"),
    say("argument {name}: invalid int value: {value}"),
    say("argument {name}: invalid float value: {value}"),
    say("argument {name}: invalid choice: {value} (choose from {names})"),
    say("argument {name}: {problem}"),
    say("No such file or directory"),
    say("Permission denied"),
    say("Is a directory"),
    say("Not a directory"),
    say("No space left on device"),
    say("Read-only file system"),
)
_KINDS = {
    "n": r"[\d,]+",
    "all": r"\d+",
    "millions": r"[\d,.]+",
    "dtype": r"\w+",
    "name": r"\w+",
    "width": r"\d+",
    "shape": r"\([\d, ]+\)",
}
_KINDS_OF_THINGS = {"model": say("model")}  # one word that stands inside a phrase
_DEEPEST = 3  # phrases within phrases


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Templates as patterns: those of formulas first, and the more words a template has the earlier."""
    formulas = [*_TEMPLATES, *_REASONS, *_TRACED]
    own = sorted((sentence.text for sentence in formulas), key=lambda text: "{" in text)
    return tuple((_pattern(text, _KINDS), text) for text in own)


@cache
def _plain_patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """What code says as plain English (`tools/plain_phrases.py` gathers it), and what others do."""
    import json
    from importlib.resources import files

    listed: list[str] = json.loads(
        files("brimful.language").joinpath("locale/plain.json").read_text(encoding="utf-8")
    )
    texts = [*listed, *(sentence.text for sentence in _FOREIGN)]
    texts.sort(key=lambda text: -len(re.sub(r"\{\w+\}", "", text)))
    return tuple((_pattern(text, {}), text) for text in texts)


def _pattern(text: str, kinds: dict[str, str]) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", text)
    written = "".join(
        re.escape(part.replace("{{", "{").replace("}}", "}"))
        if i % 2 == 0
        else f"(?P<{part}>{_any(part, kinds)})"
        for i, part in enumerate(parts)
    )
    return re.compile(written, re.DOTALL)


def _any(name: str, kinds: dict[str, str]) -> str:
    if name.startswith("n_"):
        return r"-?\d[\d,]*(?:\.\d+)?"
    if name.startswith("size_"):
        return r"[\d.]+ (?:[KMG]i)?B"
    return kinds.get(name, ".+" if kinds else ".*?")


def known(part: str) -> Sentence | None:
    """One part of a phrase as a sentence; None where nobody has written it down here."""
    for pattern, text in _patterns():
        if (match := pattern.fullmatch(part)) is not None:
            values = {name: _value(name, value) for name, value in match.groupdict().items()}
            return Sentence(text, values)
    return None


def told(text: str, depth: int = 0) -> Sentence | Several | str:
    """A problem, hint or warning as a sentence, with the phrases inside it; else as it is."""
    if (sentence := known(text)) is not None:
        return sentence
    for pattern, template in _plain_patterns():
        if (match := pattern.fullmatch(text)) is not None:
            values = {name: _inner(name, value, depth) for name, value in match.groupdict().items()}
            return Sentence(template, values)
    before, colon, after = text.partition(": ")  # 'train.json: nested too deeply'
    if colon and isinstance(said := told(after, depth + 1), Sentence):
        return Several((before, said), between=": ")
    return text


def warned(text: str) -> Several | Sentence | str:
    """A warning of a reader or a formula, or what an error says."""
    parts = text.split("; ")
    if all(known(part) is not None for part in parts):
        return phrase(text)
    return told(text)


def _inner(name: str, shown: str, depth: int) -> object:
    if name.startswith("n_"):
        return Number(float(shown.replace(",", "")), len(shown.partition(".")[2]))
    if name.startswith("size_"):
        number, unit = shown.split(" ")
        return Size(float(number) * {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}[unit])
    words = shown.strip()
    if words in _KINDS_OF_THINGS:
        return _KINDS_OF_THINGS[words]
    if " or " in words and " " not in words.replace(" or ", ""):  # 'rtx-4070 or rtx-4090'
        first, _, rest = words.partition(" or ")
        either = say("{one} or {other}", one=first, other=_inner(name, rest, depth))
        return Several((shown[: shown.index(words)], either, shown[len(shown.rstrip()) :]), between="")
    if depth >= _DEEPEST or " " not in words:
        return shown
    start = shown.index(words)
    return Several((shown[:start], told(words, depth + 1), shown[start + len(words) :]), between="")


def _value(name: str, shown: str) -> object:
    plain = shown.replace(",", "")
    if name == "n":
        return int(plain)
    return Number(float(plain), 1) if name == "millions" else shown


def phrase(text: str, between: str = "; ") -> Several:
    """A phrase of Fit, part by part; parts that are not known stay as they are."""
    return Several(tuple(known(part) or part for part in text.split(between)), between=between)
