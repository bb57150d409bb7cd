"""`brimful fit`: will it fit, how fast is it, and what should change? The text is in fit_text.py."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.cli.commands import NO, YES, Answer
from brimful.cli.gpu import fit_cards
from brimful.cli.gpu.fit_text import checks_text, compare_text, models_text, show
from brimful.cli.gpu.others import add_others, other_bytes, own_card
from brimful.cli.options import own_correction
from brimful.configs.files import read_config
from brimful.configs.lengths import read_lengths, with_lengths
from brimful.configs.read import read
from brimful.configs.reading import Reading, change_text
from brimful.diagnose.sanity import Check, check_mfu, check_peak, check_rate
from brimful.errors import BadInput, Refused
from brimful.fit.count import parameters
from brimful.fit.fit import fit_reading, predictor
from brimful.language import Plain, Sentence, Size, say, told, tongue, words
from brimful.specs.estimate import Estimate, Fix
from brimful.specs.gpu import Gpu, find_gpu
from brimful.specs.model import Model
from brimful.specs.presets import all_presets
from brimful.specs.training import Training
from brimful.units import GIB

if TYPE_CHECKING:
    from brimful.fit.advice.ladder import Rung

EXAMPLE = """brimful fit examples/nanogpt/train_fineweb.py --gpu rtx-4070
brimful fit examples/nanogpt/train_fineweb.py --gpu 4070 --other-mib 2100 --set batch_size=8
brimful fit --model llama-3.1-8b --batch-size 4 --seq-len 4096 --checkpointing full --gpu h100
brimful fit --model gpt2-xl --gpu 4090 --compare compile=True,batch_size=8 checkpointing=full
brimful fit examples/nanogpt/train_fineweb.py --gpu all
brimful fit --model llama-3.1-8b --gpu 4090 --inference --weight-bits 4"""

# Flag -> (key of `--set`, placeholder). A flag is a `--set` that --help can show.
_FLAGS: dict[str, tuple[str, str]] = {
    "--batch-size": ("batch_size", "N"),
    "--seq-len": ("seq_len", "N"),
    "--accumulation": ("gradient_accumulation_steps", "N"),
    "--precision": ("precision", "WORD"),
    "--optimizer": ("optimizer", "WORD"),
    "--attention": ("attention", "WORD"),
    "--checkpointing": ("checkpointing", "WORD"),
    "--loss-chunks": ("loss_chunks", "N"),
    "--framework": ("framework", "NAME"),
    "--torch": ("torch", "RELEASE"),
    "--rank": ("rank", "N"),
    "--gpus": ("gpus", "N"),
    "--sharding": ("sharding", "WORD"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?")
    parser.add_argument("--gpu", metavar="NAME")
    add_others(parser)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    model = parser.add_argument_group("by_name")
    model.add_argument("--model", metavar="NAME")
    model.add_argument("--models", action="store_true")
    model.add_argument("--args", metavar="FILE")
    training = parser.add_argument_group("training")
    for flag, (_, placeholder) in _FLAGS.items():
        training.add_argument(flag, metavar=placeholder)
    training.add_argument("--lengths", type=Path, metavar="FILE")
    training.add_argument("--compile", action=argparse.BooleanOptionalAction)
    training.add_argument("--fused-loss", action="store_true")
    training.add_argument("--lora", action="store_true")
    training.add_argument("--qlora", action="store_true")
    parser.add_argument("--uncalibrated", action="store_true")
    parser.add_argument("--exact", action="store_true")
    advice = parser.add_argument_group("changes")
    advice.add_argument("--compare", nargs="+", metavar="WHAT")
    advice.add_argument("--ladder", action="store_true")
    advice.add_argument("--patch", action="store_true")
    advice.add_argument("--write", action="store_true")
    advice.add_argument("--dry-run", action="store_true")
    advice.add_argument("--fix", type=int, metavar="N")

    fit_cards.add_arguments(parser)
    measured = parser.add_argument_group("measured")
    measured.add_argument("--measured-mfu", type=float, metavar="X")
    measured.add_argument("--measured-peak-gib", type=float, metavar="X")
    measured.add_argument("--measured-tokens-per-s", type=float, metavar="X")


def run(args: argparse.Namespace) -> Answer:
    if args.models:
        return _models()
    args.correction = None if args.uncalibrated else own_correction()
    if fit_cards.wanted(args):
        return fit_cards.run(args, _read(args, _words(args)))
    _check(args)
    if args.compare and args.config is None and args.model is None:
        # `--compare a.py b.py`: the others are compared with the first file.
        args.config = next((what for what in args.compare if "=" not in what), None)
        args.compare = [what for what in args.compare if what != args.config]
    asked = None if args.gpu else own_card(args)
    gpu = find_gpu(args.gpu) if asked is None else asked[0]
    if (other_bytes(args) or 0) >= gpu.memory_bytes:
        memory = Size(gpu.memory_bytes)
        other = Plain(args.other_mib)
        raise BadInput(say("gpu.other_above_card", other_mib=other, memory=memory, gpu=gpu.title))
    reading = _read(args, _words(args))
    if asked is not None:
        reading = replace(reading, warnings=(*reading.warnings, asked[1]))
    if args.compare is not None:
        return _compare(args, reading, gpu)
    answer = _fit(args, reading, gpu)
    if args.patch or args.write:
        return _patch(args, reading, answer)
    return _answer(args, reading, answer, gpu)


def _answer(args: argparse.Namespace, reading: Reading, answer: Estimate, gpu: Gpu) -> Answer:
    data = answer.as_dict()
    rungs = _ladder(args, reading, gpu) if args.ladder else ()
    parts = [show(answer, gpu, reading, rungs=rungs)]
    if rungs:
        data["ladder"] = [rung.as_dict() for rung in rungs]
    checks = _checks(args, reading, answer, gpu)
    if checks:
        data["checks"] = [check.as_dict(tongue()) for check in checks]
        parts.insert(0, checks_text(checks))
    if not args.exact:
        return Answer(data, "\n\n".join(parts), YES if answer.fits else NO)
    from brimful.cli.gpu import fit_exact

    trace = fit_exact.traced(reading, gpu)
    data["exact"] = fit_exact.as_dict(trace, answer, reading)
    parts.insert(0, fit_exact.text(trace, answer, reading))
    return Answer(data, "\n\n".join(parts), YES if fit_exact.fits(trace, answer) else NO)


def _ladder(args: argparse.Namespace, reading: Reading, gpu: Gpu) -> tuple[Rung, ...]:
    from brimful.fit.advice.ladder import ladder

    predict = predictor(reading, gpu, other_bytes(args), args.correction)
    return ladder(reading.training, predict, gpu, reading.dialect)


def _check(args: argparse.Namespace) -> None:
    for name in ("measured_mfu", "measured_peak_gib", "measured_tokens_per_s"):
        value = getattr(args, name)
        if value is not None and not 0 < value < 1e12:
            flag = "--" + name.replace("_", "-")
            raise BadInput(say("gpu.not_a_measurement", flag=flag, value=value))
    if args.dry_run and not args.write:
        raise BadInput(say("gpu.dry_run_needs_write"))


def _words(args: argparse.Namespace) -> list[str]:
    """The flags as `--set` words, before the user's: a `--set` overrides a flag."""
    words = [
        f"{word}={value}"
        for flag, (word, _) in _FLAGS.items()
        if (value := getattr(args, flag[2:].replace("-", "_"))) is not None
    ]
    if args.compile is not None:
        words.append(f"compile={args.compile}")
    words += [f"{name}=True" for name in ("fused_loss", "lora", "qlora") if getattr(args, name)]
    return [*words, *args.set]


