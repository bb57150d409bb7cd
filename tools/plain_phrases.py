"""Gather what code says to users as plain English: problems and hints of errors, and warnings of readers.

Formulas and readers know nothing of languages. What they write is found here in their syntax trees, as
templates (`{name} is out of range`), which stand in the catalogs beside the sentences of `say`. At run time
`diagnose/phrases.py` recognises a finished text by its template and tells it in another language.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase

SOURCE = Path(__file__).resolve().parent.parent / "src" / "brimful"
_ROOMS = ("accuracy", "allocator", "configs", "diagnose", "fit", "specs", "tracing")
LISTED = SOURCE / "language" / "locale" / "plain.json"
# Commands that are told in four languages, and what they stand on.
_COMMANDS = (
    *(f"gpu/{name}" for name in ("fit", "fit_cards", "explain", "claims")),
    *(f"gpu/{name}" for name in ("sweep", "sweep_grid", "sweep_plot", "trace")),
    "gpu/others",
    "main",
    "options",
    "commands",
)
# Rooms of commands that speak English only: `replay`, `score`, `calibrate`.
_ENGLISH = {
    "allocator/snapshot.py",
    "allocator/plain_pickle.py",
    "allocator/replay.py",
    "accuracy/calibrate.py",
    "accuracy/refit.py",
    "accuracy/score.py",
    "accuracy/runs.py",
    "accuracy/record.py",
    "diagnose/slow.py",
}
# What makes an error, or is handed to what makes one.
_ERRORS = {
    *("BadInput", "NotFound", "Refused", "WorldFailed", "ArgumentTypeError"),
    *("Unreadable", "refuse", "_refuse", "ambiguous", "unknown", "_ambiguous", "_unknown"),
}
_KEPT = {"warnings", "said", "note", "notes", "hint", "why"}
_WORDS = re.compile(r"[A-Za-z]{2,}.*\s.*[A-Za-z]{2,}|\{.*\s[a-z]{2,}|[a-z]{2,}\s.*\{|^an? \w+$", re.DOTALL)

_TYPED = re.compile(r"pip install '|brimful ")  # a command to type is the same in every language


def plain_phrases() -> list[str]:
    """Every template, once, in alphabetical order."""
    found: set[str] = set()
    for path in _files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for scope in _scopes(tree):
            found |= _Scope(scope, tree, warns="configs" in path.parts).templates()
    return sorted(
        text for text in found if _WORDS.search(re.sub(r"\{\w+\}", "{", text)) and not _TYPED.match(text)
    )


def _files() -> Iterator[Path]:
    for path in sorted(path for room in _ROOMS for path in (SOURCE / room).rglob("*.py")):
        if path.relative_to(SOURCE).as_posix() not in _ENGLISH:
            yield path
    yield from (SOURCE / "cli" / f"{name}.py" for name in _COMMANDS)


def _scopes(tree: ast.Module) -> Iterator[ast.AST]:
    yield tree
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


class _Scope:
    """One function: its errors and warnings, and the words that its names stand for."""

    def __init__(self, function: ast.AST, module: ast.Module, *, warns: bool) -> None:
        self.function = function
        self.warns = warns
        self.assigned: dict[str, list[ast.expr]] = {}
        for statement in [*module.body, *ast.walk(function)]:
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    self._assign(target, statement.value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.assigned.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                self._assign(one, other)

    def templates(self) -> set[str]:
        found: set[str] = set()
        for node in ast.walk(self.function):
            for told in self._told(node):
                found |= set(self._texts(told, depth=0))
        return found

    def _told(self, node: ast.AST) -> list[ast.expr]:
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in _ERRORS:
                return [*node.args[:2], *(k.value for k in node.keywords if k.arg == "hint")]
            if called == "read_config":
                return [k.value for k in node.keywords if k.arg == "what"]
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            if self.warns and called == "append" and getattr(owner, "id", "") in _KEPT:
                return node.args
        if self.warns and isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(getattr(target, "id", "") in _KEPT for target in targets):
                return [node.value]
        if self.warns and isinstance(node, ast.Return) and isinstance(node.value, (ast.Tuple, ast.List)):
            parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            return [part for part in parts if isinstance(part, ast.List)]
        return []

    def _texts(self, node: ast.expr, depth: int) -> Iterator[str]:
        """Every text an expression may be, and the words inside it."""
        if depth > 3:
            return
        match node:
            case ast.Constant(value=str(text)):
                yield text.strip()
            case ast.JoinedStr() | ast.BinOp():
                yield self._template(node)
                for part in ast.walk(node):
                    if isinstance(part, ast.FormattedValue):
                        yield from self._texts(part.value, depth + 1)
            case ast.IfExp(body=one, orelse=other):
                yield from self._texts(one, depth)
                yield from self._texts(other, depth)
            case ast.Name(id=name):
                for value in self.assigned.get(name, ()):
                    yield from self._texts(value, depth + 1)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                for part in parts:
                    yield from self._texts(part, depth)
            case ast.ListComp(elt=part) | ast.Starred(value=part):
                yield from self._texts(part, depth)

    def _template(self, node: ast.expr) -> str:
        """Values become {a}, {b}, …, so that renaming a variable changes no catalog."""
        taken = 0

        def text(part: ast.expr) -> str:
            nonlocal taken
            match part:
                case ast.Constant(value=str(words)):
                    return words.replace("{", "{{").replace("}", "}}")
                case ast.JoinedStr(values=values):
                    return "".join(text(value) for value in values)
                case ast.BinOp(left=left, op=ast.Add(), right=right):
                    return text(left) + text(right)
            taken += 1
            return f"{{{_kind(part)}{ascii_lowercase[taken - 1]}}}"

        return text(node).strip()


def _kind(part: ast.expr) -> str:
    """`n_` before a number, `size_` before bytes: these are written anew in each language."""
    if not isinstance(part, ast.FormattedValue):
        return ""
    if isinstance(part.value, ast.Call) and getattr(part.value.func, "id", "") == "show_bytes":
        return "size_"
    written = ast.unparse(part.format_spec) if part.format_spec is not None else ""
    return "n_" if "," in written or ".0f" in written or ".1f" in written else ""
