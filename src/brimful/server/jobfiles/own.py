"""brimful.yaml. The table below is the format: its schema, its page and its reader are made of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from brimful.adapters.engines.devices import catalog_name
from brimful.errors import BadInput
from brimful.language import Quoted, say
from brimful.server.jobfiles.jobfile import JobFile, mebibytes, seconds
from brimful.units import microusd_from_usd

ID = "https://github.com/brimful/brimful/job.schema.json"
TEXT: dict[str, Any] = {"type": "string"}
WORDS: dict[str, Any] = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 1}
NUMBER: dict[str, Any] = {"type": "number", "minimum": 0}
USD: dict[str, Any] = {"anyOf": [NUMBER, TEXT]}
TIME: dict[str, Any] = {"anyOf": [{"type": "integer", "minimum": 0}, TEXT]}


class Field(NamedTuple):
    schema: dict[str, Any]
    help: str


FIELDS: dict[str, Field] = {
    "command": Field(WORDS, "what to run: a list of words, or one text for `sh`; required"),
    "name": Field(TEXT, "what to call it in lists"),
    "folder": Field(TEXT, "where it runs, from the file's own folder on (default: that folder)"),
    "gpus": Field(COUNT, "how many (default 1)"),
    "gpu": Field(WORDS, "allowed GPU types, however you write them (default: any)"),
    "within": Field(
        {"enum": ["nvlink", "node", "rack", "site", "any"]}, "how close together they must be (default node)"
    ),
    "sites": Field(WORDS, "allowed sites (default: any)"),
    "tenant": Field(TEXT, "whose account pays (default: your token's)"),
    "queue": Field(TEXT, "which queue it waits in (default: the tenant's own)"),
    "priority": Field({"enum": ["urgent", "normal", "background"]}, "who goes first (default normal)"),
    "budget": Field(USD, "dollars; it is stopped before it costs more"),
    "max_price": Field(USD, "dollars per GPU-hour; above that it waits"),
    "deadline": Field(
        TEXT,
        "when it should be done: 2026-12-01T18:00, in your time zone unless it names one; once half of the "
        "time it could wait is over, it goes first in its class",
    ),
    "deferrable": Field({"type": "boolean"}, "may wait for quiet hours (default false)"),
    "max_run": Field(TIME, "stopped after this much running time: 90s, 15m, 4h, 2d"),
    "retries": Field({"type": "integer", "minimum": 0, "maximum": 100}, "starts again so often if it fails"),
    "cpus": Field(NUMBER, "CPU cores, for the whole gang"),
    "memory": Field(TEXT, "main memory for the whole gang: 16GiB"),
    "env": Field(
        {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
        "its environment; the values are kept from the log",
    ),
    "env_from": Field(
        {"type": "array", "items": TEXT}, "names of variables to take from your own environment at submit"
    ),
    "checkpoint_every": Field(TIME, "it saves at least so often; 0: also when told to stop"),
    "restart_takes": Field(TIME, "what a start from a checkpoint takes before it works again"),
    "fit": Field(TEXT, "its training config: brimful predicts bytes and step time for each GPU type"),
    "steps": Field(COUNT, "optimizer steps in all; with `fit`, how long it will take"),
}


def schema() -> dict[str, Any]:
    """JSON Schema of the file, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": ID,
        "title": "brimful job file",
        "type": "object",
        "required": ["command"],
        "additionalProperties": False,
        "properties": {name: {**field.schema, "description": field.help} for name, field in FIELDS.items()},
    }


