"""nanoGPT configs: a .py file of assignments, parsed with `ast` and never executed.

A key the file leaves out takes the default of nanoGPT's train.py and is listed as assumed.
Source: karpathy/nanoGPT train.py and model.py (GPTConfig, configure_optimizers, from_pretrained).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from brimful.configs.bounds import Check, checked, fraction, whole_between, whole_number
from brimful.configs.literals import Unreadable, Value, evaluate, parse_file
from brimful.configs.reading import Dialect, Reading, some_of
from brimful.configs.settings import apply_settings, own_word, parse_sets, unknown_key
from brimful.errors import BadInput
from brimful.language import Plain, Quoted, Sentence, Several, either, say
from brimful.specs.estimate import Assumption
from brimful.specs.model import Model
from brimful.specs.training import DTYPES, Dtype, Training


def _integer(low: int, high: int) -> Check:
    """In Python 40 / 2 is not a whole number, and 40 // 2 is."""
    plain, allowed = whole_between(low, high), whole_number(low, high)
    divided = checked(lambda _: False, Several((allowed, say("configs.use_floor_division")), between="; "))

    def check(key: str, value: object, where: object) -> Any:  # noqa: ANN401 - the value
        halved = isinstance(value, float) and value == int(value)
        return (divided if halved else plain)(key, value, where)

    return check


_SWITCH = checked(lambda value: isinstance(value, bool), say("configs.true_or_false"))
# key -> default of train.py, and its allowed values. The bounds are far beyond any run, and keep sums finite.
_KEYS: dict[str, tuple[Any, Check]] = {
    "n_layer": (12, _integer(1, 10_000)),
    "n_head": (12, _integer(1, 100_000)),
    "n_embd": (768, _integer(1, 1_000_000)),
    "block_size": (1024, _integer(1, 100_000_000)),
    "vocab_size": (50304, _integer(1, 100_000_000)),
    "batch_size": (12, _integer(1, 10_000_000)),
    "gradient_accumulation_steps": (5 * 8, _integer(1, 1_000_000_000)),
    "bias": (False, _SWITCH),
    "compile": (True, _SWITCH),
    "dropout": (0.0, fraction),
    "dtype": (
        "bfloat16",
        checked(lambda value: value in DTYPES, say("configs.one_of", names=", ".join(DTYPES))),
    ),
    "init_from": (
        "scratch",
        checked(lambda value: isinstance(value, str), say("configs.init_from_name")),
    ),
}
DEFAULTS = {key: default for key, (default, _) in _KEYS.items()}
# Keys of train.py that affect neither bytes nor seconds of a step. Known, so no warning is needed.
_WITHOUT_EFFECT = frozenset({
    "out_dir", "eval_interval", "log_interval", "eval_iters", "eval_only", "always_save_checkpoint",
    "wandb_log", "wandb_project", "wandb_run_name", "dataset", "learning_rate", "max_iters", "weight_decay",
    "beta1", "beta2", "grad_clip", "decay_lr", "warmup_iters", "lr_decay_iters", "min_lr", "backend",
    "device",
})  # fmt: skip
# Checkpoints that override the sizes in the file, as in from_pretrained.
_PRETRAINED = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
# Our names for lines that train.py calls something else.
_OURS = {
    "seq_len": "block_size", "layers": "n_layer", "heads": "n_head", "width": "n_embd", "vocab": "vocab_size",
}  # fmt: skip
_DANGEROUS = frozenset({"exec", "eval", ":="})
_MAX_UNKNOWN = 20  # names listed; with more, only their number is given


@dataclass(slots=True)
class _Found:
    """The file so far: values by name, the line of each, and why some could not be read."""

    values: dict[str, Value] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    imports: list[str] = field(default_factory=list)


def _lines(training: Training) -> dict[str, Any]:
    """The lines of a nanoGPT config that express this training; accumulation is for all GPUs together."""
    return {
        "batch_size": training.batch_size,
        "block_size": training.sequence_tokens,
        "gradient_accumulation_steps": training.accumulation * training.gpus,
        "dtype": training.dtype,
        "compile": training.compiled,
    }


NANOGPT = Dialect(
    name="nanoGPT",
    says=frozenset({"batch_size", "sequence_tokens", "accumulation", "dtype", "compiled"}),
    lines=_lines,
    code=either(("model.py", "train.py")),
)


