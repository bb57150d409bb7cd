"""YAML is read as its author meant it; what could harm or mean two things is refused by line."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.configs.yaml_file import MAX_BYTES, MAX_DEPTH, MAX_VALUES, parse_yaml
from brimful.errors import BadInput, WorldFailed
from brimful.language import say
from tests.builders import check_reason, refuses

ROOT = Path(__file__).resolve().parents[2]


def parse(text: str) -> dict[str, Any]:
    return parse_yaml(text, name="x.yaml")


def refusal(text: str) -> BadInput:
    with pytest.raises(BadInput) as refused:
        parse(text)
    assert refused.value.hint
    assert "x.yaml" in refused.value.problem
    assert len(refused.value.problem) < 300
    return refused.value


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("4096", 4096),
        ("-1", -1),
        ("10_000", 10_000),
        ("0x1F", 31),
        ("0b101", 5),
        ("1e-4", 0.0001),  # YAML 1.1: text
        ("5E5", 500_000.0),
        ("2.0e-05", 2e-05),
        (".5", 0.5),
        ("3.", 3.0),
        ("yes", True),
        ("On", True),
        ("TRUE", True),
        ("yEs", "yEs"),
        ("no", False),
        ("off", False),
        ("", None),
        ("~", None),
        ("Null", None),
        ("010", "010"),  # YAML 1.1: 8
        ("08", "08"),
        ("0o17", "0o17"),
        ("12:30", "12:30"),  # YAML 1.1: 750
        ("1:30:00", "1:30:00"),
        ("2026-12-01", "2026-12-01"),  # YAML 1.1: a date
        ("2026-12-01T18:00:00Z", "2026-12-01T18:00:00Z"),
        (".inf", ".inf"),
        ("1e999", "1e999"),
        ("9" * 40, "9" * 40),
        ("1.2.3", "1.2.3"),
        ("bf16-true", "bf16-true"),
        ("A100:8", "A100:8"),
        ("=", "="),
        ("'no'", "no"),
        ('"1e-4"', "1e-4"),
        ("'010'", "010"),
    ],
)
def test_a_value_is_what_its_author_meant(written: str, value: object) -> None:
    found = parse(f"key: {written}  # why\n")["key"]

    assert found == value
    assert isinstance(found, bool) == isinstance(value, bool)
    assert isinstance(found, int) == isinstance(value, int)


@pytest.mark.parametrize("written", ["1e-4", "3.10", "0.50", "1_0.5"])
def test_a_number_prints_as_it_was_written(written: str) -> None:
    number = parse(f"key: {written}")["key"]

    assert str(number) == f"{number}" == str(deepcopy(number)) == written
    assert number == float(written.replace("_", ""))


def test_depth_is_kept_and_text_stays_text() -> None:
    found = parse(
        """
train:
  micro_batch_size: 4
  stage_two:
    micro_batch_size: 64
  notes: |
    micro_batch_size: 64
  folded: >-
    one
    two