def read_own(data: dict[str, Any], path: Path) -> JobFile:
    unknown = [name for name in data if name not in FIELDS]
    if unknown:
        from difflib import get_close_matches

        near = get_close_matches(unknown[0], FIELDS, n=1)
        hint = say("server.hint_job_file_fields")
        if near:
            hint = say("server.hint_did_you_mean", name=Quoted(near[0]))
        raise BadInput(
            say("server.says_no_job_file", path=path, a=", ".join(map(repr, unknown))[:200]), hint=hint
        )
    if "command" not in data:
        raise BadInput(say("server.names_no_command", path=path))
    for name, value in data.items():
        _check(value, FIELDS[name].schema, f"{path}: {name}")
    body: dict[str, Any] = {"folder": str((path.parent / str(data.get("folder", "."))).resolve())}
    for name, (target, read) in READERS.items():
        if data.get(name) is not None:
            body[target] = read(data[name], f"{path}: {name}")
    return JobFile(
        kind="brimful",
        body=body,
        fit=str((path.parent / data["fit"]).resolve()) if data.get("fit") else "",
        steps=data.get("steps"),
        env_from=list(data.get("env_from") or ()),
    )


def _same(value: Any, _what: str) -> Any:  # noqa: ANN401
    return value


def _words(value: Any, _what: str) -> list[str]:  # noqa: ANN401
    return [value] if isinstance(value, str) else list(value)


def _command(value: Any, _what: str) -> list[str]:  # noqa: ANN401
    return ["sh", "-c", value] if isinstance(value, str) else list(value)


def _usd(value: Any, what: str) -> int:  # noqa: ANN401
    found = microusd_from_usd(str(value))
    if not found:
        raise BadInput(say("server.is", what=what, str=Quoted(str(value)[:40])))
    return found


def _deadline(value: Any, what: str) -> int:  # noqa: ANN401
    try:
        at = datetime.fromisoformat(str(value))
        return int(at.astimezone(UTC).timestamp())  # without a zone: the reader's own
    except (ValueError, OverflowError, OSError) as error:
        raise BadInput(
            say("server.no_time", what=what, str=Quoted(str(value)[:40])),
            hint=say("server.hint_n_2026_12_01t18_00"),
        ) from error


def _env(value: Any, _what: str) -> dict[str, str]:  # noqa: ANN401
    return {name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in value.items()}


# Field -> the field of the submission, and how it is read.
READERS: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "command": ("command", _command),
    "name": ("name", _same),
    "gpus": ("gpus", _same),
    "gpu": ("gpu_types", lambda value, what: [catalog_name(word) for word in _words(value, what)]),
    "within": ("within", _same),
    "sites": ("sites", _words),
    "tenant": ("tenant", _same),
    "queue": ("queue", _same),
    "priority": ("priority", _same),
    "budget": ("budget_microusd", _usd),
    "max_price": ("limit_microusd_per_gpu_hour", _usd),
    "deadline": ("deadline_s", _deadline),
    "deferrable": ("deferrable", _same),
    "max_run": ("max_run_s", seconds),
    "retries": ("retries", _same),
    "cpus": ("cpus", _same),
    "memory": ("memory_mib", mebibytes),
    "env": ("env", _env),
    "checkpoint_every": ("checkpoint_interval_s", seconds),
    "restart_takes": ("checkpoint_cost_s", seconds),
}

KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def _check(value: Any, schema: dict[str, Any], what: str) -> None:  # noqa: ANN401
    """The few words of JSON Schema that the table uses."""
    if value is None:
        return
    if "anyOf" in schema:
        if not any(_is(value, each) for each in schema["anyOf"]):
            raise _wrong(value, what)
    elif not _is(value, schema):
        raise _wrong(value, what)


def _is(value: Any, schema: dict[str, Any]) -> bool:  # noqa: ANN401
    if "enum" in schema:
        return value in schema["enum"]
    wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kinds = tuple(kind for name in wanted for kind in KINDS[name])
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        return False
    if isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get(
        "maximum", value
    ):
        return False
    if isinstance(value, list):
        return all(_is(each, schema["items"]) for each in value)
    if isinstance(value, dict):
        return all(
            isinstance(key, str) and _is(v, schema["additionalProperties"]) for key, v in value.items()
        )
    return True


def _wrong(value: Any, what: str) -> BadInput:  # noqa: ANN401
    return BadInput(say("server.cannot", what=what, str=Quoted(str(value)[:60])))