def _read(args: argparse.Namespace, words: list[str], config: str | None = None) -> Reading:
    if config is not None:
        found = read(config, overrides=words)
    else:
        found = read(args.config, model=args.model, arguments=args.args, overrides=words)
    return with_lengths(found, read_lengths(args.lengths)) if args.lengths else found


def _models() -> Answer:
    presets = all_presets()
    rows: list[dict[str, Any]] = [
        {
            "name": p.model.name,
            "title": p.title,
            "family": p.family,
            "parameters": parameters(p.model),
            "context_tokens": p.context_tokens,
            "source": p.source,
        }
        for p in presets
    ]
    return Answer({"models": rows}, models_text(presets))


def _compare(args: argparse.Namespace, reading: Reading, gpu: Gpu) -> Answer:
    """The config as it is, and each variant beside it: another file, or `--set` words joined by commas.

    If it does not fit, brimful's own fix is the last row.
    """

    compared: list[tuple[Sentence | str, Reading]] = [(say("gpu.as_it_is"), reading)]
    for what in args.compare:
        if "=" in what:
            # 'a=1,b=(2,3)' is a=1 and b=(2,3): a comma separates words only if a new key follows.
            words_of = re.split(r",\s*(?=[A-Za-z_]\w*=)", what)
            compared.append((what.replace(",", ", "), _read(args, [*_words(args), *words_of])))
        else:
            compared.append((Path(what).name, _read(args, [], config=what)))
    rows = [(name, r, _fit(args, r, gpu)) for name, r in compared]
    own = _own_fix(reading, rows[0][2], [other.training for _, other in compared])
    rows += [(name, r, _fit(args, r, gpu)) for name, r in own]
    data = {
        "compared": [
            {
                "name": told(name),
                "name_code": name.as_dict() if isinstance(name, Sentence) else None,
                "effective_batch": r.training.effective_batch,
                **answer.as_dict(),
            }
            for name, r, answer in rows
        ]
    }
    text = compare_text([(told(name), r, answer) for name, r, answer in rows], gpu)
    if args.correction is not None:
        text += "\n\n" + told(args.correction.note(gpu.name))
    return Answer(data, text)