def read_nanogpt(path: Path, overrides: Sequence[str] = ()) -> Reading:
    """Model and training of a nanoGPT config, with `key=value` overrides as train.py takes them.

    Our own names are allowed too; `gpus` is torchrun's world size, which divides the accumulation.
    """
    found = _found(path)
    if not found.lines:
        raise BadInput(say("configs.sets_nothing", file=path.name))
    own = _override(overrides, found)
    where = {key: f"{path} line {line}" for key, line in found.lines.items()}
    for key in DEFAULTS:
        if key in found.unread:
            raise BadInput(
                say(
                    "configs.needs_running",
                    where=where[key],
                    key=key,
                    unread=found.unread[key],
                )
            )
    reading = _reading(found.values, where, name=path.stem, warnings=_warnings(found))
    return _divided(apply_settings(replace(reading, file=path), own))


def nanogpt_values(path: Path) -> dict[str, Value]:
    """Every value a config assigns, by name; what only Python could evaluate is left out."""
    return _found(path).values


def _found(path: Path) -> _Found:
    found = _Found()
    for statement in parse_file(path).body:
        _read_statement(statement, found, file=str(path))
    return found


def read_globals(values: Mapping[str, Value], *, name: str, overrides: Sequence[str] = ()) -> Reading:
    """The reading of a script whose settings are known one by one: its own, a config's, a command line's."""
    found = _Found(values=dict(values))
    own = _override(overrides, found)
    return _divided(apply_settings(_reading(found.values, {}, name=name, warnings=()), own))


