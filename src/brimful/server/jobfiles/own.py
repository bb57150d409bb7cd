"""brimful.yaml. The table below is the format: its schema, its page and its reader are generated from it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from brimful.adapters.engines.devices import catalog_names
from brimful.errors import BadInput
from brimful.fleet.arrays import after_from, tasks_from
from brimful.fleet.elastic.written import range_from, scaling_from
from brimful.language import Quoted, say
from brimful.server.jobfiles.jobfile import TIME as TIME_TEXT
from brimful.server.jobfiles.jobfile import JobFile, mebibytes, resolved, seconds
from brimful.units import microusd_from_usd

ID = "https://github.com/brimful/brimful/job.schema.json"
TEXT: dict[str, Any] = {"type": "string"}
WORDS: dict[str, Any] = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 1}
GPUS: dict[str, Any] = {"anyOf": [COUNT, TEXT]}
NUMBER: dict[str, Any] = {"type": "number", "minimum": 0}
USD: dict[str, Any] = {"anyOf": [NUMBER, TEXT]}
TIME: dict[str, Any] = {"anyOf": [{"type": "integer", "minimum": 0}, TEXT]}
PAIRS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}


def _words(value: Any, _what: str) -> list[str]:  # noqa: ANN401
    return [value] if isinstance(value, str) else list(value)


def _types(value: Any, what: str) -> list[str]:  # noqa: ANN401
    return catalog_names(_words(value, what))


def _command(value: Any, what: str) -> list[str]:  # noqa: ANN401
    program = value if isinstance(value, str) else "".join(value[:1])
    if not program.strip():
        raise BadInput(say("jobfile.cannot_be", field=what, given=Quoted(str(value)[:60])))
    return ["sh", "-c", value] if isinstance(value, str) else list(value)


def _gpus(value: Any, what: str) -> int | str:  # noqa: ANN401
    if isinstance(value, str):
        if ".." not in value:
            raise BadInput(say("jobfile.cannot_be", field=what, given=Quoted(value[:60])))
        range_from(value)
    found: int | str = value
    return found


def _usd(value: Any, what: str) -> int:  # noqa: ANN401
    found = microusd_from_usd(str(value))
    if not found:
        raise BadInput(say("jobfile.not_a_price", what=what, given=Quoted(str(value)[:40])))
    return found


def _array(value: Any, _what: str) -> str:  # noqa: ANN401
    tasks_from(str(value))
    return str(value)


def _after(value: Any, what: str) -> list[str]:  # noqa: ANN401
    return [":".join(after_from(word)) for word in _words(value, what)]


# `Fri 09:00`: the next such time in the reader's zone.
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY = re.compile(rf"(?i)({'|'.join(_DAYS)})[a-z]*\s+([01]?\d|2[0-3]):([0-5]\d)")


def _next(day: re.Match[str], now: datetime) -> int:
    """In local time, even across a daylight-saving change."""
    ahead = (_DAYS.index(day[1].lower()) - now.weekday()) % 7
    at = now.replace(tzinfo=None, hour=int(day[2]), minute=int(day[3]), second=0, microsecond=0)
    at += timedelta(days=ahead)
    if at <= now.replace(tzinfo=None):
        at += timedelta(days=7)
    return int(at.astimezone().timestamp())


def deadline(value: Any, what: str) -> int:  # noqa: ANN401
    """A time, or a duration from now."""
    if TIME_TEXT.fullmatch(str(value).strip()):
        return int(time.time()) + seconds(value, what)
    if (day := _DAY.fullmatch(str(value).strip())) is not None:
        return _next(day, datetime.now().astimezone())
    try:
        at = datetime.fromisoformat(str(value))
        return int(at.astimezone(UTC).timestamp())  # without a zone: the reader's own
    except (ValueError, OverflowError, OSError) as error:
        raise BadInput(say("jobfile.not_a_deadline", what=what, given=Quoted(str(value)[:40]))) from error


def _env(value: Any, _what: str) -> dict[str, str]:  # noqa: ANN401
    return {name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in value.items()}


class Field(NamedTuple):
    """Its description is `jobfile.field_<name>` in the catalogs."""

    schema: dict[str, Any]
    target: str = ""  # the submission's field; empty: handled by `read_own`
    read: Callable[[Any, str], Any] = lambda value, _what: value

    def help(self, name: str) -> str:
        return str(say(f"jobfile.field_{name}"))


FIELDS: dict[str, Field] = {
    "command": Field(WORDS, "command", _command),
    "name": Field(TEXT, "name"),
    "folder": Field(TEXT),
    "gpus": Field(GPUS, "gpus", _gpus),
    "scaling": Field(TEXT, "scaling", lambda value, _what: scaling_from(value)),
    "gpu": Field(WORDS, "gpu_types", _types),
    "tier": Field(WORDS, "tiers", _words),
    "within": Field({"enum": ["nvlink", "node", "rack", "site", "any"]}, "within"),
    "sites": Field(WORDS, "sites", _words),
    "tenant": Field(TEXT, "tenant"),
    "project": Field(TEXT, "project"),
    "queue": Field(TEXT, "queue"),
    "priority": Field({"enum": ["urgent", "normal", "background"]}, "priority"),
    "budget": Field(USD, "budget_microusd", _usd),
    "max_price": Field(USD, "limit_microusd_per_gpu_hour", _usd),
    "deadline": Field(TEXT, "deadline_s", deadline),
    "deferrable": Field({"type": "boolean"}, "deferrable"),
    "max_run": Field(TIME, "max_run_s", seconds),
    "retries": Field({"type": "integer", "minimum": 0, "maximum": 100}, "retries"),
    "array": Field(TIME, "array", _array),
    "after": Field(WORDS, "after", _after),
    "cpus": Field(NUMBER, "cpus"),
    "memory": Field(TEXT, "memory_mib", mebibytes),
    "compute": Field(NUMBER, "compute"),
    "gpu_memory": Field(TEXT, "gpu_memory_bytes", lambda value, what: mebibytes(value, what) << 20),
    "env": Field(PAIRS, "env", _env),
    "env_from": Field({"type": "array", "items": TEXT}),
    "checkpoint_every": Field(TIME, "checkpoint_interval_s", seconds),
    "restart_takes": Field(TIME, "checkpoint_cost_s", seconds),
    "fit": Field(TEXT),
    "steps": Field(COUNT),
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
        "properties": {
            name: {**field.schema, "description": field.help(name)} for name, field in FIELDS.items()
        },
    }


def read_own(data: dict[str, Any], path: Path) -> JobFile:
    unknown = [name for name in data if name not in FIELDS]
    if unknown:
        from difflib import get_close_matches

        near = get_close_matches(unknown[0], FIELDS, n=1)
        hint = say("jobfile.hint_did_you_mean", name=Quoted(near[0])) if near else None
        names = ", ".join(map(repr, unknown))[:200]
        raise BadInput(say("jobfile.unknown_fields", path=path, names=names), hint=hint)
    if data.get("command") is None:
        raise BadInput(say("jobfile.no_command", path=path))
    for name, value in data.items():
        if value is not None and not _fits(value, FIELDS[name].schema):
            raise BadInput(say("jobfile.cannot_be", field=f"{path}: {name}", given=Quoted(str(value)[:60])))
    body: dict[str, Any] = {"folder": resolved(path.parent, data.get("folder") or ".", f"{path}: folder")}
    for name, field in FIELDS.items():
        if field.target and data.get(name) is not None:
            body[field.target] = field.read(data[name], f"{path}: {name}")
    return JobFile(
        kind="brimful",
        body=body,
        fit=resolved(path.parent, data["fit"], f"{path}: fit") if data.get("fit") else "",
        steps=data.get("steps"),
        env_from=list(data.get("env_from") or ()),
    )


KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def _fits(value: Any, schema: dict[str, Any]) -> bool:  # noqa: ANN401
    return any(_matches(value, each) for each in schema.get("anyOf", [schema]))


def _matches(value: Any, schema: dict[str, Any]) -> bool:  # noqa: ANN401
    """Implements the few JSON Schema keywords that the table uses."""
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
        return all(_matches(each, schema["items"]) for each in value)
    if isinstance(value, dict):
        return all(
            isinstance(key, str) and _matches(v, schema["additionalProperties"]) for key, v in value.items()
        )
    return True
