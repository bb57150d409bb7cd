"""`brimful doctor`: does everything brimful promises hold on this data? It looks, and repairs nothing."""

from __future__ import annotations

import argparse

from brimful.cli.commands import NO, YES, Answer
from brimful.cli.data import add_database_arguments, open_store
from brimful.cli.render import paint

EXAMPLE = """brimful doctor
brimful doctor --database postgresql+psycopg://brimful@db/brimful"""
SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_database_arguments(parser)


def run(args: argparse.Namespace) -> Answer:
    with open_store(args) as (store, settings):
        from brimful.server.doctor import examine
        from brimful.server.run.engines import engines_in

        findings = list(examine(store, engines_in(settings.engines_folder)))
    broken = sum(not finding.kept for finding in findings)
    width = max(len(finding.promise) for finding in findings)
    lines = []
    for finding in findings:
        mark = paint("kept  ", "green") if finding.kept else paint("BROKEN", "red")
        lines.append(f"{mark}  {finding.promise:<{width}}  {paint(finding.looked_at, 'dim')}")
        lines += [f"        {each}" for each in finding.broken[:SHOWN]]
        if len(finding.broken) > SHOWN:
            lines.append(f"        and {len(finding.broken) - SHOWN:,} more")
    lines += ["", f"{len(findings) - broken} of {len(findings)} promises kept; nothing was changed"]
    data = {
        "healthy": not broken,
        "findings": [
            {"promise": f.promise, "looked_at": f.looked_at, "kept": f.kept, "broken": f.broken}
            for f in findings
        ],
    }
    return Answer(data, "\n".join(lines), NO if broken else YES)
