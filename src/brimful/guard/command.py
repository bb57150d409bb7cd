"""A user's command line, as far as a guard must understand it: script, keys, and how they are written.

The script is parsed and never run for this. Three kinds of settings are known: globals overridden by
`--key=value` (nanoGPT), Hugging Face's argument classes, and argparse. For anything else, the user says which
key means what.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from brimful.configs.arguments import ARGUMENTS, own_name
from brimful.configs.literals import Unreadable, evaluate, parse_file
from brimful.configs.nanogpt import DEFAULTS, NANOGPT, nanogpt_values
from brimful.configs.reading import Dialect
from brimful.errors import BadInput, BrimfulError
from brimful.language import Quoted, say
from brimful.specs.training import Training
from brimful.units import integer_from_text

NANOGPT_STYLE, TRAINER_STYLE, ARGPARSE_STYLE, UNKNOWN_STYLE = "nanoGPT", "Trainer", "argparse", "unknown"

# Any training will do: the lines a dialect has do not depend on it.
_ANY = Training(batch_size=1, sequence_tokens=1, accumulation=1, dtype="bfloat16", compiled=False)
_TRAINER_NAMES = frozenset({"HfArgumentParser", "TrlParser", "TrainingArguments", "SFTConfig"})
_CONFIGS = (".py", ".json", ".yaml", ".yml")
_WORLD = ("--nproc_per_node", "--nproc-per-node", "--num_processes")  # torchrun, accelerate
# Argparse names for a micro-batch and its accumulation, in addition to those that fit knows.
_ALSO = {
    "batch": "per_device_train_batch_size", "bs": "per_device_train_batch_size",
    "micro_batch": "per_device_train_batch_size", "device_batch_size": "per_device_train_batch_size",
    "grad_accum": "gradient_accumulation_steps", "grad_accum_steps": "gradient_accumulation_steps",
    "accum": "gradient_accumulation_steps", "accumulate": "gradient_accumulation_steps",
    "grad_accumulation_steps": "gradient_accumulation_steps",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The words of the command line, and what they mean to the script."""

    words: tuple[str, ...]
    begins: int  # index of the first word that belongs to the script
    style: str = UNKNOWN_STYLE
    script: Path | None = None
    keys: Mapping[str, str] = field(default_factory=dict)  # line of the dialect -> --key, --key= or key
    says: Mapping[str, Any] = field(default_factory=dict)  # line of the dialect -> its value, if known
    switches: frozenset[str] = frozenset()  # keys without a value: their presence is the setting
    config: Path | None = None
    gpus: int = 1
    globals: Mapping[str, Any] = field(default_factory=dict)  # of a nanoGPT script: every setting it knows

    @property
    def dialect(self) -> Dialect:
        return NANOGPT if self.style == NANOGPT_STYLE else ARGUMENTS

    @property
    def batch_keys(self) -> tuple[str, str]:
        """The lines for micro-batch and accumulation."""
        if self.style == NANOGPT_STYLE:
            return "batch_size", "gradient_accumulation_steps"
        return "per_device_train_batch_size", "gradient_accumulation_steps"

    def can_say(self, keys: Sequence[str]) -> bool:
        return all(key in self.keys for key in keys)

    def saying(self, lines: Mapping[str, Any]) -> Command:
        """The command with only these lines changed; earlier words for them are removed."""
        words = list(self.words)
        for line, value in lines.items():
            words = _with_value(words, self.begins, self.keys[line], value, switch=line in self.switches)
        return replace(self, words=tuple(words), says={**self.says, **lines})

    def adding(self, words: Sequence[str]) -> Command:
        """With words appended, each replacing an earlier one for the same key."""
        now = list(self.words)
        for word in words:
            key, equals, value = word.partition("=")
            now = _with_value(now, self.begins, key + equals, value, switch=not equals)
        return replace(self, words=tuple(now))


def _with_value(words: list[str], begins: int, key: str, value: object, *, switch: bool) -> list[str]:
    head, own = words[:begins], _without(words[begins:], key, switch=switch)
    if switch:
        return [*head, *own, *([key] if value is not False else [])]
    if key.endswith("=") or not key.startswith("-"):
        return [*head, *own, f"{key.rstrip('=')}={value}"]
    return [*head, *own, key, str(value)]


