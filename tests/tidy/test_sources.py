"""What linters do not look at: size, names, silenced warnings."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter

from packaging.requirements import Requirement

from tests.tidy.repository import ROOT, SRC, files, name, python_files, text

MAX_FILE_LINES = 600
MAX_FOLDER_LINES = 3500
MAX_FUNCTION_LINES = 70
MAX_INIT_LINES = 40
# The core is told the time and its settings; it asks neither a clock nor the environment (DESIGN's rooms).
PURE = ("specs", "configs", "fit", "allocator", "fleet", "market", "scheduler", "sim")
IMPURE = re.compile(r"\bos\.(?:environ|getenv)|^\s*(?:import|from) time\b|datetime\.now|date\.today", re.M)
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc"}


def test_no_source_file_outgrows_its_reader() -> None:
    long = {name(path): n for path in python_files() if (n := len(text(path).splitlines())) > MAX_FILE_LINES}
    assert not long, f"over {MAX_FILE_LINES} lines, which is a design question: {long}"


def test_no_folder_outgrows_its_room() -> None:
    lines = Counter[str]()
    for path in python_files():
        if path.is_relative_to(SRC):
            lines[name(path.parent)] += len(text(path).splitlines())
    assert not {folder: n for folder, n in lines.items() if n > MAX_FOLDER_LINES}


def test_the_core_asks_neither_a_clock_nor_the_environment() -> None:
    core = [path for path in python_files() for room in PURE if path.is_relative_to(SRC / room)]
    assert core
    assert not {name(path): found[0] for path in core if (found := IMPURE.search(text(path)))}


def test_no_function_outgrows_a_screen() -> None:
    long = {
        f"{name(path)}:{node.name}": node.end_lineno - node.lineno + 1
        for path in python_files()
        if path.is_relative_to(SRC)
        for node in ast.walk(ast.parse(text(path)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    }
    assert not long, f"functions over {MAX_FUNCTION_LINES} lines: {long}"


def test_nothing_is_defined_after_a_program_has_begun() -> None:
    """What follows `if __name__ == "__main__"` does not exist yet where the module is started."""
    for path in python_files():
        before = ast.parse(text(path)).body[:-1]
        begins = [node for node in before if isinstance(node, ast.If) and "__name__" in ast.dump(node.test)]
        assert not begins, name(path)


def test_no_module_is_a_drawer_for_anything() -> None:
    drawers = [name(path) for path in python_files() if path.stem.strip("_") in DRAWERS]
    assert not drawers, f"a helper lives with its noun: {drawers}"


def test_a_package_begins_with_a_short_note() -> None:
    for path in python_files():
        if path.name == "__init__.py":
            assert len(text(path).splitlines()) <= MAX_INIT_LINES, (
                f"{name(path)}: put code in a module of its own"
            )
            if path.is_relative_to(SRC):
                assert ast.get_docstring(ast.parse(text(path))), (
                    f"{name(path)} should say what the room is for"
                )


def test_a_silenced_type_error_names_itself() -> None:
    bare = [name(path) for path in python_files() if re.search(r"#\s*type:\s*ignore(?!\[)", text(path))]
    assert not bare, f"write `type: ignore[code]`: {bare}"


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    machine_path = re.compile(r"(?<![\w.~-])/(?:root|work|home|Users)/\w")
    suffixes = {".py", ".md", ".toml", ".txt", ".sh", ".html", ".css", ".csv", ".yaml", ".json", ""}
    guilty = [
        f"{name(path)}: {found[0]}"
        for path in files()
        if path.suffix in suffixes and (found := machine_path.search(text(path)))
    ]
    assert not guilty


def test_no_large_file_is_tracked() -> None:
    for path in files():
        is_picture = path.is_relative_to(ROOT / "docs" / "images")
        limit_kb = 600 if is_picture else 300
        assert path.stat().st_size <= limit_kb * 1000, f"{name(path)} is over {limit_kb} kB"


def test_constraints_are_plain_versions() -> None:
    for line in text(ROOT / "constraints.txt").splitlines():
        assert re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[\w.+!]+", line), line
        assert not line.lower().startswith("brimful=="), line


def test_torch_is_pinned_in_the_constraints_alone_and_for_every_build() -> None:
    """An exact pin in the extra would replace a user's PyTorch; a build such as `+cpu` is on one index."""
    pins = re.findall(r"^torch==(.+)$", text(ROOT / "constraints.txt"), re.MULTILINE)
    wanted = tomllib.loads(text(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]["trace"]
    [torch] = [Requirement(each) for each in wanted]
    assert len(pins) == 1
    assert "+" not in pins[0]
    assert torch.specifier.contains(pins[0])
    assert not any(each.operator in ("==", "===") for each in torch.specifier)
