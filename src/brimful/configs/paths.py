"""Settings by their full path in a framework: `train.micro_batch_size`, and no other of that name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from brimful.configs.bounds import is_whole, shown
from brimful.errors import BadInput
from brimful.language import Sentence, say
from brimful.specs.estimate import Assumption

_MAX_LEVELS = 8  # deeper levels are not searched
_MAX_TOLD = 5


@dataclass(slots=True)
class Settings:
    """A file of settings, looked up by path.

    It remembers the names that were looked up, since the same name elsewhere deserves a warning; and settings
    that the framework reads and we do not.
    """

    file: str
    found: Mapping[str, Any]
    overruled: Collection[str] = ()  # keys given on the command line: their value in the file does not matter
    asked: list[str] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)  # every path that was looked up
    unread: list[str] = field(default_factory=list)
    defaults: dict[str, int] = field(default_factory=dict)

    def at(self, path: str, default: Any = None) -> Any:  # noqa: ANN401 - whatever the file holds
        """The value at the path; the default if it is missing or empty."""
        self.looked.append(path)
        found: Any = self.found
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return default if found is None else found

    def text(self, path: str) -> str:
        """The text at the path; empty if there is none."""
        return str(self.at(path, ""))

    def setting(self, path: str) -> Any:  # noqa: ANN401 - whatever the file holds
        """The value at a path whose last name says what it is."""
        self.asked.append(path)
        return self.at(path)

    def integer(self, path: str, word: str) -> int | None:
        """The whole number there; None if it is left to the framework. `word` is our name for it."""
        value = self.setting(path)
        if value is None or value in ("auto", -1):
            return None
        if is_whole(value, 1, 10**9 - 1):
            return value
        if word in self.overruled:
            return None
        values = {"file": self.file, "path": path, "shown": shown(value), "word": word}
        raise BadInput(say("configs.path_out_of_range", **values))

    def default(self, word: str, value: int) -> int:
        """The framework's own value for what the file leaves out."""
        if word not in self.overruled:
            self.defaults[word] = value
        return value

    def assumed(self, who: str) -> list[Assumption]:
        why = say("configs.why_framework_default", framework=who)
        return [Assumption(name=name, value=value, why=why) for name, value in self.defaults.items()]

    def leave(self, *names: str) -> None:
        """Settings that matter and are not read: they deserve a warning if switched on."""
        self.unread += [name for name in names if str(self.at(name)) not in ("None", "False", "1")]

    def ignored(self, who: str) -> list[Sentence]:
        """Warnings about settings that are in a place where nothing reads them, or that we do not read."""
        said = [say("configs.ignored_though_read", path=path, who=who) for path in self.unread]
        reads = {path.rpartition(".")[2]: path for path in reversed(self.asked)}
        for path in paths(self.found):
            where = reads.get(path.rpartition(".")[2])
            if where is not None and path not in self.asked:
                said.append(say("configs.ignored_elsewhere", path=path[:80], who=who, where=where))
        return said[:_MAX_TOLD]


def with_value(found: Mapping[str, Any], path: str, value: object) -> Mapping[str, Any]:
    """A copy with another value at the path."""
    name, _, rest = path.partition(".")
    if not rest:
        return {**found, name: value}
    below = found.get(name)
    return {**found, name: with_value(below if isinstance(below, Mapping) else {}, rest, value)}


def paths(found: Mapping[str, Any]) -> Iterator[str]:
    """The path of everything in the file: `train`, `train.micro_batch_size`, `stages.0.batch_size`."""
    left: list[tuple[str, Any]] = [("", found)]
    while left:
        path, value = left.pop(0)
        inside = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, below in inside:
            here = f"{path}.{name}" if path else str(name)
            yield here
            if isinstance(below, (Mapping, list)) and here.count(".") < _MAX_LEVELS:
                left.append((here, below))