def _divided(reading: Reading) -> Reading:
    """`gradient_accumulation_steps //= ddp_world_size`, and train.py's assertion before it."""
    training = reading.training
    if training.accumulation % training.gpus:
        raise BadInput(
            say(
                "configs.accumulation_does_not_divide",
                accumulation=training.accumulation,
                gpus=training.gpus,
            )
        )
    return replace(reading, training=replace(training, accumulation=training.accumulation // training.gpus))


def _read_statement(statement: ast.stmt, found: _Found, *, file: str) -> None:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            _assign(name, value, found, file=file)
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            _assign(name, value, found, file=file)
        case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
            _assign(name, ast.BinOp(ast.Name(name), op, value), found, file=file, line=statement.lineno)
        case ast.Expr(value=ast.Constant()) | ast.Pass():
            pass
        case ast.Import(names=names):
            found.imports += [alias.name for alias in names]
        case ast.ImportFrom(module=module):
            found.imports.append(module or ".")
        case _:
            kind = (
                type(statement.value).__name__.lower()
                if isinstance(statement, ast.Expr)
                else ast.unparse(statement).split(maxsplit=1)[0].rstrip(":")  # class, def, ...
            )
            line = Plain(statement.lineno)
            raise BadInput(say("configs.statement_refused", file=file, line=line, kind=kind))


def _assign(name: str, value: ast.expr, found: _Found, *, file: str, line: int | None = None) -> None:
    at = line or value.lineno
    found.lines[name] = at
    found.unread.pop(name, None)
    try:
        found.values[name] = evaluate(value, found.values)
    except Unreadable as why:
        _refuse_danger(value, file=file, line=at)
        found.values.pop(name, None)
        found.unread[name] = str(why)


def _refuse_danger(value: ast.expr, *, file: str, line: int) -> None:
    """`'run-' + str(time.time())` is a harmless label; `__import__('os')` is not a config at all.

    Nor is `x = (batch_size := 64)`, which train.py would treat as a setting.
    """
    names = [
        getattr(n, "id", getattr(n, "attr", ":="))
        for n in ast.walk(value)
        if isinstance(n, (ast.Name, ast.Attribute, ast.NamedExpr))
    ]
    bad = next((name for name in names if name.startswith("__") or name in _DANGEROUS), None)
    if bad is not None:
        raise BadInput(say("configs.line_refused", file=file, line=Plain(line), bad=Quoted(bad)))


def _override(texts: Sequence[str], found: _Found) -> dict[str, Value]:
    """Override lines of the file; returns words that are not lines of train.py but ours."""
    own: dict[str, Value] = {}
    for said, value in parse_sets(texts, found.values).items():
        word = own_word(said)
        key = said if said in DEFAULTS else _OURS.get(word or "", word)
        if key in DEFAULTS:
            found.values[key] = value
            found.unread.pop(key, None)
            found.lines.pop(key, None)
        elif word is not None:
            own[word] = value
        else:
            raise unknown_key(said, DEFAULTS)
    return own


def _warnings(found: _Found) -> tuple[Sentence, ...]:
    strange = [key for key in found.lines if key not in DEFAULTS and key not in _WITHOUT_EFFECT]
    said = []
    if strange:
        said.append(say("configs.not_known_to_nanogpt", names=some_of(strange, _MAX_UNKNOWN)))
    if found.imports:
        said.append(say("configs.imports_not_followed", names=", ".join(found.imports[:_MAX_UNKNOWN])))
    return tuple(said)


# Vocabulary sizes of nanoGPT's own character datasets. Source: what data/shakespeare_char/prepare.py prints.
CHARACTERS = {"shakespeare_char": 65}


def _reading(
    values: dict[str, Value], where: dict[str, str], *, name: str, warnings: tuple[Sentence, ...]
) -> Reading:
    given = {key: values[key] for key in DEFAULTS if key in values}
    assumed = [
        Assumption(name=key, value=default, why=say("configs.why_nanogpt_default"))
        for key, default in DEFAULTS.items()
        if key not in given and key != "init_from"
    ]
    use = {**DEFAULTS, **given}
    if "vocab_size" not in given:
        assumed, warnings = _vocabulary_of(values.get("dataset"), use, assumed, warnings)
    for key, (_, check) in _KEYS.items():
        check(key, use[key], where.get(key, f"--set {key}"))
    if use["init_from"].startswith("gpt2"):
        _from_pretrained(use, where)
        assumed = [a for a in assumed if a.name not in ("n_layer", "n_head", "n_embd", "vocab_size", "bias")]
        warnings = (*warnings, say("configs.init_from_sets", name=Quoted(use["init_from"])))
    if use["n_embd"] % use["n_head"]:
        raise BadInput(say("configs.n_embd_not_multiple_of_n_head", width=use["n_embd"], heads=use["n_head"]))
    assumed += [
        Assumption(name="attention", value="flash", why=say("configs.why_nanogpt_flash")),
        Assumption(name="optimizer", value="fused AdamW", why=say("configs.why_nanogpt_optimizer")),
        Assumption(name="gpus", value=1, why=say("configs.why_nanogpt_divides")),
    ]
    return Reading(
        model=nanogpt_model(use, name=name),
        training=Training(
            batch_size=use["batch_size"],
            sequence_tokens=use["block_size"],
            accumulation=use["gradient_accumulation_steps"],
            dtype=cast(Dtype, use["dtype"]),
            compiled=use["compile"],
        ),
        assumed=tuple(assumed),
        warnings=warnings,
        dialect=NANOGPT,
    )


def _vocabulary_of(
    dataset: Value | None, use: dict[str, Any], assumed: list[Assumption], warnings: tuple[Sentence, ...]
) -> tuple[list[Assumption], tuple[Sentence, ...]]:
    """nanoGPT takes a character dataset's vocabulary from its meta.pkl, which is not available here.

    Left at 50304 it would be most of the memory of a model that has 65 characters.
    """
    if not isinstance(dataset, str) or not dataset.endswith("_char"):
        return assumed, warnings
    letters = CHARACTERS.get(dataset, 128)
    use["vocab_size"] = letters
    exact = dataset in CHARACTERS
    known = say("configs.why_prepare_py") if exact else say("configs.why_guess_letters")
    others = [each for each in assumed if each.name != "vocab_size"]
    said = say("configs.vocab_size_from_meta", n=letters, known=known)
    return [*others, Assumption(name="vocab_size", value=letters, why=known)], (*warnings, said)


def nanogpt_model(use: Mapping[str, Any], *, name: str) -> Model:
    return Model(
        name=name,
        layers=use["n_layer"],
        heads=use["n_head"],
        kv_heads=use["n_head"],
        width=use["n_embd"],
        mlp_width=4 * use["n_embd"],
        vocab=use["vocab_size"],
        positions=use["block_size"],
        tied=True,
        bias=use["bias"],
        dropout=float(use["dropout"]),
    )


def _from_pretrained(use: dict[str, Any], where: Mapping[str, str]) -> None:
    from brimful.specs.presets import find_preset

    if use["init_from"] not in _PRETRAINED:
        raise BadInput(
            say(
                "configs.checkpoint_unknown",
                where=where.get("init_from", "--set init_from"),
                name=Quoted(use["init_from"][:60]),
                pretrained=", ".join(_PRETRAINED),
            )
        )
    found = find_preset(use["init_from"]).model
    use |= {"n_layer": found.layers, "n_head": found.heads, "n_embd": found.width}
    use |= {"vocab_size": found.vocab, "bias": found.bias}
    use["block_size"] = min(use["block_size"], 1024)  # a checkpoint's positions can be cropped, not extended
