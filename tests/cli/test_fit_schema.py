"""The JSON of `brimful fit` is what its schema says, and the schema is what the page says."""

from __future__ import annotations

import copy
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import pytest

from brimful.cli.main import main
from brimful.specs.parts import PARTS, Moment

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = str(ROOT / "examples" / "nanogpt" / "train_fineweb.py")
SCHEMA = json.loads(files("brimful.fit").joinpath("fit.schema.json").read_text(encoding="utf-8"))
KINDS: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float),
    "null": type(None),
}  # fmt: skip

RUNS = {
    "out of memory": [EXAMPLE, "--gpu", "rtx-4070", "--other-mib", "2100"],
    "fits": ["--model", "gpt2", "--gpu", "b200"],
    "far too large": ["--model", "llama-3.1-405b", "--gpu", "t4", "--no-compile"],
    "ladder": [EXAMPLE, "--gpu", "rtx-4070", "--ladder"],
    "measured": [EXAMPLE, "--gpu", "4090", "--measured-mfu", "2", "--measured-tokens-per-s", "9000"],
    "guessed": ["--model", "bert-large", "--gpu", "h100", "--optimizer", "sophia", "--gpus", "8"],
    "adapter": ["--model", "mistral-7b", "--gpu", "4090", "--qlora"],
}


def faults(value: Any, schema: dict[str, Any], at: str = "$") -> list[str]:
    """What the value does otherwise than the schema says. Only the words of JSON Schema that ours uses."""
    if "$ref" in schema:
        return faults(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], at)
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{at}: {value!r} is none of {schema['enum']}"]
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    right = [k for k in kinds if isinstance(value, KINDS[k]) and (k == "boolean") == isinstance(value, bool)]
    if kinds and not right:
        return [f"{at}: {value!r} is no {kinds}"]
    if isinstance(value, dict):
        return _object_faults(value, schema, at)
    if isinstance(value, list):
        found = [
            f for n, part in enumerate(value) for f in faults(part, schema.get("items", {}), f"{at}[{n}]")
        ]
        few = not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        return [*found, f"{at} has {len(value)} items"] if few else found
    bounded = isinstance(value, (int, float))
    out = bounded and not schema.get("minimum", value) <= value <= schema.get("maximum", value)
    return [f"{at}: {value} is out of bounds"] if out else []


def _object_faults(value: dict[str, Any], schema: dict[str, Any], at: str) -> list[str]:
    known, extra = schema.get("properties", {}), schema.get("additionalProperties", True)
    found = [f"{at}.{key} is missing" for key in schema.get("required", []) if key not in value]
    for key, part in value.items():
        if key in known or isinstance(extra, dict):
            found += faults(part, known.get(key, extra), f"{at}.{key}")
        elif extra is False:
            found.append(f"{at}.{key} is not in the schema")
    return found


def data(capsys: pytest.CaptureFixture[str], words: list[str]) -> Any:
    main(["fit", *words, "--json"])
    return json.loads(capsys.readouterr().out)["data"]


@pytest.mark.parametrize("run", RUNS)
def test_what_fit_prints_is_what_the_schema_says(capsys: pytest.CaptureFixture[str], run: str) -> None:
    assert faults(data(capsys, RUNS[run]), SCHEMA) == []


def test_every_row_of_a_comparison_is_what_the_schema_says(capsys: pytest.CaptureFixture[str]) -> None:
    for row in data(capsys, [*RUNS["out of memory"], "--compare", "batch_size=1", "n_layer=96"])["compared"]:
        answer = {
            key: value for key, value in row.items() if key not in ("name", "name_code", "effective_batch")
        }
        assert faults(answer, SCHEMA) == []
        assert (row["largest_batch"] is not None) or not row["fits"]


def test_the_check_notices_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    good = data(capsys, RUNS["out of memory"])

    def broken(**changes: Any) -> list[str]:
        return faults({**copy.deepcopy(good), **changes}, SCHEMA)

    assert broken(fits="no")
    assert broken(verdict="perhaps")
    assert broken(sparkle=1)
    assert broken(usable_bytes=-1)
    assert broken(usable_bytes=1.5)
    assert broken(fixes=[{**good["fixes"][0], "change": {"batch_size": [16]}}])
    assert faults({key: good[key] for key in good if key != "memory"}, SCHEMA) == ["$.memory is missing"]


def test_the_items_sum_to_the_device_counter_in_every_run(capsys: pytest.CaptureFixture[str]) -> None:
    for words in RUNS.values():
        memory = data(capsys, words)["memory"]
        total = sum(item["bytes"] for item in memory["items"])
        assert total == pytest.approx(memory["device_bytes"]["likely"], abs=len(memory["items"]))


def test_the_schema_lists_the_codes_of_parts_and_moments() -> None:
    memory = SCHEMA["$defs"]["memory"]["properties"]

    assert memory["items"]["items"]["properties"]["code"]["enum"] == list(PARTS)
    assert memory["peak_at_code"]["enum"] == list(get_args(Moment))


def test_the_page_names_every_field() -> None:
    page = (ROOT / "docs" / "reference" / "fit-json.md").read_text(encoding="utf-8")
    objects = [SCHEMA, *SCHEMA["$defs"].values()]
    names = {name for schema in objects for name in schema.get("properties", {})}

    assert names <= set(re.findall(r"`(\w+)`", page))
