"""Batch inference that may be killed at any moment: JSON lines in, JSON lines out, each line once, in order.

The input is divided into shards. A worker holds a shard by a lock that the kernel drops when it dies, appends
one record for each line, and resumes where the last one stopped: a line that was begun and not written is
done again, one that was written never is. When all shards are complete, they are joined in the order of the
input. Any number of workers, on any machines that share the folder, may come and go.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from brimful.errors import BadInput, WorldFailed
from brimful.files import open_given, write_whole
from brimful.language import Quoted, say
from brimful.language.failures import needs_package, os_errors_as
from brimful.units import HOUR_S

SHARD_LINES = 250


class Answer(NamedTuple):
    text: str
    prompt_tokens: int
    output_tokens: int


Generate = Callable[[str], Answer]


@dataclass(slots=True)
class Report:
    lines: int = 0
    failed: int = 0  # lines that could not be read, or that the model refused: their record says why
    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0  # of all workers together

    def usd_per_million_tokens(self, usd_per_hour: float) -> float | None:
        tokens = self.prompt_tokens + self.output_tokens
        return self.seconds / HOUR_S * usd_per_hour / tokens * 1e6 if tokens else None


@dataclass(slots=True)
class Batch:
    """One input, its folder of shards, and its output."""

    source: Path
    target: Path
    shard_lines: int = SHARD_LINES
    _starts: list[int] = field(default_factory=list)  # where each line begins

    def __post_init__(self) -> None:
        at, digest, source = 0, hashlib.sha256(), self.source
        with os_errors_as("guard.batch_unreadable", BadInput, path=source), open_given(source) as file:
            for line in file:
                self._starts.append(at)
                at += len(line)
                digest.update(line)
        if not self._starts:
            raise BadInput(say("guard.batch_empty", path=self.source))
        plan = {"sha256": digest.hexdigest(), "lines": len(self._starts), "shard_lines": self.shard_lines}
        self.folder.mkdir(parents=True, exist_ok=True)
        with _locked(self.folder / "plan.lock", wait=True):
            known = self.folder / "plan.json"
            if not known.exists():
                write_whole(known, json.dumps(plan))
            elif json.loads(known.read_text(encoding="utf-8")) != plan:
                raise BadInput(say("guard.batch_other_input", folder=self.folder))

    @property
    def folder(self) -> Path:
        return self.target.with_name(f"{self.target.name}.parts")

    @property
    def shards(self) -> int:
        return -(-len(self._starts) // self.shard_lines)

    def work(self, generate: Generate) -> int:
        """Process every shard that no other worker holds, until none is left; returns the number of lines."""
        done = 0
        for shard in range(self.shards):
            with _locked(self._path(shard, "lock"), wait=False) as mine:
                if mine:
                    done += self._work_on(shard, generate)
        return done

    def is_done(self) -> bool:
        return all(len(self._records(shard)) == len(self._lines(shard)) for shard in range(self.shards))

    def join(self) -> Report:
        """All records in the order of the input, in one file; refused while any is missing."""
        report = Report()
        if not self.is_done():
            raise WorldFailed(say("guard.batch_unfinished", folder=self.folder))
        texts: list[str] = []
        for shard in range(self.shards):
            records = self._records(shard)
            for line in self._lines(shard):
                record = records[line]
                report.lines += 1
                report.failed += "error" in record
                report.prompt_tokens += record.pop("prompt_tokens", 0)
                report.output_tokens += record.pop("output_tokens", 0)
                report.seconds += record.pop("seconds", 0.0)
                texts.append(json.dumps(record, ensure_ascii=False))
        write_whole(self.target, "\n".join(texts) + "\n")
        return report

    def _work_on(self, shard: int, generate: Generate) -> int:
        path = self._path(shard, "jsonl")
        records, whole = _read(path)
        missing = [line for line in self._lines(shard) if line not in records]
        if not missing:
            return 0
        with self.source.open("rb") as source, path.open("ab") as out:
            out.truncate(whole)  # a partial record of a killed worker
            for line in missing:
                source.seek(self._starts[line])
                record = _answered(line, source.readline(), generate)
                out.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
                out.flush()
            os.fsync(out.fileno())
        return len(missing)

    def _lines(self, shard: int) -> range:
        first = shard * self.shard_lines
        return range(first, min(first + self.shard_lines, len(self._starts)))

    def _records(self, shard: int) -> dict[int, dict[str, Any]]:
        return _read(self._path(shard, "jsonl"))[0]

    def _path(self, shard: int, kind: str) -> Path:
        return self.folder / f"shard-{shard:06d}.{kind}"


def _read(path: Path) -> tuple[dict[int, dict[str, Any]], int]:
    """Records by line, and the byte up to which they are complete."""
    records: dict[int, dict[str, Any]] = {}
    whole = 0
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}, 0
    for line in text.splitlines(keepends=True):
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n"):
            break
        records.setdefault(record["line"], record)
        whole += len(line)
    return records, whole


def _answered(line: int, text: bytes, generate: Generate) -> dict[str, Any]:
    begun_s = time.monotonic()
    record: dict[str, Any] = {"line": line}
    try:
        asked = json.loads(text)
        if isinstance(asked, dict) and "custom_id" in asked:
            record["custom_id"] = asked["custom_id"]
        answer = generate(prompt_of(asked))
        record |= {"output": answer.text, "prompt_tokens": answer.prompt_tokens}
        record["output_tokens"] = answer.output_tokens
    except (ValueError, KeyError, TypeError) as error:
        record["error"] = f"{type(error).__name__}: {error}"[:200]
    record["seconds"] = round(time.monotonic() - begun_s, 6)
    return record


def prompt_of(asked: Any) -> str:
    """From `{"prompt": …}`, or from a request in the format of OpenAI's batches."""
    if not isinstance(asked, dict):
        raise TypeError("a line is a JSON object with a prompt, or with a body of messages")
    if "prompt" in asked:
        return str(asked["prompt"])
    return "\n".join(str(each["content"]) for each in asked["body"]["messages"])


@contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Whether we hold the lock; the kernel drops it when we die."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def load_model(name: str, *, output_tokens: int) -> Generate:
    """`tiny`: a byte bigram model, for trials. Any other name is a transformers model."""
    if name == "tiny":
        return lambda prompt: _tiny(prompt, output_tokens)
    with needs_package("guard.batch_needs_transformers", code=None, model=Quoted(name[:80])):
        from transformers import pipeline
    pipe = pipeline("text-generation", model=name)

    def generate(prompt: str) -> Answer:
        text = pipe(prompt, max_new_tokens=output_tokens, return_full_text=False)[0]["generated_text"]
        tokens = pipe.tokenizer
        return Answer(text, len(tokens.encode(prompt)), len(tokens.encode(text)))

    return generate


def _tiny(prompt: str, output_tokens: int) -> Answer:
    """The byte that most often follows the last one, repeatedly: fast, and the same every time."""
    data = prompt.encode() or b" "
    follows: dict[int, dict[int, int]] = {}
    for a, b in zip(data, data[1:] + data[:1], strict=True):
        counts = follows.setdefault(a, {})
        counts[b] = counts.get(b, 0) + 1
    last, out = data[-1], bytearray()
    for _ in range(output_tokens):
        last = max(follows[last].items(), key=lambda each: (each[1], each[0]))[0]
        out.append(last)
    return Answer(out.decode(errors="replace"), len(data), output_tokens)
