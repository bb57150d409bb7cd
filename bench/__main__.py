"""`python -m bench [GROUP …]`: run the benchmarks, print a table, write build/bench.md.

A group with `tables()` also puts its results into the documentation (bench/document.py).

Exit code 1 if a promised bar is missed.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

from bench import document, groups
from bench.measure import ROOT, Result, measure


def main() -> int:
    known = [module.name for module in pkgutil.iter_modules(groups.__path__)]
    wanted = sys.argv[1:] or known
    if unknown := set(wanted) - set(known):
        print(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    report = [
        "# Benchmarks",
        "",
        "CPU seconds (user and system), best of 5, beside a peer in the same run.",
        "",
    ]
    missed: list[Result] = []
    rows: list[str] = []  # of tables
    for name in wanted:
        module = importlib.import_module(f"bench.groups.{name}")
        results = [measure(benchmark) for benchmark in module.benchmarks()]
        report += [f"## {module.TITLE}", "", *table(results), ""]
        found = module.tables() if hasattr(module, "tables") else {}
        report += [line for heading, text in found.items() for line in (f"### {heading}", "", text)]
        report += [f"written: {page}" for page in document.write(found)]
        missed += [result for result in results if result.missed]
        rows += [line for text in found.values() for line in text.splitlines() if document.MISSED in line]
    text = "\n".join(report)
    print(text)
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "bench.md").write_text(text, encoding="utf-8")
    for result in missed:
        print(
            f"missed: {result.name} takes {result.ratio:.1f}x {result.peer_name}, the bar is {result.bar:g}x"
        )
    for row in rows:
        print(f"missed: {row}")
    return 1 if missed or rows else 0


def table(results: list[Result]) -> list[str]:
    rows = [["Benchmark", "CPU", "Peer", "Peer CPU", "Ratio", "Bar"]]
    for r in results:
        bar = "" if r.bar is None else f"≤ {r.bar:g}x"
        ratio = f"{r.ratio:.2f}x" + (" missed" if r.missed else "")
        rows.append([r.name, show(r.cpu_s), r.peer_name, show(r.peer_cpu_s), ratio, bar])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return lines


def show(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


if __name__ == "__main__":
    sys.exit(main())