def _without(words: list[str], key: str, *, switch: bool) -> list[str]:
    plain = key.rstrip("=")
    kept, at = [], 0
    while at < len(words):
        word = words[at]
        if word == plain and not switch and key.startswith("-"):
            # A key that we write with "=" may have been given with its value in the next word.
            bare = key.endswith("=") and words[at + 1 : at + 2] and words[at + 1].startswith("-")
            at += 1 if bare else 2
            continue
        if word != plain and not word.startswith(f"{plain}="):
            kept.append(word)
        at += 1
    return kept


def read_command(words: Sequence[str], set_keys: Sequence[str] = ()) -> Command:
    """What the command line says. `set_keys` are `word=KEY`: this script's name for one of our settings."""
    if not words:
        raise BadInput(say("guard.no_command"))
    at = next((n for n, word in enumerate(words) if word.endswith(".py") and not word.startswith("-")), None)
    if at is None:
        # `python -m package …`: the words after the package are its own.
        begins = words.index("-m") + 2 if "-m" in words else 1
        found = Command(words=tuple(words), begins=begins)
    else:
        script = Path(words[at])
        found = Command(words=tuple(words), script=script, begins=at + 1, gpus=_world(words[:at]))
        found = _read_script(found, script)
    return _named(found, set_keys)


def _read_script(blank: Command, script: Path) -> Command:
    own = blank.words[blank.begins :]
    try:
        tree = parse_file(script)
    except BrimfulError:
        return blank  # missing, or not Python: the command itself will say so
    settings = _globals(tree)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    overruled = any(
        isinstance(node, ast.Constant) and node.value == "configurator.py" for node in ast.walk(tree)
    )
    if "batch_size" in settings and (overruled or "globals" in names):
        return _nanogpt(blank, own, settings)
    if names & _TRAINER_NAMES:
        return _trainer(blank, own)
    flags = _flags(tree)
    return _argparse(blank, own, flags) if flags else blank


def _world(launcher: Sequence[str]) -> int:
    """How many processes a launcher starts on this machine; one by default."""
    for n, word in enumerate(launcher):
        key, _, value = word.partition("=")
        if key in _WORLD:
            value = value or (launcher[n + 1] if n + 1 < len(launcher) else "")
            return integer_from_text(value, low=1, high=9999) or 1
    return 1


def _globals(tree: ast.Module) -> dict[str, Any]:
    """The settings at the top of a nanoGPT script: plain values assigned there."""
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
            try:
                found[target.id] = evaluate(node.value, found)
            except Unreadable:
                # nanoGPT's dtype depends on the card: bf16 if a card supports it.
                if target.id == "dtype":
                    found[target.id] = DEFAULTS["dtype"]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flag:
    """An argparse option, by its long name."""

    default: Any
    switch: bool
    short: tuple[str, ...]  # other names with one dash: -b


def _flags(tree: ast.Module) -> dict[str, _Flag]:
    """The options declared with argparse."""
    found: dict[str, _Flag] = {}
    for node in ast.walk(tree):
        if not (
            isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument" and node.args
        ):
            continue
        names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        flag = next((name for name in names if name.startswith("--")), None)
        if flag is None:
            continue
        options = {k.arg: k.value for k in node.keywords if k.arg}
        action, default = options.get("action"), options.get("default")
        switch = isinstance(action, ast.Constant) and action.value == "store_true"
        try:
            value = evaluate(default, {}) if default is not None else (False if switch else None)
        except Unreadable:
            value = None
        short = tuple(name for name in names if re.fullmatch("-[^-]", name))
        found[flag] = _Flag(default=value, switch=switch, short=short)
    return found


def _long_names(words: Sequence[str], flags: Mapping[str, _Flag]) -> list[str]:
    """The words with every option by its long name: `-b 8`, `-b8` and `--batch 8` mean --batch-size too."""
    longs = {short: flag for flag, option in flags.items() for short in option.short}
    full: list[str] = []
    for word in words:
        head, equals, text = word.partition("=")
        if word[:2] in longs:
            flag, text = longs[word[:2]], word[2:].removeprefix("=")
            full.append(f"{flag}={text}" if text else flag)
            continue
        meant = [flag for flag in flags if flag.startswith(head)] if head.startswith("--") else []
        full.append(f"{meant[0]}{equals}{text}" if len(meant) == 1 and len(head) > 2 else word)
    return full


