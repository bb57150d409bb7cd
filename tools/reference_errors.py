"""docs/reference/errors.md, from the source: every code, its kind, its exit code and who raises it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tools.markdown import NOTE, row

ROOT = Path(__file__).resolve().parent.parent


class ErrorKind(NamedTuple):
    name: str
    code: str
    exit_code: int


def errors_page() -> str:
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "src").rglob("*.py"))
    }
    kinds = error_kinds(trees.values())
    rows: dict[str, tuple[ErrorKind, set[str]]] = {}
    for kind in kinds.values():
        rows.setdefault(kind.code, (kind, set()))  # a code belongs to its first class; others may inherit it
    for path, tree in trees.items():
        room = path.relative_to(ROOT / "src" / "brimful").parts[0].removesuffix(".py")
        for kind in raised_kinds(tree, kinds):
            rows.setdefault(kind.code, (kind, set()))[1].add(room)
    table = [
        row(f"`{code}`", kind.name, str(kind.exit_code), ", ".join(sorted(rooms)))
        for code, (kind, rooms) in sorted(rows.items())
    ]
    docstring = ast.get_docstring(trees[ROOT / "src" / "brimful" / "errors.py"]) or ""
    drawn = "\n".join(
        line.removeprefix("    ") for line in docstring.splitlines() if re.match(r"    \S", line)
    )
    return "\n".join(
        [
            NOTE,
            "# Errors\n",
            "Every failure that a user or the world can cause has a stable `code` for programs, a `problem`",
            "with the numbers of the case, and a `hint` that says what to do. Under `--json`:\n",
            '```json\n{"ok": false, "error": {"code": "…", "problem": "…", "hint": "…"}}\n```\n',
            f"```text\n{drawn}\n```\n",
            "| Code | Kind | Exit code | Raised in |\n|---|---|---|---|",
            *table,
            "",
        ]
    )


def error_kinds(trees: Iterable[ast.Module]) -> dict[str, ErrorKind]:
    """Every class of the error tree, wherever it is defined; code and exit code are inherited."""

    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    kinds = {"BrimfulError": ErrorKind("BrimfulError", "error", 3)}
    grew = True
    while grew:
        grew = False
        for node in classes:
            parents = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in kinds]
            if node.name in kinds or not parents:
                continue
            parent = kinds[parents[0]]
            own = {t.id: v for t, v in class_constants(node)}
            kinds[node.name] = ErrorKind(
                node.name, str(own.get("code", parent.code)), int(str(own.get("exit_code", parent.exit_code)))
            )
            grew = True
    return kinds


def class_constants(node: ast.ClassDef) -> Iterator[tuple[ast.Name, object]]:
    for statement in node.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    yield target, statement.value.value


def raised_kinds(tree: ast.Module, kinds: dict[str, ErrorKind]) -> Iterator[ErrorKind]:
    """Errors the module raises: `NotFound("…", code="no_such_job")`, or `with needs_package("…"):`."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        kind = kinds.get(node.func.id)
        if node.func.id in ("os_errors_as", "needs_package"):
            named = node.args[1] if len(node.args) > 1 else None
            kind = kinds[named.id if isinstance(named, ast.Name) else "WorldFailed"]
            if node.func.id == "needs_package" and all(keyword.arg != "code" for keyword in node.keywords):
                kind = kind._replace(code="not_installed")
        if kind is None:
            continue
        for keyword in node.keywords:
            if keyword.arg == "code" and isinstance(keyword.value, ast.Constant) and keyword.value.value:
                kind = kind._replace(code=str(keyword.value.value))
        yield kind