def _fit(args: argparse.Namespace, reading: Reading, gpu: Gpu) -> Estimate:
    return fit_reading(reading, gpu, other_bytes(args), correction=args.correction)


def _own_fix(reading: Reading, answer: Estimate, others: list[Training]) -> list[tuple[Sentence, Reading]]:
    best = next((fix for fix in answer.fixes if fix.fits), None)
    if best is None or best.training in others:
        return []
    said = ", ".join(f"{key}={then}" for key, (_, then) in best.change.items())
    name = say("gpu.own_fix", change=said)
    return [(name, replace(reading, training=best.training))]


def _checks(args: argparse.Namespace, reading: Reading, answer: Estimate, gpu: Gpu) -> list[Check]:
    checks = []
    if args.measured_mfu is not None:
        nanogpt = reading.dialect.name == "nanoGPT"
        checks.append(check_mfu(args.measured_mfu, answer, gpu, nanogpt=nanogpt))
    if args.measured_tokens_per_s is not None:
        checks.append(check_rate(args.measured_tokens_per_s, answer, reading.model, reading.training, gpu))
    if args.measured_peak_gib is not None:
        checks.append(check_peak(round(args.measured_peak_gib * GIB), answer, gpu))
    return checks


def _patch(args: argparse.Namespace, reading: Reading, answer: Estimate) -> Answer:
    """Prints or writes the file with the lines of one fix and of `--set` changed."""

    from brimful.fit.advice.patch import patch_text, write_patched

    plain = _read(args, _launched(reading))
    if plain.file is None:
        raise BadInput(say("gpu.no_file_to_patch"))
    fix = _chosen(answer, args.fix)
    wanted = replace(reading, training=fix.training) if fix else reading
    change, lines_alone = plain.dialect.spell(plain.training, wanted.training)
    if not lines_alone:
        raise _not_expressible(plain, wanted, change)
    lines = {key: then for key, (_, then) in change.items()}
    text = read_config(plain.file, what=say("gpu.config"))
    patched = patch_text(text, lines, suffix=plain.file.suffix)
    _verify(args, plain, patched, wanted)
    shown = {key: list(pair) for key, pair in change.items()}
    data: dict[str, Any] = {"file": str(plain.file), "change": shown, "text": patched, "backup": None}
    said = change_text(change) or words("gpu.nothing_to_change")
    if not args.write or patched == text:
        unchanged = words("gpu.file_change", file=plain.file, change=said)
        return Answer(data, patched.rstrip("\n") if args.patch else unchanged)
    if args.dry_run:
        return Answer(data, words("gpu.would_write", file=plain.file, change=said))
    backup = write_patched(plain.file, patched)
    wrote = words("gpu.wrote", file=plain.file, change=said)
    kept = words("gpu.as_it_was", backup=backup)
    return Answer({**data, "backup": str(backup)}, f"{wrote}\n{kept}")


