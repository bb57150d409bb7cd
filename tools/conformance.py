"""Which scenarios of tests/engines run on which engine: the table of docs/contributing/adapters.md.

Read from the source, because the tests' own packages are not installed everywhere.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tools.markdown import row

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "engines"
PAGE = ROOT / "docs" / "contributing" / "adapters.md"
BLOCK = re.compile(r"(<!-- conformance -->\n).*?(<!-- end -->)", re.DOTALL)
LABS = {
    "local": "labs.py",
    "slurm": "slurm_lab.py",
    "kubernetes": "kubernetes_lab.py",
    "ray": "ray_cluster.py",
    "ssh": "sshd.py",
}
NOBODY_ELSE = "nobody but brimful starts jobs there"
WAITS = "a stop goes through the engine, so it waits (`stop_waits`)"
UNTESTED = "**not tested**"
FEW = "two leases run there, and five hundred that never began are asked about too"
WHY_NOT = {
    **{(engine, "crowd"): FEW for engine in ("kubernetes", "ray", "ssh")},
    ("local", "engine_gone"): "the engine is part of the server",
    ("local", "stop_waits"): "the engine is part of the server",
    ("local", "stop_without_engine"): "the engine is part of the server",
    ("local", "node_lost"): "its node is the server's machine",
    ("local", "skewed_clock"): "its clock is the server's",
    ("local", "preempted"): NOBODY_ELSE,
    ("local", "pending"): NOBODY_ELSE,
    ("local", "held_back"): NOBODY_ELSE,
    ("slurm", "stop_waits"): "a stop is left in the shared folder (`stop_without_engine`)",
    ("kubernetes", "stop_without_engine"): WAITS,
    ("kubernetes", "held_back"): UNTESTED,
    ("kubernetes", "told_by_others"): UNTESTED,
    ("ray", "stop_without_engine"): WAITS,
    ("ray", "held_back"): "Ray says which GPUs are in use",
    ("ssh", "stop_without_engine"): "a stop goes over the connection",
    ("ssh", "stop_waits"): UNTESTED,
    ("ssh", "skewed_clock"): UNTESTED,
    ("ssh", "preempted"): NOBODY_ELSE,
    ("ssh", "pending"): NOBODY_ELSE,
    ("ssh", "held_back"): NOBODY_ELSE,
}


def conformance_page(text: str) -> str:
    table = "".join(f"{line}\n" for line in _lines())
    return BLOCK.sub(lambda m: m[1] + table + m[2], text)


def _lines() -> Iterator[str]:
    scenarios = [each for name in ("test_conformance.py", "test_faults.py") for each in _scenarios(name)]
    common = [words for words, fault in scenarios if not fault]
    made = {engine: faults_of(engine) for engine in LABS}
    yield f"Every engine runs these {len(common)} scenarios:"
    yield ""
    yield from (f"- {words}" for words in common)
    yield ""
    yield "The others need a fault that the lab of the engine must be able to make:"
    yield ""
    yield row("scenario", "fault", *LABS)
    yield row(*["---"] * (2 + len(LABS)))
    for words, fault in scenarios:
        if fault:
            yield row(words, f"`{fault}`", *("yes" if fault in made[each] else "no" for each in LABS))
    yield ""
    yield "Why not:"
    yield ""
    for engine, theirs in made.items():
        why: dict[str, list[str]] = {}
        for fault in sorted({fault for _, fault in scenarios if fault} - theirs):
            why.setdefault(WHY_NOT[engine, fault], []).append(f"`{fault}`")
        yield (
            f"- {engine}: " + "; ".join(f"{', '.join(each)}: {reason}" for reason, each in why.items()) + "."
        )


def _scenarios(name: str) -> Iterator[tuple[str, str]]:
    """In words, and the fault that each needs, if any."""
    for each in ast.parse((TESTS / name).read_text("utf-8")).body:
        if isinstance(each, ast.FunctionDef) and each.name.startswith("test_"):
            marks = [ast.unparse(mark) for mark in each.decorator_list]
            faults = [mark.split("'")[1] for mark in marks if mark.startswith("pytest.mark.fault(")]
            yield each.name.removeprefix("test_").replace("_", " "), "".join(faults)


def faults_of(engine: str) -> frozenset[str]:
    """What the engine's lab can make; `faults` of the last class that says so."""
    found: frozenset[str] = frozenset()
    for each in ast.walk(ast.parse((TESTS / LABS[engine]).read_text("utf-8"))):
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "faults":
            assert isinstance(each.value, ast.Call)
            found = frozenset(ast.literal_eval(each.value.args[0]))
    return found