def _nanogpt(blank: Command, own: Sequence[str], settings: Mapping[str, Any]) -> Command:
    config = next((Path(word) for word in own if not word.startswith("-")), None)
    says = dict(settings)
    with suppress(BrimfulError):  # a config that cannot be read: the prediction will say so
        says |= nanogpt_values(config) if config is not None else {}
    for word in own:
        key, equals, text = word.removeprefix("--").partition("=")
        if word.startswith("--") and equals:
            says[key] = _value(text)
    lines = NANOGPT.lines(replace(_ANY, compiled=True))
    return replace(
        blank,
        style=NANOGPT_STYLE,
        keys={line: f"--{line}=" for line in lines if line in settings},
        says={line: says[line] for line in lines if line in says},
        config=config,
        globals=says,
    )


def _trainer(blank: Command, own: Sequence[str]) -> Command:
    said = spoken(own)
    lines = {line: value for key, value in said.items() if (line := own_name(key)) is not None}
    config = _config(own)
    # A single file is then all that HfArgumentParser reads; TRL also takes words beside it.
    alone = config is not None and len(own) == 1
    keys = {} if alone else {line: f"--{line}" for line in ARGUMENTS.lines(_ANY)}
    defaults = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    return replace(blank, style=TRAINER_STYLE, keys=keys, says={**defaults, **lines}, config=config)


def _argparse(blank: Command, own: Sequence[str], flags: Mapping[str, _Flag]) -> Command:
    keys: dict[str, str] = {}
    says: dict[str, Any] = {}
    switches: set[str] = set()
    said = spoken(_long_names(own, flags))
    for flag, option in flags.items():
        plain = flag.removeprefix("--").replace("-", "_")
        line = own_name(plain) or _ALSO.get(plain)
        if line is None or line in keys:
            continue
        keys[line] = flag
        if option.switch:
            switches.add(line)
        value = said.get(plain, option.default)
        if value is not None:
            says[line] = value
    config, switched = _config(own), frozenset(switches)
    return replace(blank, style=ARGPARSE_STYLE, keys=keys, says=says, switches=switched, config=config)


def _config(own: Sequence[str]) -> Path | None:
    return next((Path(w) for w in own if w.endswith(_CONFIGS) and not w.startswith("-")), None)


def spoken(words: Sequence[str]) -> dict[str, Any]:
    """`--key value`, `--key=value` and `--key` as settings; dashes in a key are underscores."""
    found: dict[str, Any] = {}
    for n, word in enumerate(words):
        if not word.startswith("--"):
            continue
        key, equals, text = word[2:].partition("=")
        after = words[n + 1] if n + 1 < len(words) else "--"
        value = _value(text) if equals else True if after.startswith("--") else _value(after)
        found[key.replace("-", "_")] = value
    return found


def _value(text: str) -> Any:
    """A number or truth value if it is one; else the word."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return evaluate(ast.parse(text, mode="eval").body, {})
    except (SyntaxError, ValueError, RecursionError, MemoryError, Unreadable):
        return text


def _named(command: Command, set_keys: Sequence[str]) -> Command:
    """With the keys the user named, and their current values if the command has them."""
    keys, says = dict(command.keys), dict(command.says)
    for text in set_keys:
        word, equals, key = text.partition("=")
        word = word.strip().replace("-", "_")
        line = word if command.style == NANOGPT_STYLE else own_name(word) or _ALSO.get(word)
        if not equals or not key.strip("-=") or line is None:
            raise BadInput(say("guard.bad_set_key", text=Quoted(text[:60])))
        keys[line] = key
        plain = key.rstrip("=")
        for n, said in enumerate(command.words[command.begins :], start=command.begins):
            if said.startswith(f"{plain}="):
                says[line] = _value(said.partition("=")[2])
            elif said == plain and n + 1 < len(command.words):
                says[line] = _value(command.words[n + 1])
    return replace(command, keys=keys, says=says)