stages:
- {micro_batch_size: 8, layers: [1, [2, 3]]}
quoted: "a: b # c"
"""
    )

    assert found == {
        "train": {
            "micro_batch_size": 4,
            "stage_two": {"micro_batch_size": 64},
            "notes": "micro_batch_size: 64\n",
            "folded": "one two",
        },
        "stages": [{"micro_batch_size": 8, "layers": [1, [2, 3]]}],
        "quoted": "a: b # c",
    }


def test_a_key_is_always_text() -> None:
    assert parse("on: 1\n1: 2\n~: 3\n1.10: 4\n2026-12-01: 5\n'': 6\n") == {
        "on": 1, "1": 2, "~": 3, "1.10": 4, "2026-12-01": 5, "": 6,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "---\n...\n"])
def test_an_empty_file_says_nothing(text: str) -> None:
    assert parse(text) == {}


def test_line_ends_and_a_document_mark_do_not_matter() -> None:
    assert parse("---\r\na: 1\r\nb: |\r\n  x\r\n  y\r\n...\r\n") == {"a": 1, "b": "x\ny\n"}
    assert parse("%YAML 1.2\n---\na: yes\n") == {"a": True}


LAUGHS = "a: &a [x,x,x]\n" + "".join(
    f"{chr(n)}: &{chr(n)} [{','.join([f'*{chr(n - 1)}'] * 9)}]\n" for n in range(98, 123)
)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (LAUGHS, 1, "aliases_refused"),
        ("b: 1\na: *nothing", 2, "aliases_refused"),
        ("base: &base {a: 1}\nb:\n  <<: *base", 1, "aliases_refused"),
        ("a: &a 1", 1, "aliases_refused"),
        ("&a b: 1", 1, "aliases_refused"),
        ("a: !!python/object/apply:os.system ['touch PWNED']", 1, "tags_refused"),
        ("a: !!python/name:os.system", 1, "tags_refused"),
        ("- !!python/object/new:subprocess.Popen [[touch, PWNED]]", 1, "not_a_mapping"),
        ("!!python/object/apply:os.system\n- touch PWNED", 1, "tags_refused"),
        ("a: 1\nb: !!int '3'", 2, "tags_refused"),
        ("a: !env HOME", 1, "tags_refused"),
        ("a: !!binary aGVsbG8=", 1, "tags_refused"),
        ("? !!python/object/apply:os.system ['touch PWNED']\n: 1", 1, "tags_refused"),
        ("a: 1\nb: 2\na: 3", 3, "duplicate_key a"),
        ("a:\n  b: 1\n  'b': 2", 3, "duplicate_key b"),
        ("- {a: 1, a: 2}", 1, "not_a_mapping"),
        ("x: {a: 1, a: 2}", 1, "duplicate_key a"),
        ("a: 1\n---\nb: 2", 2, "second_document"),
        ("a: 1\n...\n---\n", 3, "second_document"),
        ("- a", 1, "not_a_mapping"),
        ("just words", 1, "not_a_mapping"),
        ("? [1, 2]\n: 3", 1, "key_not_plain_text"),
        ("a: {{ value }}", 1, "key_not_plain_text"),
        ("\ta: 1", 1, "line_not_yaml"),
        ("a:\n\tb: 1", 2, "line_not_yaml"),
        ("a: [1, 2", 1, "line_not_yaml"),
        ("a: 'open", 1, "line_not_yaml"),
        ("a: 1\n  b: 2", 2, "line_not_yaml"),
        ("a: @home", 1, "line_not_yaml"),
        ("%YAML 3.0\n---\na: 1", 1, "line_not_yaml"),
        ("a: 1\nb: \x07", 2, "line_control_character"),
        ("a: 1\nb: \x00", 2, "line_control_character"),
        ('a: 1\nb: "\\UFFFFFFFF"', 2, "line_invalid_character_escape"),
        ('a: 1\nb: "\\uD800"', 2, "invalid_character_escape"),
        ("a: " + "[" * 100_000, 1, f"yaml_nested_too_deeply {MAX_DEPTH}"),
        ("a: " + "{a: " * 50_000, 1, f"yaml_nested_too_deeply {MAX_DEPTH}"),
        ("a:\n " + "- " * 100_000, 2, f"yaml_nested_too_deeply {MAX_DEPTH}"),
        ("".join(" " * n + "a:\n" for n in range(500)), MAX_DEPTH + 1, f"yaml_nested_too_deeply {MAX_DEPTH}"),
        ("a:\n" + "- 1\n" * 60_000, 9_999, f"too_many_values {MAX_VALUES}"),
        (
            "".join(f"k{n}: 1\n" for n in range(20_000)),
            5_000,
            f"too_many_values {MAX_VALUES}",
        ),
    ],
)
def test_what_could_harm_or_mean_two_things_is_refused_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)

    told = refusal(text).said.as_dict()

    code, *values = reason.split()
    check_reason(told.get("what", told), f"configs.{code}", *values)
    assert (told["name"], told["line"]) == ("x.yaml", line)
    assert list(tmp_path.iterdir()) == []  # nothing ran


def test_the_hint_says_what_to_do() -> None:
    assert refusal("a:\n\tb: 1").way_out == say("configs.tabs_refused")
    assert refusal("a: b: c").way_out == say("configs.quote_special_characters")


def test_a_long_file_is_refused_by_its_size() -> None:
    assert parse("a: |\n" + "  0123456789\n" * (MAX_BYTES // 14))["a"].startswith("0123456789\n")
    refused = refusal("a: |\n" + "  é\n" * (10 * 1024 * 1024 // 5))

    check_reason(refused.said.as_dict(), "configs.yaml_too_large", MAX_BYTES)
    assert refused.code == "too_large"


def test_where_pyyaml_is_missing_it_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)

    with refuses(WorldFailed, "configs.needs_pyyaml") as missing:
        parse("a: 1")
    assert missing.value.code == "not_installed"
    assert missing.value.hint == "pip install 'brimful[yaml]'"


def test_make_run_installs_it_and_the_base_needs_nothing() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    assert project["dependencies"] == []
    assert extras["yaml"][0].startswith("pyyaml")
    assert extras["jobs"] == ["brimful[yaml]"]  # its name of before
    assert "yaml" in extras["server"][0].partition("[")[2]
    assert "run) install_set run server" in (ROOT / "tools" / "setup.sh").read_text()


@pytest.mark.parametrize(
    ("words", "imported"),
    [
        (["examples/nanogpt/train_fineweb.py"], False),
        (["--model", "gpt2"], False),
        (["--model", "gpt2", "--args", "args.json"], False),
        (["examples/huggingface/sft.yaml"], True),
    ],
)
def test_pyyaml_is_imported_only_where_a_yaml_file_is_read(
    tmp_path: Path, words: list[str], imported: bool
) -> None:
    (tmp_path / "args.json").write_text("{}")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    check = (
        "import sys; from brimful.cli.main import main; "
        f"main(['fit', *{words!r}, '--gpu', 'rtx-4090']); sys.stderr.write(str('yaml' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, cwd=tmp_path, check=True
    )

    assert done.stderr == str(imported)


plain = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False),
    # PyYAML writes the text 1e4 without quotes; to us it is a number
    st.text(max_size=20).filter(lambda text: not re.fullmatch(r"[-+.\d_]+[eE][-+]?\d+", text)),
)  # fmt: skip
keys = st.text(max_size=10)
values = st.recursive(
    plain, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3))
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(keys, values, max_size=4), st.sampled_from([None, False, True]))
def test_what_pyyaml_writes_is_read_back(found: dict[str, Any], flow: bool | None) -> None:
    assert parse(yaml.safe_dump(found, default_flow_style=flow, allow_unicode=False)) == found


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab:- \n\t#[]{},&*!|>'\"%@`?01e.\\uxU~\r"), max_size=60))
def test_any_text_is_a_mapping_or_a_refusal(text: str) -> None:
    try:
        found = parse(text)
    except BadInput as refused:
        assert refused.hint  # noqa: PT017 - either outcome is good
    else:
        assert all(isinstance(key, str) for key in found)
