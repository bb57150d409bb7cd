"""TOML of others: what would take tomllib seconds is refused before it is parsed."""

from __future__ import annotations

import tomllib

import pytest

from brimful.errors import BadInput
from brimful.specs import toml
from brimful.specs.toml import MAX_TOML_BYTES, MAX_TOML_DEPTH, parse_toml
from tests.builders import refuses

TOO_DEEP = {
    "header": "[" + "a." * 100_000 + "a]",
    "quoted header": "[" + '"\\"".' * 50 + "a]",
    "literal header": "[" + "'a' . " * 50 + "a]",
    "array of tables": "[[" + "a." * 50 + "a]]",
    "key": "a." * 50 + "a = 1",
    "inline table": "x = {" + "a." * 50 + "a = 1}",
    "lists": "x = " + "[" * 50 + "]" * 50,
    "after a string": 'x = """a""""\ny = ' + "'''b'''''\n[" + "a." * 50 + "a]",
}


@pytest.mark.parametrize("text", TOO_DEEP.values(), ids=TOO_DEEP.keys())
def test_deep_tables_and_lists_are_refused_before_tomllib_sees_them(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toml, "tomllib", None)

    with refuses(BadInput, "specs.toml_too_deep", MAX_TOML_DEPTH):
        parse_toml(text, name="x.toml")


def test_a_file_that_is_too_large_is_refused_before_tomllib_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toml, "tomllib", None)

    with refuses(BadInput, "specs.toml_too_large", MAX_TOML_BYTES):
        parse_toml("#" * (MAX_TOML_BYTES + 1), name="x.toml")


@pytest.mark.parametrize(
    "text",
    [
        f"x = [{', '.join(['1.5'] * 1000)}]",
        "x = [\n" + "[1.0, 2.0],\n" * 1000 + "]",
        f"x = '{'a.' * 100}'  # {'a.' * 100} {'[' * 100}",
        f'x = "{"[" * 100}\\"{"." * 100}"',
        f'x = """\n{"[{." * 100}\n""""\ny = 1',
        f"x = '''\n{'[{.' * 100}''''\ny = 1",
        "\n".join(f"[a.b.c{n}]\nd.e = 1.5" for n in range(1000)),
        "[" + ".".join("a" * (MAX_TOML_DEPTH - 1)) + "]",
    ],
)
def test_dots_and_brackets_that_do_not_nest_are_not_counted(text: str) -> None:
    assert parse_toml(text, name="x.toml") == tomllib.loads(text)


@pytest.mark.parametrize("text", ['"""' + '\\"""' * 60_000, "'''" + "''a" * 60_000, '"' * 200_000, "x = '"])
def test_strings_without_an_end_are_still_tomllib_s_to_refuse(text: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        parse_toml(text, name="x.toml")