def _launched(reading: Reading) -> list[str]:
    """What torchrun sets and no config does: must be repeated whenever the config is read."""
    return [f"gpus={reading.training.gpus}"] if reading.training.gpus > 1 else []


def _not_expressible(plain: Reading, wanted: Reading, change: dict[str, tuple[Any, Any]]) -> Refused:
    """Why a change is not written: no line in this kind of config can express it."""

    known = plain.dialect.lines(wanted.training)
    said = change_text({key: pair for key, pair in change.items() if key not in known} or change)
    return Refused(say("gpu.patch_not_a_line", change=said, file=plain.file, program=plain.dialect.code))


def _verify(args: argparse.Namespace, plain: Reading, patched: str, wanted: Reading) -> None:
    """Reads the patched text again: what is printed or written must give what was predicted."""
    from tempfile import TemporaryDirectory

    assert plain.file is not None
    with TemporaryDirectory() as folder:
        copy = Path(folder) / plain.file.name
        copy.write_text(patched, encoding="utf-8", newline="")
        for beside in plain.file.parent.glob("*.json"):  # a DeepSpeed config that it names
            if beside.name in patched and beside.name != copy.name:
                (Path(folder) / beside.name).symlink_to(beside.resolve())
        which = "args" if args.args else "config"
        again = _read(argparse.Namespace(**{**vars(args), which: str(copy)}), _launched(wanted))
    if names := _differ(replace(again.model, name=wanted.model.name), wanted.model):
        raise Refused(say("gpu.patch_other_model", names=", ".join(names), file=plain.file))
    # With 16-bit matmuls, tf32 has no effect.
    tf32 = again.training.tf32 if wanted.training.half else wanted.training.tf32
    if names := _differ(again.training, replace(wanted.training, tf32=tf32)):
        raise Refused(say("gpu.patch_unchangeable", file=plain.file, names=", ".join(names)))


def _differ(one: Model | Training, other: Model | Training) -> list[str]:
    return [f.name for f in fields(one) if getattr(one, f.name) != getattr(other, f.name)]


def _chosen(answer: Estimate, number: int | None) -> Fix | None:
    """The requested fix, or the first that changed lines alone can make; None if it already fits.

    If it is at risk, only a fix that surely fits is worth changing the file.
    """
    fixes = answer.fixes or answer.faster
    if number is not None:
        if not 1 <= number <= len(fixes):
            raise BadInput(say("gpu.no_fix", number=Plain(number), fixes=len(fixes)))
        if not fixes[number - 1].config_only:
            raise Refused(say("gpu.fix_not_a_line", number=Plain(number)), hint=fixes[number - 1].says())
        return fixes[number - 1]
    if answer.fits:
        return next((fix for fix in answer.fixes if fix.verdict == "fits" and fix.config_only), None)
    chosen = next((fix for fix in fixes if fix.fits and fix.config_only), None)
    if chosen is None:
        best = say("gpu.hint_see_without_patch")
        if fixes and fixes[0].fits:
            best = say("gpu.hint_cheapest_fix", note=fixes[0].says())
        raise Refused(say("gpu.no_config_fix"), hint=best)
    return chosen
