"""`Reading`: what every reader returns, and `Dialect`: how that kind of config expresses a `Training`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from brimful.configs.words import precision_of
from brimful.language import Sentence, say
from brimful.specs.estimate import Assumption
from brimful.specs.model import Model
from brimful.specs.training import Training

Change = dict[str, tuple[Any, Any]]  # a line of the config -> (now, then)

# Fields of Training that our own flags and `--set` call something else.
OWN = {
    "sequence_tokens": "seq_len",
    "accumulation": "gradient_accumulation_steps",
    "compiled": "compile",
}
# Fields that share a name, or that several names set.
_SHARED = {
    "dtype": ("precision",),
    "casts": ("precision",),
    "optimizer": ("optimizer",),
    "optimizer_kernel": ("optimizer",),
    "tuning": ("lora", "qlora"),
    "frozen_bits": ("lora", "qlora"),
    "shards": ("sharding",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """`lines` writes a training as that kind of config would; fields outside `says` need a change in code."""

    name: str
    says: frozenset[str]  # fields of Training that a line of this config can set
    lines: Callable[[Training], Mapping[str, Any]]
    code: object  # what must be edited if no line can express it: a file, or the training script
    # Values of a field that no line can express.
    unsaid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def spell(self, before: Training, after: Training) -> tuple[Change, bool]:
        """The lines that turn one training into the other, and whether lines alone are enough."""
        changed = [f.name for f in fields(Training) if getattr(before, f.name) != getattr(after, f.name)]
        now, then = self.lines(before), self.lines(after)
        change: Change = {key: (now.get(key), then[key]) for key in then if now.get(key) != then[key]}
        unsaid = [
            name
            for name in changed
            if name not in self.says or getattr(after, name) in self.unsaid.get(name, ())
        ]
        own_now, own_then = own_lines(before), own_lines(after)
        keys = [key for name in unsaid for key in _SHARED.get(name, (OWN.get(name, name),))]
        change |= {
            key: (own_now.get(key), own_then.get(key))
            for key in keys
            if own_now.get(key) != own_then.get(key)
        }
        return change, not unsaid


def own_lines(training: Training) -> dict[str, Any]:
    """A training in our own names, those of the flags and of `--set`: reading them restores it."""
    t = training
    values = {f.name: getattr(t, f.name) for f in fields(Training)}
    said = {OWN.get(name, name): value for name, value in values.items() if name not in _SHARED}
    said["framework"] = t.framework.name
    said["torch"] = t.torch.release
    said["precision"] = precision_of(values)
    said["optimizer"] = f"adamw-{t.optimizer_kernel}" if t.optimizer == "adamw" else t.optimizer
    adapted = t.tuning == "lora"
    said["qlora" if adapted and t.frozen_bits else "lora"] = adapted
    without = {"state_dtype", "adapter_dtype", *(() if adapted else ("rank", "targets"))}
    return {key: value for key, value in said.items() if key not in without}


def some_of(names: Sequence[str], most: int) -> object:
    """'a, b and 3 more'."""
    shown = ", ".join(names[:most])
    return say("configs.and_more", names=shown, n=len(names) - most) if len(names) > most else shown


FLAGS = Dialect(
    name="flags",
    says=frozenset(f.name for f in fields(Training)),
    lines=own_lines,
    code=say("configs.training_script"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    model: Model
    training: Training
    assumed: tuple[Assumption, ...]  # left out of the file, filled with the trainer's defaults
    warnings: tuple[Sentence, ...]  # seen in the file and not used
    unsure: int = 0  # settings that got a fallback: each widens the interval
    dialect: Dialect = FLAGS
    file: Path | None = None  # the file whose lines say how it is trained


def change_text(change: Mapping[str, Sequence[Any]]) -> str:
    """'batch_size 16 -> 8, compile True': the same in every language; a new line has no old value."""
    return ", ".join(
        f"{key} {then}" if now is None else f"{key} {now} -> {then}" for key, (now, then) in change.items()
    )
